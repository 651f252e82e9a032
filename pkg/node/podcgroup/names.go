// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Regular expressions would say the same in a line each. To compile them took gpu-memory-limit, which is started for
// each container, an eighth of its time.

// containerIDLength is that of a container's ID, in hexadecimal digits.
const containerIDLength = 64

// placeNamed tells a pod by the name of its control group: "pod<UID>" by the kubelet itself, a slice whose name ends
// in "-pod<UID>" by systemd, where the UID has "_" for "-". A runtime that does not use systemd below a kubelet that
// does has the container in the same name, after colons.
func placeNamed(component string) (Place, bool) {
	name, container := component, ""
	if before, id := cutLast(component, containerIDLength); isHex(id) && strings.HasSuffix(before, ":") {
		if at := strings.LastIndexByte(before[:len(before)-1], ':'); at >= 0 {
			name, container = component[:at], id
		}
	}
	name = strings.TrimSuffix(name, sliceSuffix)
	// The UIDs of static pods are hashes, without dashes.
	for _, length := range []int{36, 32} {
		before, uid := cutLast(name, length)
		before, is := strings.CutSuffix(before, "pod")
		if is && (before == "" || strings.HasSuffix(before, "-")) && isUID(uid) {
			return Place{Pod: types.UID(strings.ReplaceAll(uid, "_", "-")), Container: container}, true
		}
	}
	return Place{}, false
}

// containerNamed is the ID of the container whose control group has that name, "<ID>", or by systemd
// "<runtime>-<ID>.scope"; empty where it is no container's.
func containerNamed(component string) string {
	runtime, id := cutLast(strings.TrimSuffix(component, ".scope"), containerIDLength)
	if !isHex(id) {
		return ""
	}
	if runtime == "" {
		return id
	}
	name, is := strings.CutSuffix(runtime, "-")
	if !is || name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return ""
	}
	return id
}

// cutLast cuts off that many bytes of the end; none where there are fewer.
func cutLast(s string, length int) (before, last string) {
	if len(s) < length {
		return s, ""
	}
	return s[:len(s)-length], s[len(s)-length:]
}

// isUID knows a UUID, with dashes or with what systemd has for them, and 32 digits.
func isUID(s string) bool {
	if len(s) == 36 {
		for _, at := range []int{23, 18, 13, 8} {
			if s[at] != '-' && s[at] != '_' {
				return false
			}
			s = s[:at] + s[at+1:]
		}
	}
	return len(s) == 32 && isHex(s)
}

// isHex wants lower case, and a digit at least.
func isHex(s string) bool { return s != "" && strings.Trim(s, "0123456789abcdef") == "" }
