// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"bytes"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Leaf is where a container's processes are: paths of control groups below their root, as
// in /proc/PID/cgroup.
type Leaf struct {
	// Pod is the UID by which the kubelet knows the pod, PodDir its control group.
	Pod    types.UID
	PodDir string
	// Dir is the container's own control group, right below PodDir.
	Dir string
}

// LeafOf finds the control group of the container with that ID in what the kernel says of
// one of its processes (/proc/PID/cgroup). kubelet is the control group of all pods, as Root
// tells it. What is not below it, or is not that container's, is an error: limits that are
// set there would be somebody else's.
func LeafOf(content []byte, kubelet, container string) (Leaf, error) {
	kubelet = path.Clean("/" + kubelet)
	if kubelet == "/" || container == "" {
		return Leaf{},
			fmt.Errorf("the kubelet's control group is %q and the container's ID %q, of which neither may be empty",
				kubelet, container)
	}
	at := ""
	for line := range bytes.Lines(content) {
		// Version 2 has one line, "0::path". Of version 1 each names the pod that has to do with pods.
		_, rest, _ := bytes.Cut(bytes.TrimRight(line, "\n"), []byte(":"))
		_, p, _ := bytes.Cut(rest, []byte(":"))
		if at == "" {
			at = string(p)
		}
		below, is := strings.CutPrefix(string(p), kubelet+"/")
		if !is || path.Clean(string(p)) != string(p) {
			continue
		}
		leaf, err := leafBelow(strings.Split(below, "/"), container)
		leaf.PodDir, leaf.Dir = path.Join(kubelet, leaf.PodDir), path.Join(kubelet, leaf.Dir)
		return leaf, err
	}
	return Leaf{}, fmt.Errorf("the container's control group %q is not below the kubelet's control group %s", at,
		kubelet)
}

// leafBelow finds the pod and the container in what is below the kubelet's control group.
func leafBelow(components []string, container string) (Leaf, error) {
	for i, component := range components {
		place, is := placeNamed(component)
		if !is {
			continue
		}
		if place.Container != "" {
			return Leaf{},
				fmt.Errorf("control group %q is not below that of its pod: the kubelet and the container runtime "+
					"have different settings for systemd (cgroupDriver, SystemdCgroup)", component)
		}
		if i+1 >= len(components) {
			break
		}
		// What is further below, as crun's group "container", is the container's, too.
		name := strings.TrimSuffix(components[i+1], ".scope")
		if before, is := strings.CutSuffix(name, container); !is || before != "" && !strings.HasSuffix(before, "-") {
			return Leaf{}, fmt.Errorf("control group %q is not that of the container %s", components[i+1], container)
		}
		return Leaf{Pod: place.Pod, PodDir: path.Join(components[:i+1]...), Dir: path.Join(components[:i+2]...)}, nil
	}
	return Leaf{},
		fmt.Errorf("control group %q is not that of the container %s: it names no pod and a group below that",
			strings.Join(components, "/"), container)
}

// Root is the control group of all of the node's pods, below the tree's root: "/kubepods",
// or "/kubepods.slice". It fails with ErrUnknown where the own pod's was not found.
func (t *Tree) Root() (string, error) {
	if err := t.find(); err != nil {
		return "", err
	}
	rel, err := filepath.Rel(t.root, t.podsDir())
	if err != nil || !filepath.IsLocal(rel) || rel == "." {
		return "", fmt.Errorf("%w: %s is not below %s", ErrUnknown, t.podsDir(), t.root)
	}
	return "/" + rel, nil
}

func (t *Tree) podsDir() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pods
}
