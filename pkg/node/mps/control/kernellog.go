// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// KernelLog is what the kernel has in its log: the NVIDIA driver tells there which process an error is of. It takes
// CAP_SYSLOG.
func KernelLog() (string, error) {
	const readAll, most = 3, 4 << 20 // syslog(2)
	log := make([]byte, most)
	n, err := unix.Klogctl(readAll, log)
	if err != nil {
		return "", fmt.Errorf("read the kernel's log: %w", err)
	}
	return string(log[:n]), nil
}
