// SPDX-License-Identifier: Apache-2.0

package deviceclass

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// models has a node publish GPUs of so many models, whose names begin so.
func (s *site) models(node, prefix string, n int) {
	s.t.Helper()
	machine := &gpu.Machine{}
	for i := range n {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%s-%d", node, i), MemoryMiB: 1024,
			Model: fmt.Sprintf("%s%02d", prefix, i)})
	}
	s.publishMachine(node, mode.Share, machine)
}

// count is of how many models there are classes.
func (s *site) count() int {
	s.t.Helper()
	list, err := s.client.ResourceV1().DeviceClasses().List(s.t.Context(), metav1.ListOptions{})
	expect.NoError(s.t, err)
	models := map[string]bool{}
	for _, class := range list.Items {
		models[model(&class)] = true
	}
	return len(models)
}

// The word of one node makes no more classes than a node can need: whoever has its token could fill the API server.
func TestModelsOfANodeAreBounded(t *testing.T) {
	s := newSite(t)
	s.publish("well", "zz-NVIDIA-A10", mode.Share)
	s.models("stolen", "m", 50)
	s.sync()
	expect.Equal(t, modelsOfNode+1, s.count(), "models that have classes")
	s.event("Warning GPUTooManyModels The node publishes 42 GPU models and MIG profiles that have no DeviceClass: there " +
		"are classes for 8 models")
	// Others that come later displace nothing that claims may rely on.
	s.models("stolen", "a", 0)
	s.models("stolen", "l", 8)
	s.sync()
	s.event("")
	s.models("stolen", "m", 50)
	s.sync()
	s.event("GPUTooManyModels")
	expect.Equal(t, 2*modelsOfNode+1, s.count(), "models that have classes")
	s.publish("stolen", "zz-NVIDIA-A10", mode.Share)
	s.sync()
	s.pass(grace)
	s.sync()
	s.has("share.zz-nvidia-a10", "zz-nvidia-a10")
}

// Nor do the nodes of a cluster together, whatever they publish in turn, and models that have classes keep them.
func TestModelsInAllAreBounded(t *testing.T) {
	s := newSite(t)
	s.publish("well", "zz-NVIDIA-A10", mode.Share)
	s.sync()
	for i := range 2 * modelsMost / modelsOfNode {
		s.models("stolen", fmt.Sprintf("m%02d-", i), modelsOfNode)
		s.sync()
	}
	s.event("GPUTooManyModels")
	expect.Equal(t, modelsMost, s.count(), "models that have classes")
	expect.Equal(t, true, slices.Contains(s.names(), "share.zz-nvidia-a10"), "the class of a model that is there stays")
}

// MIG profiles are bounded, too.
func TestProfilesOfANodeAreBounded(t *testing.T) {
	s := newSite(t)
	machine := &gpu.Machine{Partitioned: []gpu.Partitioned{{GPU: gpu.GPU{UUID: "GPU-a", Model: "A100",
		MemoryMiB: 81920}}}}
	for i := range 60 {
		machine.Partitioned[0].Instances = append(machine.Partitioned[0].Instances, gpu.Instance{
			UUID: fmt.Sprintf("MIG-%d", i), Profile: fmt.Sprintf("1g.%dgb", i), Start: i, Size: 1, MemoryMiB: 9728})
	}
	s.publishMachine("a", mode.Exclusive, machine)
	s.sync()
	expect.Equal(t, profilesOfNode, len(s.names()), "profiles that have classes")
	s.event("The node publishes 28 GPU models and MIG profiles")
}
