// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// XID is an error that NVIDIA's kernel module reports by number.
type XID uint64

// DefaultIgnored are the XIDs that a program can cause when it likes: they end the program and
// leave the GPU as it was, for others to use. NVIDIA's catalog of XIDs
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) has nothing done about these
// but a restart of the application, and sends whoever looks for the cause to the application.
// It calls 32 a matter of the PCI bus in most cases, but programs write the push buffers that
// it is about. 68 and 109 are here because NVIDIA's own device plugin and DRA driver ignore
// them. A GPU that really is ill after one of them has a recovery action, which is asked for.
func DefaultIgnored() []XID {
	return []XID{11, 13, 14, 25, 31, 32, 37, 43, 45, 68, 69, 80, 109, 137}
}

// meanings are what NVIDIA's documentation "XID Errors" says of the errors that are met
// most. Others are told by their number.
var meanings = map[XID]string{
	13: "graphics engine exception", 31: "GPU memory page fault", 32: "invalid or corrupted push buffer stream",
	43: "GPU stopped processing",
	45: "preemptive cleanup, due to previous errors", 48: "double bit ECC error",
	61: "internal micro-controller breakpoint or warning", 62: "internal micro-controller halt",
	63: "ECC page retirement or row remapping recorded", 64: "ECC page retirement or row remapping failed",
	68: "NVDEC exception", 69: "graphics engine class error", 74: "NVLink error", 79: "the GPU has fallen off the bus",
	92: "high single-bit ECC error rate", 94: "contained ECC error", 95: "uncontained ECC error",
	109: "context switch timeout", 119: "GSP RPC timeout", 120: "GSP error",
	137: "NVLink privilege error", 140: "unrecovered ECC error", 143: "GPU initialisation failure",
}

func (x XID) String() string {
	if meaning, ok := meanings[x]; ok {
		return fmt.Sprintf("XID %d (%s)", uint64(x), meaning)
	}
	return fmt.Sprintf("XID %d", uint64(x))
}

// ParseXIDs reads a list such as "13,31,43". An empty one names none.
func ParseXIDs(list string) ([]XID, error) {
	var xids []XID
	for field := range strings.SplitSeq(list, ",") {
		field = strings.TrimSpace(field)
		if field == "" {
			continue
		}
		number, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not the number of an XID, in a list such as 13,31,43", field)
		}
		xids = append(xids, XID(number))
	}
	slices.Sort(xids)
	return slices.Compact(xids), nil
}

// FormatXIDs is what ParseXIDs reads.
func FormatXIDs(xids []XID) string {
	fields := make([]string, len(xids))
	for i, x := range xids {
		fields[i] = strconv.FormatUint(uint64(x), 10)
	}
	return strings.Join(fields, ",")
}
