// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
)

// A container whose start is refused has failed for good if its pod is not restarted, so its start waits. The kubelet
// gives a start two minutes (runtimeRequestTimeout), and container runtimes their hooks as long.
const (
	// LatePatience outlasts a daemon that is killed after it was silent for a minute, and the start of the next one. With
	// the 30 s of gpu-memory-limit, which may be another hook of the container, it is less than these two minutes.
	LatePatience = 85 * time.Second
	// DownPatience outlasts the start of a daemon, or of a supervisor, in the place of one that has ended.
	DownPatience = 10 * time.Second
	// awaitInterval is how often it is looked, and goneAfter when a note is that of a start that was killed.
	awaitInterval, goneAfter = 100 * time.Millisecond, 2 * time.Minute
)

// Waiting is a container whose start waits for a GPU's daemon.
type Waiting struct {
	// ID is the container runtime's ID of the container, the others name its pod; empty where that is not known.
	ID        string    `json:"id"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	UID       types.UID `json:"uid"`
	// Since is when it began to wait, Reason why.
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
}

// Await is Check for a container that starts, on all of its GPUs: it waits for a daemon that is late as long as the
// kubelet lets it, and for one that is down for a moment. While it does, Waiting has the container.
func (d Dir) Await(ctx context.Context, uuids []string, w Waiting) error {
	w.Since = time.Now()
	// A daemon that cannot be started is Starting again and again.
	down, looked, noted := time.Duration(0), w.Since, ""
	// The note is for people: a start does not fail for it.
	defer func() {
		if noted != "" {
			_ = atomicfile.Remove(noted)
		}
	}()
	for {
		uuid, err := d.firstClosed(uuids)
		if err == nil {
			return nil
		}
		now := time.Now()
		if !d.alive(uuid) {
			down += now.Sub(looked)
		}
		looked = now
		if waited := now.Sub(w.Since); waited >= LatePatience || down >= DownPatience {
			return fmt.Errorf("nothing would hold it to its share of %s, for which it waited %s: %w", uuid,
				waited.Round(time.Second), err)
		}
		if noted == "" && w.ID != "" {
			w.Reason, noted = err.Error(), d.waitingFile(uuid, w.ID)
			_ = write(noted, "note that a container waits", w)
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(awaitInterval):
		}
	}
}

func (d Dir) firstClosed(uuids []string) (uuid string, err error) {
	for _, uuid := range uuids {
		if err := d.Check(uuid); err != nil {
			return uuid, err
		}
	}
	return "", nil
}

// alive reports whether the GPU's daemon is late, or being started.
func (d Dir) alive(uuid string) bool {
	s, err := d.Status(uuid)
	return err == nil && (s.State == Late || s.State == Starting) && d.checkSupervised() == nil
}

// Waiting lists the containers whose start waits for the GPU's daemon.
func (d Dir) Waiting(uuid string) ([]Waiting, error) {
	files, err := filepath.Glob(d.waitingFile(uuid, "*"))
	var all []Waiting
	for _, path := range files {
		w, there, readErr := read[Waiting](path, "read which container waits")
		switch {
		case time.Since(w.Since) > goneAfter && there:
			err = errors.Join(err, os.Remove(path))
		case readErr == nil && there:
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b Waiting) int { return a.Since.Compare(b.Since) })
	return all, err
}

func (d Dir) waitingFile(uuid, id string) string {
	return filepath.Join(d.gpu(uuid), "waiting", id+".json")
}
