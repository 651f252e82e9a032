// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// The environment of the check of a container that starts: its share, how many containers may have that, 0 for any
// number, and the UUIDs of further GPUs that it has by the same daemon, with commas.
const (
	EnvShare      = "MPS_SHARE"
	EnvContainers = "MPS_CONTAINERS"
	EnvMoreGPUs   = "MPS_MORE_GPUS"
)

// containersTimeout is how long a start waits for others that count: each takes milliseconds, where the node has
// processor time to spare. Past it, the start has failed.
const containersTimeout = 20 * time.Second

// Container is a container that has a share of a GPU by MPS.
type Container struct {
	// Share tells the share from others, ID the container.
	Share string `json:"share"`
	ID    string `json:"id"`
	// PID is its first process, Started when that was started, as the kernel tells: a later
	// process of that number is another one.
	PID     int    `json:"pid"`
	Started string `json:"started"`
}

// AddContainer is for the check of a container that starts: it notes the container, or fails if
// maxContainers others of its share run.
func (d Dir) AddContainer(uuid string, c Container, maxContainers int, runs func(Container) bool) (err error) {
	const what = "count the containers of a share"
	path := filepath.Join(d.gpu(uuid), "containers.json")
	locked, err := lock(path+".lock", os.O_RDWR|os.O_CREATE, unix.LOCK_EX, containersTimeout)
	if err != nil {
		return fmt.Errorf(what+": %w", err)
	}
	defer func() { err = errors.Join(err, locked.Close()) }()
	// A damaged file is replaced: it would keep every container from starting.
	all, there, err := read[[]Container](path, what)
	if err != nil && !there {
		return err
	}
	all = slices.DeleteFunc(all, func(o Container) bool { return o.ID == c.ID || !runs(o) })
	others := 0
	for _, o := range all {
		if o.Share == c.Share {
			others++
		}
	}
	if others >= maxContainers {
		return fmt.Errorf("%d containers have its share already, each with all of the share's memory, and no more may "+
			"(setting CONTAINERS_PER_SHARE of the plugin): give it a claim of its own", others)
	}
	return write(path, what, append(all, c))
}
