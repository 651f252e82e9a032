// SPDX-License-Identifier: Apache-2.0

// Package machine describes the machine that a benchmark runs on.
package machine

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Describe says when and where the figures were measured, in one line.
func Describe() string {
	parts := []string{time.Now().UTC().Format("2006-01-02 15:04 UTC"), fmt.Sprintf("%d cores", runtime.NumCPU())}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		parts = append(parts, fmt.Sprintf("%.0f GiB of memory", float64(info.Totalram)*float64(info.Unit)/(1<<30)))
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		parts = append(parts, "Linux "+unix.ByteSliceToString(name.Release[:]))
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		parts = append(parts, "load before the run "+strings.Join(strings.Fields(string(load))[:3], " "))
	}
	return strings.Join(parts, ", ")
}
