// SPDX-License-Identifier: Apache-2.0

package nodelabels

import (
	"maps"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// a10 is what the slices say of a GPU, and featuresOfA10 what GPU Feature Discovery writes of two of them.
var (
	a10 = &gpu.GPU{Model: "NVIDIA-A10", ProductName: "NVIDIA A10", MemoryMiB: 23028, Architecture: "Ampere",
		ComputeCapability: "8.6"}

	featuresOfA10 = map[string]string{"gpu.present": "true", "gpu.product": "NVIDIA-A10", "gpu.count": "2",
		"gpu.memory": "23028", "gpu.family": "ampere", "gpu.compute.major": "8", "gpu.compute.minor": "6"}
)

// nvidiaLabels are labels with NVIDIA's domain before their keys.
func nvidiaLabels(labels map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range labels {
		out["nvidia.com/"+key] = value
	}
	return out
}

func TestFeaturesAsDiscoveryWritesThem(t *testing.T) {
	text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
	version := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{VersionValue: &s} }
	type attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	for name, test := range map[string]struct {
		first attributes
		want  map[string]string
	}{
		"nothing is known": {attributes{}, map[string]string{}},
		"an A10": {attributes{v1alpha1.AttrProductName: text("NVIDIA A10"), v1alpha1.AttrArchitecture: text("Ampere"),
			v1alpha1.AttrComputeCapability: version("8.6.0"), v1alpha1.AttrMemoryMiB: {IntValue: ptr.To(int64(23028))}},
			maps.Clone(featuresOfA10)},
		"a name that no label can hold": {attributes{v1alpha1.AttrProductName: text("Quadro RTX 6000/8000")},
			map[string]string{}},
		"an L4": {attributes{v1alpha1.AttrArchitecture: text("Ada Lovelace"),
			v1alpha1.AttrComputeCapability: version("8.9.0")},
			map[string]string{"gpu.family": "ada-lovelace", "gpu.compute.major": "8", "gpu.compute.minor": "9"}},
		"a driver": {attributes{v1alpha1.AttrDriverVersion: version("570.124.6"),
			v1alpha1.AttrCUDADriverVersion: version("12.8.0")}, map[string]string{
			"cuda.driver-version.major": "570", "cuda.driver-version.minor": "124", "cuda.driver-version.revision": "06",
			"cuda.driver-version.full": "570.124.06", "cuda.driver.major": "570", "cuda.driver.minor": "124",
			"cuda.driver.rev": "06", "cuda.runtime-version.major": "12", "cuda.runtime-version.minor": "8",
			"cuda.runtime-version.full": "12.8", "cuda.runtime.major": "12", "cuda.runtime.minor": "8"}},
		"an old driver": {attributes{v1alpha1.AttrDriverVersion: version("410.48.0")}, map[string]string{
			"cuda.driver-version.major": "410", "cuda.driver-version.minor": "48", "cuda.driver-version.full": "410.48",
			"cuda.driver.major": "410", "cuda.driver.minor": "48"}},
	} {
		t.Run(name, func(t *testing.T) {
			test.want["gpu.present"], test.want["gpu.count"] = "true", "2"
			expect.Equal(t, nvidiaLabels(test.want), Features(test.first, 2), "labels")
		})
	}
}

// features lets the controller see what is there now.
func (s *site) features(on bool, published ...*resourceapi.ResourceSlice) {
	s.t.Helper()
	_, ctx := ktesting.NewTestContext(s.t)
	var kept []*view.Slice
	for _, slice := range published {
		kept = append(kept, view.Read(slice))
	}
	l := &reconciler{Config: Config{Client: s.client.CoreV1().Nodes(), Features: on}}
	expect.NoError(s.t, l.features(ctx, cache.KeepNode(s.node(), false), kept))
}

func TestFeaturesFollowTheGPUs(t *testing.T) {
	s := newSite(t)
	s.features(false, pool(a10, a10))
	s.has(map[string]string{})
	s.features(true)
	s.has(map[string]string{})
	s.features(true, pool(a10, a10))
	s.has(nvidiaLabels(featuresOfA10))
	s.features(true) // its plugin is being replaced
	s.has(nvidiaLabels(featuresOfA10))
	s.byHand(`{"metadata":{"labels":{"nvidia.com/gpu.family":null}}}`)
	s.features(true, pool(a10, a10))
	s.has(nvidiaLabels(featuresOfA10))
	s.features(true, pool())
	s.has(map[string]string{})
	s.features(true, pool(a10, a10))
	s.features(false, pool(a10, a10))
	s.has(map[string]string{})
	expect.Equal(t, false, cache.KeepNode(s.node(), false).Features, "the labels still count as written")
}

// Where GPU Feature Discovery or somebody else writes the labels, only theirs are there.
func TestFeaturesAreLeftToOthers(t *testing.T) {
	timestamp := nvidiaLabels(map[string]string{"gfd.timestamp": "1"})
	product := nvidiaLabels(map[string]string{"gpu.product": "NVIDIA-A10-SHARED"})
	for name, test := range map[string]struct {
		patch       string
		first, then map[string]string
	}{
		// Node Feature Discovery, which writes its labels, writes none that are there with the same value. Were they
		// removed, the node would be without until it looks at it again, in an hour.
		"GPU Feature Discovery": {`{"metadata":{"labels":{"nvidia.com/gfd.timestamp":"1"}}}`, timestamp,
			merged(timestamp, nvidiaLabels(featuresOfA10))},
		"somebody else": {`{"metadata":{"labels":{"nvidia.com/gpu.product":"NVIDIA-A10-SHARED"}}}`, product, product},
	} {
		t.Run(name+" before", func(t *testing.T) {
			s := newSite(t)
			s.byHand(test.patch)
			s.features(true, pool(a10, a10))
			s.has(test.first)
		})
		t.Run(name+" later", func(t *testing.T) {
			s := newSite(t)
			s.features(true, pool(a10, a10))
			s.byHand(test.patch)
			s.features(true, pool(a10, a10))
			s.has(test.then)
			s.features(false, pool(a10, a10))
			s.has(test.then)
		})
	}
}

// When GPU Feature Discovery goes, the labels are the controller's again.
func TestFeaturesAfterOthers(t *testing.T) {
	s := newSite(t)
	s.features(true, pool(a10, a10))
	s.byHand(`{"metadata":{"labels":{"nvidia.com/gfd.timestamp":"1","nvidia.com/gpu.count":"3"}}}`)
	s.features(true, pool(a10, a10))
	s.byHand(`{"metadata":{"labels":{"nvidia.com/gfd.timestamp":null,"nvidia.com/gpu.count":null,` +
		`"nvidia.com/gpu.product":null}}}`)
	s.features(true, pool(a10, a10))
	s.has(nvidiaLabels(featuresOfA10))
	s.features(false, pool(a10, a10))
	s.has(map[string]string{})
}

func merged(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}
