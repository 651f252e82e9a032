// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const (
	own     types.UID = "0aa1-own"
	running types.UID = "1bb2-running"
	ended   types.UID = "2cc3-ended"
	gone    types.UID = "3dd4-gone"
	silent  types.UID = "4ee5-silent"
)

// files makes files, with what is in them, below a directory.
func files(t *testing.T, contents map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range contents {
		path = filepath.Join(root, path)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		expect.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return root
}

func TestRunning(t *testing.T) {
	const yes, no = "populated 1\nfrozen 0\n", "populated 0\nfrozen 0\n"
	for name, contents := range map[string]map[string]string{
		"cgroupfs": {
			"kubepods/besteffort/pod0aa1-own/cgroup.events":    yes,
			"kubepods/burstable/pod1bb2-running/cgroup.events": yes,
			"kubepods/pod2cc3-ended/cgroup.events":             no,
			"kubepods/pod4ee5-silent/memory.max":               "max",
		},
		"below another root": {
			"system.slice/some.service/cgroup.events":                 yes,
			"nodes/n1/kubepods/pod0aa1-own/cgroup.events":             yes,
			"nodes/n1/kubepods/pod1bb2-running/cgroup.events":         yes,
			"nodes/n1/kubepods/burstable/pod2cc3-ended/x/file":        "",
			"nodes/n1/kubepods/burstable/pod2cc3-ended/cgroup.events": no,
			"nodes/n1/kubepods/burstable/pod4ee5-silent/x":            "",
		},
		"systemd": {
			"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0aa1_own.slice/cgroup.events":       yes,
			"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1bb2_running.slice/cgroup.events": yes,
			"kubepods.slice/kubepods-pod2cc3_ended.slice/cgroup.events":                                        no,
			"kubepods.slice/kubepods-pod4ee5_silent.slice/x":                                                   "",
		},
		"systemd, the own pod guaranteed": {
			"a.slice/a-kubepods.slice/a-kubepods-pod0aa1_own.slice/cgroup.events":                                          yes,
			"a.slice/a-kubepods.slice/a-kubepods-burstable.slice/a-kubepods-burstable-pod1bb2_running.slice/cgroup.events": yes,
			"a.slice/a-kubepods.slice/a-kubepods-pod2cc3_ended.slice/cgroup.events":                                        no,
			"a.slice/a-kubepods.slice/a-kubepods-pod4ee5_silent.slice/x":                                                   "",
		},
		"version 1": {
			"memory/n1/kubepods/besteffort/pod0aa1-own/x":                  "",
			"pids/n1/kubepods/besteffort/pod0aa1-own/pids.current":         "3\n",
			"pids/n1/kubepods/besteffort/pod1bb2-running/pids.current":     "1\n",
			"pids/n1/kubepods/besteffort/pod2cc3-ended/pids.current":       "0\n",
			"pids/n1/kubepods/besteffort/pod4ee5-silent/notify_on_release": "0\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tree := New(files(t, contents), own)
			for uid, want := range map[types.UID]bool{own: true, running: true, ended: false, gone: false} {
				if got, err := tree.Running(uid); got != want || err != nil {
					t.Errorf("pod %s runs: %v, %v; want %v", uid, got, err, want)
				}
			}
			_, err := tree.Running(silent) // its control group says nothing
			expect.ErrorIs(t, err, ErrUnknown)
			for _, uid := range []types.UID{"", "../burstable", "a/b"} {
				if _, err := tree.Running(uid); err == nil {
					t.Errorf("%q is a UID", uid)
				}
			}
		})
	}
}

func TestNotKnown(t *testing.T) {
	root := files(t, map[string]string{"kubepods/pod9-other/cgroup.events": "populated 1\n"})
	for name, tree := range map[string]*Tree{
		"another's": New(root, own),
		"no pod":    New(root, ""),
		"no root":   New(filepath.Join(root, "none"), own),
	} {
		if running, err := tree.Running("9-other"); running || !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v, %v; want it not known", name, running, err)
		}
	}
}

// A node whose control groups do not show pods is not read through at each question.
func TestWhatIsNotFoundIsLookedForNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		tree := New(root, own)
		known := func(want bool, when string) {
			t.Helper()
			_, err := tree.Running("9-other")
			expect.Equal(t, want, !errors.Is(err, ErrUnknown), "it is known %s: %v", when, err)
		}
		known(false, "at first")
		expect.NoError(t, os.MkdirAll(filepath.Join(root, "kubepods/pod0aa1-own"), 0o755))
		known(false, "at once")
		time.Sleep(lookAgain)
		known(true, "a minute later")
	})
}

// Names are read as these regular expressions say.
var (
	ofPod = regexp.MustCompile(
		`(?:^|-)pod([0-9a-f]{32}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?(?::[^:]*:([0-9a-f]{64}))?$`)
	ofContainer = regexp.MustCompile(`^(?:[a-z0-9-]+-)?([0-9a-f]{64})(?:\.scope)?$`)
)

func FuzzNames(f *testing.F) {
	for _, name := range []string{"pod" + podUID, "kubepods-burstable-pod" + podUnder + ".slice",
		"kubepods-pod" + podUnder + ".slice:cri-containerd:" + containerID, "pod" + podUID + "::" + containerID,
		"kubepods-pod" + podUnder + ".slice:" + containerID, ":a:" + containerID, "a:b-pod" + podUID,
		"pod" + strings.ReplaceAll(podUID, "-", ""), "xpod" + podUID, "pod" + podUID + ".slice.slice", "pod" + podUID + "0",
		containerID, "cri-containerd-" + containerID + ".scope", "-" + containerID, "--" + containerID,
		"crio-conmon-" + containerID, "Crio-" + containerID, "a.b-" + containerID, containerID + ".scope.scope", "pod", ""} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		var want Place
		match := ofPod.FindStringSubmatch(name)
		if match != nil {
			want = Place{Pod: types.UID(strings.ReplaceAll(match[1], "_", "-")), Container: match[2]}
		}
		if got, is := placeNamed(name); got != want || is != (match != nil) {
			t.Errorf("%q is %+v (%t), want %+v", name, got, is, want)
		}
		id := ""
		if match := ofContainer.FindStringSubmatch(name); match != nil {
			id = match[1]
		}
		expect.Equal(t, id, containerNamed(name), "%q is of container", name)
	})
}
