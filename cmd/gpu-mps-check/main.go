// SPDX-License-Identifier: Apache-2.0

// Command gpu-mps-check keeps a container from starting while nothing would hold
// it to its share of a GPU:
//
//	[MPS_SHARE=SHARE MPS_CONTAINERS=NUMBER [MPS_MORE_GPUS=UUID,...]] gpu-mps-check DIR UUID
//
// The container runtime runs it on the host, as a CDI hook, before each start of
// a container with limits under MPS. It fails unless the MPS control daemon of
// each GPU with such a UUID serves, by what gpu-mps-supervisor keeps in DIR. It also fails for
// a container that has another share, too, whose limits would take the place of these, and
// where as many others run with the share as may, 0 for any number. The kubelet asks the
// driver about the first pod of a claim only, and about none that joins it.
package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/internal/ocihook"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

func main() {
	if err := check(os.Args, os.Getenv, os.Stdin, "/proc"); err != nil {
		fmt.Fprintln(os.Stderr, "gpu-mps-check:", err)
		os.Exit(1)
	}
}

func check(args []string, getenv func(string) string, stdin io.Reader, proc string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: %s DIR UUID", args[0])
	}
	dir, uuid := mps.Dir(args[1]), args[2]
	all := []string{uuid}
	if more := getenv(mps.EnvMoreGPUs); more != "" {
		all = append(all, strings.Split(more, ",")...)
	}
	for _, uuid := range all {
		if err := dir.Check(uuid); err != nil {
			return fmt.Errorf("the container is not started, because nothing would hold it to its share of %s: %w", uuid, err)
		}
	}
	// Specs of earlier versions of the plugin do not say which share it is.
	share := getenv(mps.EnvShare)
	if share == "" {
		return nil
	}
	most, err := strconv.Atoi(getenv(mps.EnvContainers))
	if err != nil {
		return fmt.Errorf("the number of containers that may have the share (%s): %w", mps.EnvContainers, err)
	}
	c, err := ocihook.Read(stdin)
	if err != nil {
		return err
	}
	if err := checkShares(c, args[0], share); err != nil {
		return fmt.Errorf("the container is not started: %w", err)
	}
	if most == 0 {
		return nil
	}
	started, err := startOf(proc, c.PID)
	if err != nil {
		return err
	}
	entry := mps.Container{Share: share, ID: c.ID, PID: c.PID, Started: started}
	err = dir.AddContainer(uuid, entry, most, func(o mps.Container) bool {
		started, err := startOf(proc, o.PID)
		return err == nil && started == o.Started
	})
	if err != nil {
		return fmt.Errorf("the container is not started: %w", err)
	}
	return nil
}
