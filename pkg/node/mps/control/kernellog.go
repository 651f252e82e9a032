// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// KernelLog is what the kernel has in its log, one record a line: the NVIDIA driver tells there which process an error
// is of. It takes CAP_SYSLOG.
func KernelLog() (string, error) {
	const path = "/dev/kmsg"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open the kernel's log %s: %w", path, err)
	}
	defer unix.Close(fd) //nolint:errcheck // Nothing is lost with it.
	var all strings.Builder
	record := make([]byte, 8192) // a read returns one record, and fails where it is longer
	for {
		n, err := unix.Read(fd, record)
		switch {
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			return all.String(), nil
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			continue // overwritten meanwhile
		case err != nil:
			return all.String(), fmt.Errorf("read the kernel's log %s: %w", path, err)
		}
		all.Write(record[:n])
	}
}
