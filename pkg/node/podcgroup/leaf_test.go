// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const (
	podUID      = "3d6b2a1c-8f70-4c1e-9b4d-0a1b2c3d4e5f"
	podUnder    = "3d6b2a1c_8f70_4c1e_9b4d_0a1b2c3d4e5f"
	containerID = "f3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// The layouts are those of the kubelet and of the runtimes: cgroupfs and systemd, containerd
// and CRI-O, and crun's further group.
func TestLeafOf(t *testing.T) {
	slice := "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + podUnder + ".slice"
	for name, tc := range map[string]struct{ content, kubelet, podDir, dir string }{
		"cgroupfs": {"0::/kubepods/burstable/pod" + podUID + "/" + containerID + "\n", "/kubepods",
			"/kubepods/burstable/pod" + podUID, "/kubepods/burstable/pod" + podUID + "/" + containerID},
		"guaranteed": {"0::/kubepods/pod" + podUID + "/" + containerID + "\n", "kubepods/",
			"/kubepods/pod" + podUID, "/kubepods/pod" + podUID + "/" + containerID},
		"CRI-O by cgroupfs": {"0::/kubepods/pod" + podUID + "/crio-" + containerID + "\n", "/kubepods",
			"/kubepods/pod" + podUID, "/kubepods/pod" + podUID + "/crio-" + containerID},
		"systemd": {"0::" + slice + "/cri-containerd-" + containerID + ".scope\n", "/kubepods.slice", slice,
			slice + "/cri-containerd-" + containerID + ".scope"},
		"CRI-O by systemd and crun": {"0::" + slice + "/crio-" + containerID + ".scope/container\n",
			"/kubepods.slice", slice,
			slice + "/crio-" + containerID + ".scope"},
		"a kubelet's own root": {"0::/node1/kubepods/pod" + podUID + "/" + containerID + "\n", "/node1/kubepods",
			"/node1/kubepods/pod" + podUID, "/node1/kubepods/pod" + podUID + "/" + containerID},
		"version 1": {"9:name=systemd:/\n8:pids:/kubepods/pod" + podUID + "/" + containerID + "\n0::/\n", "/kubepods",
			"/kubepods/pod" + podUID, "/kubepods/pod" + podUID + "/" + containerID},
		"a pod's name below the container": {"0::/kubepods/pod" + podUID + "/" + containerID + "/kubepods/pod" +
			strings.Replace(podUID, "3", "4", 1) + "/" + containerID + "\n", "/kubepods",
			"/kubepods/pod" + podUID, "/kubepods/pod" + podUID + "/" + containerID},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := LeafOf([]byte(tc.content), tc.kubelet, containerID)
			expect.NoError(t, err)
			expect.Equal(t, Leaf{Pod: podUID, PodDir: tc.podDir, Dir: tc.dir}, got, "the leaf")
		})
	}
}

func TestLeafThatIsRefused(t *testing.T) {
	const outside, notIts = "is not below the kubelet's control group", "is not that of the container"
	other := strings.Repeat("a", 64)
	for name, tc := range map[string]struct{ content, kubelet, container, want string }{
		"the root": {"0::/\n", "/kubepods", containerID, outside},
		"nothing":  {"", "/kubepods", containerID, outside},
		"elsewhere": {"0::/system.slice/docker-" + containerID + ".scope\n", "/kubepods.slice", containerID,
			outside},
		"a name that is as": {"0::/kubepods-of-mine/pod" + podUID + "/" + containerID + "\n", "/kubepods",
			containerID, outside},
		"upwards": {"0::/kubepods/../pod" + podUID + "/" + containerID + "\n", "/kubepods", containerID,
			outside},
		"the pod":          {"0::/kubepods/pod" + podUID + "\n", "/kubepods", containerID, notIts},
		"no pod":           {"0::/kubepods/burstable/" + containerID + "\n", "/kubepods", containerID, notIts},
		"another":          {"0::/kubepods/pod" + podUID + "/" + other + "\n", "/kubepods", containerID, notIts},
		"one that ends so": {"0::/kubepods/pod" + podUID + "/x" + containerID + "\n", "/kubepods", containerID, notIts},
		"no root":          {"0::/kubepods/pod" + podUID + "/" + containerID + "\n", "/", containerID, "may be empty"},
		"no ID":            {"0::/kubepods/pod" + podUID + "/" + containerID + "\n", "/kubepods", "", "may be empty"},
		"mixed drivers": {"0::/system.slice/kubepods-pod" + podUnder + ".slice:cri-containerd:" + containerID + "\n",
			"/system.slice", containerID, "SystemdCgroup"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := LeafOf([]byte(tc.content), tc.kubelet, tc.container)
			expect.Error(t, err, tc.want)
		})
	}
}

// Whatever is in the file, what is found is below the kubelet's control group.
func FuzzLeafOf(f *testing.F) {
	f.Add([]byte("0::/kubepods/pod" + podUID + "/" + containerID + "\n"))
	f.Add([]byte("0::/kubepods/../pod" + podUID + "/" + containerID + "\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		leaf, err := LeafOf(content, "/kubepods", containerID)
		if err != nil {
			return
		}
		if !strings.HasPrefix(leaf.Dir, "/kubepods/") || filepath.Dir(leaf.Dir) != leaf.PodDir ||
			leaf.PodDir == "/kubepods" ||
			strings.Contains(leaf.Dir, "/../") {
			t.Errorf("%q: %+v", content, leaf)
		}
	})
}

func TestRootOfPods(t *testing.T) {
	for dir, want := range map[string]string{
		"kubepods/burstable/pod" + podUID: "/kubepods",
		"node1/kubepods/pod" + podUID:     "/node1/kubepods",
		"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + podUnder + ".slice": "/kubepods.slice",
	} {
		root := t.TempDir()
		expect.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		if got, err := New(root, podUID).Root(); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %s", dir, got, err, want)
		}
	}
	if got, err := New(t.TempDir(), podUID).Root(); err == nil {
		t.Errorf("without the own pod: %q", got)
	}
}
