// SPDX-License-Identifier: Apache-2.0

// Package podcgroup tells whether processes of a pod run, and whose a process is, by the
// control groups that the kubelet makes for pods. These know it when nobody else does: a
// pod that was deleted by force is unknown to the API server and to the kubelet's own
// lists while its containers still stop.
package podcgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ErrUnknown says that the kubelet's control groups were not found.
var ErrUnknown = errors.New("the control groups of the node's pods were not found")

// deepest is how many directories below the root the own pod is looked for.
const deepest = 8

// Tree is the node's control groups. Its methods may be called concurrently.
type Tree struct {
	root string
	own  types.UID

	mu    sync.Mutex
	pods  string // the directory of all pods; empty until it was found
	slice bool   // systemd has made it
	// missing is why it was not found, when it was last looked for.
	missing error
	looked  time.Time
}

// lookAgain is when the own pod is looked for again that was not found: each time the whole
// tree is read.
const lookAgain = time.Minute

// New returns the control groups that are mounted at root. own is the UID of the pod
// that the caller runs in: where its control group is, those of the others are.
func New(root string, own types.UID) *Tree { return &Tree{root: root, own: own} }

// Running reports whether the pod has processes, be it only its sandbox. An error, that
// wraps ErrUnknown where the control groups were not found, means that it is not known.
func (t *Tree) Running(pod types.UID) (bool, error) {
	if pod == "" || strings.ContainsAny(string(pod), "/\x00") {
		return false, fmt.Errorf("%q is no UID of a pod", pod)
	}
	if err := t.find(); err != nil {
		return false, err
	}
	for _, class := range []string{"", "burstable", "besteffort"} {
		populated, err := populated(t.dir(class, pod))
		if populated || err != nil {
			return populated, err
		}
	}
	return false, nil
}

// dir is the control group of a pod of this class: the kubelet groups pods that request
// less than their limits, or nothing.
func (t *Tree) dir(class string, pod types.UID) string {
	if !t.slice {
		return filepath.Join(t.pods, class, "pod"+string(pod))
	}
	// A slice's name is the path to it, with dashes.
	name := strings.TrimSuffix(filepath.Base(t.pods), sliceSuffix)
	parent := t.pods
	if class != "" {
		name += "-" + class
		parent = filepath.Join(parent, name+sliceSuffix)
	}
	return filepath.Join(parent, name+"-pod"+escaped(pod)+sliceSuffix)
}

const sliceSuffix = ".slice"

func escaped(pod types.UID) string { return strings.ReplaceAll(string(pod), "-", "_") }

// populated reports whether the control group, or one below it, has processes. One that
// does not exist has none. cgroup.procs does not tell: it hides processes of other
// namespaces.
func populated(dir string) (bool, error) {
	events, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if err == nil {
		return bytes.Contains(events, []byte("populated 1")), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look whether a pod's processes run: %w", err)
	}
	// Control groups of version 1.
	count, err := os.ReadFile(filepath.Join(dir, "pids.current"))
	switch {
	case err == nil:
		return string(bytes.TrimSpace(count)) != "0", nil
	case errors.Is(err, fs.ErrNotExist):
		return false, present(dir)
	default:
		return false, fmt.Errorf("look whether a pod's processes run: %w", err)
	}
}

// present reports a control group that is there and does not say what is in it.
func present(dir string) error {
	_, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look whether a pod's processes run: %w", err)
	default:
		return fmt.Errorf("control group %s does not say whether it has processes: %w", dir, ErrUnknown)
	}
}

// find looks for the own pod, now and then until it has been found once.
func (t *Tree) find() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pods != "" {
		return nil
	}
	if t.missing != nil && time.Since(t.looked) < lookAgain {
		return t.missing
	}
	err := t.look()
	t.missing, t.looked = nil, time.Now()
	if errors.Is(err, ErrUnknown) {
		t.missing = err
	}
	return err
}

func (t *Tree) look() error {
	if t.own == "" {
		return fmt.Errorf("%w: this process runs in no pod", ErrUnknown)
	}
	// In version 1 each controller has a tree; this one counts processes.
	for _, root := range []string{filepath.Join(t.root, "pids"), t.root} {
		own, err := search(root, "pod"+string(t.own), "-pod"+escaped(t.own)+sliceSuffix)
		if err != nil {
			return err
		}
		if own == "" {
			continue
		}
		t.slice = strings.HasSuffix(own, sliceSuffix)
		t.pods = filepath.Dir(own)
		base := strings.TrimSuffix(filepath.Base(t.pods), sliceSuffix)
		for _, class := range []string{"burstable", "besteffort"} {
			if base == class || t.slice && strings.HasSuffix(base, "-"+class) {
				t.pods = filepath.Dir(t.pods)
				break
			}
		}
		return nil
	}
	return fmt.Errorf("%w: the own pod's, with UID %s, is not below %s", ErrUnknown, t.own, t.root)
}

// search returns the directory of that name, or whose name ends so, below root; empty if
// there is none.
func search(root, name, suffix string) (string, error) {
	found := ""
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		// What ends meanwhile is not it.
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		case entry.Name() == name || strings.HasSuffix(entry.Name(), suffix):
			found = path
			return fs.SkipAll
		case strings.Count(strings.TrimPrefix(path, root), string(filepath.Separator)) >= deepest:
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("look for the control groups of pods below %s: %w", root, err)
	}
	return found, nil
}
