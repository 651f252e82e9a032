// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/topologytest"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/topology"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

const (
	topoNode       = "topo"
	withdrawnTaint = "gpu.aliyun.com/withdrawn:NoSchedule"
)

// shippedTemplate is the ResourceClaimTemplate of a file of demo/topology.
func shippedTemplate(t *testing.T, file string) resourceapi.ResourceClaimSpec {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "..", "demo", "topology", file))
	expect.NoError(t, err)
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		var template resourceapi.ResourceClaimTemplate
		if err := decoder.Decode(&template); errors.Is(err, io.EOF) {
			t.Fatalf("%s has no ResourceClaimTemplate", file)
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if template.Kind == "ResourceClaimTemplate" {
			return template.Spec.Spec
		}
	}
}

// linkedTemplates makes the templates that demo/topology has, and one for a
// single GPU.
func linkedTemplates(t *testing.T, ns *harness.Namespace) {
	t.Helper()
	ns.Template(t, "cards-1", harness.Requests(harness.Linked("card", 1, 1)))
	for k, file := range map[int]string{2: "two-gpus.yaml", 4: "four-gpus.yaml", 8: "eight-gpus.yaml"} {
		ns.Template(t, fmt.Sprintf("cards-%d", k), shippedTemplate(t, file))
	}
}

// dgx1 is the machine of the node, with its links.
func dgx1(t *testing.T) *gpu.Machine {
	t.Helper()
	machine, err := topologytest.Machine(t.Context(), filepath.Join("..", "..", "..", "demo", "machines", "dgx1.yaml"))
	expect.NoError(t, err)
	return machine
}

func grantedIndices(grants []harness.Grant) []int {
	var out []int
	for _, grant := range grants {
		out = append(out, int(grant.GPU.Index))
	}
	slices.Sort(out)
	return out
}

// occupy runs a pod that holds these GPUs and no others.
func occupy(t *testing.T, ns *harness.Namespace, pod string, gpus ...int) {
	t.Helper()
	request := harness.Matching(harness.Linked("cards", 1, int64(len(gpus))),
		fmt.Sprintf(`device.attributes["gpu.aliyun.com"].gpuCount == 1 && device.attributes["gpu.aliyun.com"].index in %s`,
			strings.ReplaceAll(fmt.Sprint(gpus), " ", ",")))
	ns.Template(t, pod, harness.Requests(request))
	ns.Run(t, harness.Pod(pod, topoNode, harness.FromTemplate(pod)))
	if got := grantedIndices(ns.Granted(t, pod)); !slices.Equal(got, gpus) {
		t.Fatalf("pod %s holds %v, want %v", pod, got, gpus)
	}
}

// seesLinkedGPUs checks that the pod's container has its GPUs and no others, in
// the order of their links.
func seesLinkedGPUs(t *testing.T, ns *harness.Namespace, pod string, machine *gpu.Machine) {
	t.Helper()
	grants := ns.Granted(t, pod)
	ns.SeesItsGPUs(t, pod, "main", grants)
	ns.KnowsItsGPUs(t, pod, "main", grants)
	want := map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}
	if len(grants) > 1 {
		var uuids []string
		for _, index := range topology.Order(machine, grantedIndices(grants)) {
			i := slices.IndexFunc(grants, func(g harness.Grant) bool { return int(g.GPU.Index) == index })
			uuids = append(uuids, grants[i].GPU.UUID)
		}
		want["CUDA_VISIBLE_DEVICES"] = strings.Join(uuids, ",")
	}
	ns.HasEnv(t, pod, "main", want)
}

// Whatever is busy, a claim gets the best of the free GPUs; where no linked set of its size is free, single ones. That
// holds for each combination of free GPUs: TestEveryCombinationOfBusyGPUs of pkg/devices.
func TestTopologyClaimsGetTheBestFreeGPUs(t *testing.T) {
	cluster.First(t)
	t.Parallel()
	cluster.Whole(t, topoNode)
	machine := dgx1(t)
	for i, tc := range []struct {
		busy []int
		k    int
		// from is the subrequest that was served.
		from string
	}{
		{nil, 8, "gpus/linked"},
		{[]int{0}, 1, "card"},
		{[]int{0, 3}, 2, "gpus/linked"},
		{[]int{1, 2}, 4, "gpus/linked"},
		{[]int{0, 3, 5, 6}, 4, "gpus/any"},
	} {
		t.Run(fmt.Sprintf("%d beside %v", tc.k, tc.busy), func(t *testing.T) {
			ns := cluster.Namespace(t)
			linkedTemplates(t, ns)
			if len(tc.busy) > 0 {
				occupy(t, ns, "busy", tc.busy...)
			}
			pod := fmt.Sprintf("job-%d", i)
			ns.Run(t, harness.Pod(pod, topoNode, harness.FromTemplate(fmt.Sprintf("cards-%d", tc.k))))

			grants := ns.Granted(t, pod)
			free := slices.DeleteFunc([]int{0, 1, 2, 3, 4, 5, 6, 7},
				func(g int) bool { return slices.Contains(tc.busy, g) })
			expect.Equal(t, topologytest.Best(machine, free, tc.k), grantedIndices(grants), "GPUs")
			if grants[0].Request != tc.from {
				t.Errorf("request %s was served, want %s", grants[0].Request, tc.from)
			}
			seesLinkedGPUs(t, ns, pod, machine)
		})
	}
}

// changeMachine changes a node's simulated machine and starts the plugin again.
// When undo is called, or the test ends, both are as before.
func changeMachine(t *testing.T, node string, change func(*sim.Spec)) (undo func()) {
	t.Helper()
	putBack := cluster.ChangeMachine(t, node, change)
	undo = undoOnce(func() {
		putBack()
		cluster.ReplacePlugin(t, node)
	})
	t.Cleanup(undo)
	cluster.ReplacePlugin(t, node)
	return undo
}

// A sick GPU takes its sets out. The other GPUs of a set that is held are not
// given away, although they are well.
func TestSickGPUTakesItsSetsOut(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, topoNode)
	machine := dgx1(t)
	ns := cluster.Namespace(t)
	linkedTemplates(t, ns)
	ns.Run(t, harness.Pod("early", topoNode, harness.FromTemplate("cards-4")))
	if got := grantedIndices(ns.Granted(t, "early")); !slices.Equal(got, []int{0, 1, 2, 3}) {
		t.Fatalf("got %v", got)
	}

	began := time.Now()
	repair := changeMachine(t, topoNode, func(s *sim.Spec) { s.GPUs[2].Fault.Lost = true })
	cluster.WaitNodeEvent(t, topoNode, began, "GPULeftOut", "GPU 2")
	cluster.Devices(t, topoNode, "offer no set with GPU 2", func(devices []resourceapi.Device) error {
		held := false
		for _, device := range devices {
			closed := slices.ContainsFunc(device.Taints, func(taint resourceapi.DeviceTaint) bool {
				return fmt.Sprintf("%s:%s", taint.Key, taint.Effect) == withdrawnTaint
			})
			sick := slices.Contains(strings.Split(device.Name, "-")[1:], "2")
			if sick && !closed {
				return fmt.Errorf("%s is offered", device.Name)
			}
			held = held || device.Name == "gpus-0-1-2-3" && closed
		}
		if !held {
			return errors.New("the set that is held is not published any more")
		}
		return nil
	})
	ns.WaitRunning(t, "early")
	ns.Run(t, harness.Pod("four", topoNode, harness.FromTemplate("cards-4")))
	if got := grantedIndices(ns.Granted(t, "four")); !slices.Equal(got, []int{4, 5, 6, 7}) {
		t.Errorf("four more GPUs are %v", got)
	}
	ns.Create(t, harness.Pod("one", topoNode, harness.FromTemplate("cards-1")))
	ns.WaitUnschedulable(t, "one", noRoom)

	// Their set is gone, but each of them can be had again.
	ns.Delete(t, "early")
	ns.WaitRunning(t, "one")
	if got := grantedIndices(ns.Granted(t, "one")); !slices.Equal(got, []int{0}) {
		t.Errorf("one GPU is %v", got)
	}
	ns.Run(t, harness.Pod("two", topoNode, harness.FromTemplate("cards-2")))
	if got := grantedIndices(ns.Granted(t, "two")); !slices.Equal(got, []int{1, 3}) {
		t.Errorf("two GPUs are %v", got)
	}

	repair()
	ns.Delete(t, "one", "two", "four")
	ns.Run(t, harness.Pod("all", topoNode, harness.FromTemplate("cards-8")))
	seesLinkedGPUs(t, ns, "all", machine)
}
