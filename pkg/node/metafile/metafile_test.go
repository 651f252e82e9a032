// SPDX-License-Identifier: Apache-2.0

package metafile

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func shared(request string, units int64) claim.Grant {
	return claim.Grant{Request: request, Pool: "n1/gpu", Device: "gpu-1-core-mem", ShareID: "s", Mode: mode.CoreMem,
		Units: units, CoresPercent: 30, Isolation: "mps",
		GPU: claim.GPU{Index: 1, UUID: "GPU-b", Model: "Tesla-V100", MemoryMiB: 16130}}
}

// What Kubernetes' own library reads of the file is what the claim has.
func TestFileIsReadByKubernetes(t *testing.T) {
	dir := Dir(t.TempDir())
	c := Claim{Namespace: "ns", Name: "pod-gpu-x7", UID: "uid", PodClaimName: "gpu", Grants: []claim.Grant{
		shared("main/large", 3)}}
	mounts, err := dir.Write(c)
	expect.NoError(t, err)
	mount := mounts["main"]
	if mount == nil || mount.ContainerPath !=
		"/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/main/gpu.aliyun.com-metadata.json" {
		t.Fatalf("mounts %v", mounts)
	}
	file, err := os.Open(mount.HostPath)
	expect.NoError(t, err)
	defer file.Close()
	var read metadata.DeviceMetadata
	expect.NoError(t, devicemetadata.DecodeMetadataFromStream(json.NewDecoder(file), &read))
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	number := func(n int64) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{IntValue: &n} }
	want := []metadata.DeviceMetadataRequest{{Name: "main/large", Devices: []metadata.Device{{
		Driver: "gpu.aliyun.com", Pool: "n1/gpu", Name: "gpu-1-core-mem",
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"mode": text("core-mem"), "model": text("Tesla-V100"), "isolation": text("mps"), "uuid": text("GPU-b"),
			"index": number(1), "memoryMiB": number(16130), "grantedMemoryMiB": number(3226),
			"grantedCoresPercent": number(30),
		}}}}}
	expect.Equal(t, want, read.Requests, "requests")
	if ptr.Deref(read.PodClaimName, "") != "gpu" || read.Name != c.Name || read.UID != c.UID {
		t.Errorf("claim %v %s %s", read.PodClaimName, read.Name, read.UID)
	}
}

func TestFilesOfAClaim(t *testing.T) {
	dir := Dir(filepath.Join(t.TempDir(), "files"))
	set := claim.Grant{Request: "set", Device: "gpus-0-1", Mode: mode.Topology,
		GPU: claim.GPU{Index: 0, MemoryMiB: 15360}}
	other := set
	other.GPU.Index = 1
	c := Claim{Namespace: "ns", Name: "c", UID: "uid", Grants: []claim.Grant{shared("a", 1), set, other}}
	exists := func(want bool) {
		t.Helper()
		if got, err := dir.Exists(c); err != nil || got != want {
			t.Errorf("exists: %t %v, want %t", got, err, want)
		}
	}
	exists(false)
	for range 2 {
		mounts, err := dir.Write(c)
		if err != nil || len(mounts) != 2 || mounts["set"].ContainerPath !=
			"/var/run/kubernetes.io/dra-device-attributes/resourceclaims/c/set/gpu.aliyun.com-metadata.json" {
			t.Fatalf("%v %v", mounts, err)
		}
	}
	exists(true)
	got := contents(c)["set"].Requests[0].Devices
	if len(got) != 1 || ptr.Deref(got[0].Attributes["members"].StringValue, "") != "0,1" ||
		ptr.Deref(got[0].Attributes["gpuCount"].IntValue, 0) != 2 {
		t.Errorf("a linked set is %+v", got)
	}
	expect.NoError(t, os.Remove(dir.path("uid", "a")))
	exists(false)
	for range 2 {
		expect.NoError(t, dir.Remove("uid"))
	}
	if left, err := os.ReadDir(string(dir)); err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// A container runtime that mounts a file fails if the file is replaced meanwhile, and a plugin that starts writes the
// files of all claims.
func TestFilesThatSayTheSameStay(t *testing.T) {
	dir := Dir(t.TempDir())
	c := Claim{Namespace: "ns", Name: "c", UID: "uid", Grants: []claim.Grant{shared("gpu", 3)}}
	written := func() os.FileInfo {
		t.Helper()
		mounts, err := dir.Write(c)
		expect.NoError(t, err)
		file, err := os.Stat(mounts["gpu"].HostPath)
		expect.NoError(t, err)
		return file
	}
	first := written()
	if !os.SameFile(first, written()) {
		t.Error("the file was replaced by one that says the same")
	}
	c.Grants[0].Units = 4
	if os.SameFile(first, written()) {
		t.Error("the file was changed in place, where others read it")
	}
}

// What a claim costs that is prepared.
func BenchmarkWriteAndRemove(b *testing.B) {
	dir := Dir(b.TempDir())
	c := Claim{Namespace: "ns", Name: "c", UID: "uid", Grants: []claim.Grant{shared("gpu", 3)}}
	for b.Loop() {
		if _, err := dir.Write(c); err != nil {
			b.Fatal(err)
		}
		expect.NoError(b, dir.Remove(c.UID))
	}
}
