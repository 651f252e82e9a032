// SPDX-License-Identifier: Apache-2.0

// Command gpu-mps-check keeps a container from starting while nothing would hold
// it to its share of a GPU:
//
//	[MPS_SHARE=SHARE MPS_CONTAINERS=NUMBER [MPS_MORE_GPUS=UUID,...]] gpu-mps-check DIR UUID
//
// The container runtime runs it on the host, as a CDI hook, before each start of
// a container with limits under MPS. It waits until the MPS control daemon of
// each GPU with such a UUID serves, by what gpu-mps-supervisor keeps in DIR, and fails
// where that takes too long (mps.Dir.Await). It also fails for
// a container that has another share, too, whose limits would take the place of these, and
// where as many others run with the share as may, 0 for any number. The kubelet asks the
// driver about the first pod of a claim only, and about none that joins it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/ocihook"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

func main() {
	if err := check(context.Background(), os.Args, os.Getenv, os.Stdin, "/proc"); err != nil {
		fmt.Fprintln(os.Stderr, "gpu-mps-check:", err)
		os.Exit(1)
	}
}

func check(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader, proc string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: %s DIR UUID", args[0])
	}
	dir, uuid := mps.Dir(args[1]), args[2]
	all := []string{uuid}
	if more := getenv(mps.EnvMoreGPUs); more != "" {
		all = append(all, strings.Split(more, ",")...)
	}
	c, err := ocihook.Read(stdin)
	// Specs of earlier versions of the plugin do not say which share it is.
	share, most := getenv(mps.EnvShare), 0
	if share != "" {
		if err != nil {
			return err
		}
		if most, err = strconv.Atoi(getenv(mps.EnvContainers)); err != nil {
			return fmt.Errorf("the number of containers that may have the share (%s): %w", mps.EnvContainers, err)
		}
		if err := checkShares(c, args[0], share); err != nil {
			return fmt.Errorf("the container is not started: %w", err)
		}
	}
	namespace, pod, uid := c.Pod()
	waiting := mps.Waiting{ID: c.ID, Namespace: namespace, Pod: pod, UID: types.UID(uid)}
	if err := dir.Await(ctx, all, waiting); err != nil {
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
