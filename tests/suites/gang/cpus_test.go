// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/cpu"
	"github.com/gpushare/dra-driver-gpushare/tests/suites/docs/commands"
)

// serveCPUs has a driver for CPUs run on a node until the test has ended, and its namespace
// is gone.
func serveCPUs(t *testing.T, node string, cpus map[int64]int64) {
	t.Helper()
	serveCPUsOf(t, node, cpu.Main, cpus)
}

// serveCPUsOf is serveCPUs by a version of the driver.
func serveCPUsOf(t *testing.T, node string, shape cpu.Shape, cpus map[int64]int64) {
	t.Helper()
	data := kubeletplugin.KubeletPluginsDir + "/" + cpu.DriverName
	expect.NoError(t, os.MkdirAll(cluster.NodeFile(node, data), 0o750))
	// The test's context ends before what is cleaned up.
	stop, err := cpu.Start(context.Background(), cluster.Client, cpu.Node{
		Name: node, CPUs: cpus, Shape: shape, Layout: cpu.ByNUMANode, CDIDir: cluster.CDIDir(node), Data: data,
		Plugin:    cluster.Socket(t, node, data, "dra.sock"),
		Registrar: cluster.Socket(t, node, kubeletplugin.KubeletRegistryDir, cpu.DriverName+"-reg.sock"),
	})
	expect.NoError(t, err)
	t.Cleanup(func() {
		stop()
		if err := cluster.Client.ResourceV1().ResourceSlices().DeleteCollection(harness.Context(t), metav1.DeleteOptions{},
			metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorDriver + "=" + cpu.DriverName + "," +
				resourceapi.ResourceSliceSelectorNodeName + "=" + node}); err != nil {
			t.Errorf("remove the ResourceSlices of %s: %v", cpu.DriverName, err)
		}
	})
}

// classOfCPUs makes the driver's DeviceClass. It is for the whole cluster, and changes
// pods with the annotation only.
func classOfCPUs(t *testing.T) (remove func(ctx context.Context) error) {
	t.Helper()
	classes := cluster.Client.ResourceV1().DeviceClasses()
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: cpu.DriverName},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "` + cpu.DriverName + `"`}}}}}
	harness.Make(t, classes, class)
	remove = func(ctx context.Context) error { return classes.Delete(ctx, class.Name, metav1.DeleteOptions{}) }
	t.Cleanup(func() {
		if err := remove(harness.Context(t)); err != nil && !strings.Contains(err.Error(), "not found") {
			t.Errorf("remove DeviceClass %s: %v", class.Name, err)
		}
	})
	return remove
}

// pinned is a pod whose container asks for a CPU of its own, and for these GPUs.
func pinned(name, node, limits string) *corev1.Pod {
	pod := harness.GoingTo(harness.Asking("cpu 1 "+limits), name, node)
	pod.Annotations = map[string]string{ack.AnnotationCPUSet: "true"}
	return pod
}

// devicesOf are what a running pod's claim was allocated. Its container has the variables
// of the driver for CPUs.
func devicesOf(t *testing.T, ns *harness.Namespace, pod string) string {
	t.Helper()
	claim := ns.ClaimOf(t, pod)
	var devices []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		devices = append(devices, result.Device)
	}
	cpus := devices[len(devices)-1]
	if env, err := ns.Exec(t, pod, "c0", "env"); err != nil {
		t.Error(err)
	} else if want := cpu.Variable(claim.UID) + "=" + cpus; !strings.Contains(env, want) {
		t.Errorf("pod %s has no variable %s in\n%s", pod, want, env)
	}
	return strings.Join(devices, " ")
}

// Pods with ACK's annotation have CPUs of the NUMA node of their GPU, and of another where
// that has none; without the driver's DeviceClass they run as all others.
func TestCPUsOfAContainersOwn(t *testing.T) {
	// The GPUs of the one are of NUMA node 0, of the other half are of each.
	serveCPUs(t, "share", map[int64]int64{1: 1})
	serveCPUs(t, "linked", map[int64]int64{1: 1})
	removeClass := classOfCPUs(t)
	ns := cluster.Namespace(t)
	admitted := func(want bool) {
		t.Helper()
		harness.Eventually(t, fmt.Sprintf("the policy to give claims for CPUs: %t", want), func(ctx context.Context) error {
			pod, err := ns.Admitted(ctx, pinned("probe", "share", ""))
			if err == nil && len(pod.Spec.ResourceClaims) > 0 != want {
				err = errors.New("it does not use the DeviceClass yet")
			}
			return err
		})
	}
	admitted(true)

	ns.Run(t, pinned("far", "share", "mem 3"), pinned("near", "linked", "gpu 1"))
	if got, want := devicesOf(t, ns, "far"), "gpu-0-share cpudevnuma001"; got != want {
		t.Errorf("a share was given %s, want %s", got, want)
	}
	near := devicesOf(t, ns, "near")
	if gpu, cpus, _ := strings.Cut(near, " "); cpus != "cpudevnuma001" || !strings.Contains("4567",
		strings.TrimSuffix(strings.TrimPrefix(gpu, "gpu-"), "-topology")) {
		t.Errorf("a GPU was given %s, want one of those of NUMA node 1, and CPUs of it", near)
	}
	ns.SeesItsGPUs(t, "far", "c0", ns.Granted(t, "far"))
	ns.Delete(t, "far", "near")

	ns.Run(t, pinned("alone", "share", ""))
	if got, want := devicesOf(t, ns, "alone"), "cpudevnuma001"; got != want {
		t.Errorf("a pod without a GPU was given %s, want %s", got, want)
	}
	// No driver for CPUs runs on that node.
	ns.Create(t, pinned("waits", "whole", ""))
	ns.WaitPodEvent(t, "waits", "GPUClaimWaiting", "has the 1 exclusive CPUs free")
	ns.Delete(t, "alone", "waits")

	expect.NoError(t, removeClass(t.Context()))
	admitted(false)
	ns.Run(t, pinned("without", "whole", ""))
	ns.WaitPodEvent(t, "without", "GPUCPUsNotGiven", "the cluster has no DeviceClass dra.cpu")
}

// insisting is a pod with the claim that insists on CPUs near its GPU, as docs/internals/legacy-details.md has it.
func insisting(t *testing.T, ns *harness.Namespace, name string) *corev1.Pod {
	t.Helper()
	const page = "docs/internals/legacy-details.md"
	content, err := os.ReadFile(filepath.Join("..", "..", "..", page))
	expect.NoError(t, err)
	for _, block := range commands.Blocks(page, string(content)) {
		if !strings.Contains(block.Text, "metadata: {name: gpu-and-cpus}") {
			continue
		}
		file := filepath.Join(t.TempDir(), "claim.yaml")
		expect.NoError(t, os.WriteFile(file, []byte(block.Text), 0o600))
		ns.MustKubectl(t, "apply", "-f", file)
		pod := harness.Pod(name, "share", harness.FromTemplate("gpu-and-cpus"))
		pod.Spec.Containers[0].Name = "c0"
		return pod
	}
	t.Fatalf("%s has no template gpu-and-cpus", page)
	return nil
}

// What the documents promise of CPUs near GPUs holds with the main branch of dra-driver-cpu. Beside its release 0.2.0,
// whose NUMA nodes cannot be compared with a GPU's, pods wait and are told so, and doctor names the node.
func TestVersionsOfTheDriverForCPUs(t *testing.T) {
	classOfCPUs(t)
	cpus := map[int64]int64{0: 9, 1: 8}
	admitted := func(ns *harness.Namespace) {
		harness.Eventually(t, "the policy to give claims for CPUs", func(ctx context.Context) error {
			pod, err := ns.Admitted(ctx, pinned("probe", "share", ""))
			if err == nil && len(pod.Spec.ResourceClaims) == 0 {
				err = errors.New("it does not use the DeviceClass yet")
			}
			return err
		})
	}
	t.Run("main", func(t *testing.T) {
		serveCPUsOf(t, "share", cpu.Main, cpus)
		ns := cluster.Namespace(t)
		admitted(ns)
		// Two GPUs of one NUMA node are a linked set of it.
		serveCPUsOf(t, "linked", cpu.Main, map[int64]int64{1: 1})
		ns.Run(t, insisting(t, ns, "insists"), pinned("near", "share", "mem 3"), pinned("set", "linked", "gpu 2"))
		for _, pod := range []string{"insists", "near"} {
			if got, want := devicesOf(t, ns, pod), "gpu-0-share cpudevnuma000"; got != want {
				t.Errorf("pod %s was given %s, want %s", pod, got, want)
			}
		}
		if got, want := devicesOf(t, ns, "set"), "gpus-4-7 cpudevnuma001"; got != want {
			t.Errorf("a linked set was given %s, want %s", got, want)
		}
		ns.Delete(t, "insists", "near", "set")
	})
	t.Run("release", func(t *testing.T) {
		serveCPUsOf(t, "share", cpu.Release, cpus)
		ns := cluster.Namespace(t)
		admitted(ns)
		ns.Create(t, insisting(t, ns, "insists"), pinned("near", "share", "mem 3"))
		for _, pod := range []string{"insists", "near"} {
			ns.WaitPodEvent(t, pod, "GPUClaimWaiting", "have no attribute resource.kubernetes.io/numaNode, as with release")
		}
		if said := cluster.InspectStatus(t, "", "doctor"); !strings.Contains(said.Stdout, "node/share: the devices of class "+
			"dra.cpu have no attribute") {
			t.Errorf("doctor does not name node share: %+v", said)
		}
		if said, _ := cluster.Inspect(t, "explain", "-n", ns.Name, "pod/near"); !strings.Contains(said,
			"a dra-driver-cpu of its main branch") {
			t.Errorf("explain does not say what helps:\n%s", said)
		}
		ns.Delete(t, "insists", "near")
	})
}
