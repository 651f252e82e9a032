// SPDX-License-Identifier: Apache-2.0

// Command gpu-cdi-hook does the work of several hooks of NVIDIA's Container Toolkit in
// one process:
//
//	gpu-cdi-hook HOOK [ARGUMENT…] [--then HOOK [ARGUMENT…]]…
//
// Hooks and arguments are those of nvidia-cdi-hook, whose code they run. They run in
// their order, and none runs after one that failed. The container's state, which a
// container runtime hands to a hook on its standard input, is read once.
//
// A container waits for each process that its runtime starts as a hook. Where there are
// five hooks, starting their processes takes longer than what they do.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	symlinks "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/create-symlinks"
	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/cudacompat"
	devicenodes "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/disable-device-node-modification"
	profile "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/update-application-profile"
	ldcache "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/update-ldcache"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"
)

// then stands between the arguments of two hooks. The plugin writes it into CDI specs.
const then = "--then"

func main() {
	if err := run(context.Background(), os.Args[0], os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "gpu-cdi-hook:", err)
		os.Exit(1)
	}
}

// run runs the hooks that the arguments name. Each finds the container's state on
// os.Stdin: the toolkit's hooks can be told no other reader.
func run(ctx context.Context, program string, arguments []string) error {
	state, err := rewindable(os.Stdin)
	if err != nil {
		return fmt.Errorf("read the container's state from the standard input: %w", err)
	}
	os.Stdin = state
	logger := logrus.New()
	for _, hook := range split(arguments) {
		if _, err := state.Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("read the container's state again: %w", err)
		}
		// Only those that the plugin writes into CDI specs: each package more is a longer start.
		command := &cli.Command{Name: program, Commands: []*cli.Command{
			symlinks.NewCommand(logger), cudacompat.NewCommand(logger), ldcache.NewCommand(logger),
			devicenodes.NewCommand(logger), profile.NewCommand(logger),
		}}
		if command.Command(first(hook)) == nil {
			return fmt.Errorf("hook %q: there is no such hook", hook)
		}
		if err := command.Run(ctx, append([]string{program}, hook...)); err != nil {
			return fmt.Errorf("hook %q: %w", hook, err)
		}
	}
	return nil
}

func first(arguments []string) string {
	if len(arguments) == 0 {
		return ""
	}
	return arguments[0]
}

// split cuts the arguments where one hook's end and the next one's begin.
func split(arguments []string) [][]string {
	var hooks [][]string
	for {
		i := slices.Index(arguments, then)
		if i < 0 {
			return append(hooks, arguments)
		}
		hooks = append(hooks, arguments[:i])
		arguments = arguments[i+1:]
	}
}

// rewindable copies what can be read once into a file in memory.
func rewindable(from io.Reader) (*os.File, error) {
	fd, err := unix.MemfdCreate("container-state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), "container-state")
	if _, err := io.Copy(file, from); err != nil {
		return nil, err
	}
	return file, nil
}
