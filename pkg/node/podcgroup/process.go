// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
)

// ErrEnded says that there is no such process, any more or in this PID namespace.
var ErrEnded = errors.New("the process has ended")

// Place is a pod's control group that a process is in.
type Place struct {
	// Pod is the UID by which the kubelet knows the pod. That of a static pod is not the one
	// that the API server knows.
	Pod types.UID
	// Container is the runtime's ID of the container; empty where it cannot be told.
	Container string
}

// Processes looks processes up in a procfs, by their numbers in its PID namespace.
type Processes string

// Places are the pods' control groups that the process is in, outermost first: where a node
// runs in a pod, there are several. It is empty for a process of no pod.
func (p Processes) Places(pid int) ([]Place, error) {
	content, err := os.ReadFile(p.file(pid, "cgroup"))
	if err != nil {
		return nil, p.explain(pid, err)
	}
	return places(content), nil
}

// Program is the name of the program that the process runs, which it can choose itself.
func (p Processes) Program(pid int) (string, error) {
	content, err := os.ReadFile(p.file(pid, "comm"))
	if err != nil {
		return "", p.explain(pid, err)
	}
	return string(bytes.TrimSpace(content)), nil
}

func (p Processes) file(pid int, name string) string {
	return filepath.Join(string(p), strconv.Itoa(pid), name)
}

func (Processes) explain(pid int, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("process %d: %w", pid, ErrEnded)
	}
	return fmt.Errorf("look whose process %d is: %w", pid, err)
}

// places reads /proc/PID/cgroup: a line for each hierarchy, "number:controllers:path". There
// is one in version 2, several in version 1, of which that of systemd itself, or of a
// controller that is not used, may lack the pod.
func places(content []byte) []Place {
	for line := range bytes.Lines(content) {
		_, rest, _ := bytes.Cut(bytes.TrimRight(line, "\n"), []byte(":"))
		_, path, _ := bytes.Cut(rest, []byte(":"))
		if !bytes.Contains(path, []byte("pod")) {
			continue
		}
		// The kernel says so of a group that was removed before its last process was gone.
		path = bytes.TrimSuffix(path, []byte(" (deleted)"))
		if found := placesIn(string(path)); len(found) > 0 {
			return found
		}
	}
	return nil
}

func placesIn(path string) []Place {
	var found []Place
	components := strings.Split(path, "/")
	for i, component := range components {
		place, is := placeNamed(component)
		if !is {
			continue
		}
		if place.Container == "" && i+1 < len(components) {
			// What a container makes below its own control group does not matter.
			place.Container = containerNamed(components[i+1])
		}
		found = append(found, place)
	}
	return found
}
