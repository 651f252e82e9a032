// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/internal/ocihook"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

var errTwoShares = errors.New("it would have two shares by MPS, each with limits of its own, of which only one would " +
	"hold: ask for all that the container needs in one request of one claim")

// checkShares reports that the container has another share beside this one: the hook of each
// is there.
func checkShares(c ocihook.Container, program, share string) error {
	for _, h := range c.Hooks {
		if len(h.Args) == 0 || h.Args[0] != program {
			continue
		}
		for _, variable := range h.Env {
			if other, is := strings.CutPrefix(variable, mps.EnvShare+"="); is && other != share {
				return errTwoShares
			}
		}
	}
	return nil
}

// startTime is the number of the field of /proc/PID/stat that says when the process was
// started, after the program's name, which may have any characters in it.
const startTime = 19

// startOf says when a process was started, in ticks since the node's boot.
func startOf(proc string, pid int) (string, error) {
	content, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", fmt.Errorf("look when the container's process was started: %w", err)
	}
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	if len(fields) <= startTime {
		return "", fmt.Errorf("process %d: its state %q does not say when it was started", pid, content)
	}
	return string(fields[startTime]), nil
}
