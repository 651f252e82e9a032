// SPDX-License-Identifier: Apache-2.0

package hostdir

import "golang.org/x/sys/unix"

// Same reports whether two paths lead to one directory of the host, whose root directory
// this process sees at hostRoot. What cannot be looked at is no directory.
func Same(hostRoot, a, b string) bool {
	var one, other unix.Stat_t
	if statBelow(hostRoot, a, &one) != nil || statBelow(hostRoot, b, &other) != nil {
		return false
	}
	return one.Dev == other.Dev && one.Ino == other.Ino
}
