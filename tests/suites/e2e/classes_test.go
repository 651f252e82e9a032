// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// A node with a model of its own joins the cluster, and leaves it.
func TestClassesComeAndGoWithANode(t *testing.T) {
	t.Parallel()
	const guest = "guest"
	cluster.Whole(t, guest)
	ns := cluster.Namespace(t)
	usual, err := os.ReadFile("../../../demo/machines/t4x1.yaml")
	expect.NoError(t, err)
	machine := filepath.Join(t.TempDir(), "machine.yaml")
	expect.NoError(t, os.WriteFile(machine, bytes.ReplaceAll(usual, []byte("Tesla T4"), []byte("E2E Guest")), 0o600))
	leave := cluster.AddNode(t, guest, machine, "share")
	cluster.IsLabelled(t, guest, "E2E-Guest 15360MiB 1")
	classComes(t, "e2e-guest")
	classComes(t, "share.e2e-guest")
	ns.Template(t, "names-it", harness.Requests(harness.OfClass("share.e2e-guest")))
	ns.Claim(t, "any-mode", harness.Requests(harness.OfClass("e2e-guest")))
	ns.Run(t, harness.Pod("a", "", harness.FromClaim("any-mode"), selecting(harness.NameLabel, "E2E-Guest")))
	if grants := ns.Granted(t, "a"); len(grants) != 1 || grants[0].GPU.Node != guest ||
		grants[0].GPU.Model != "E2E-Guest" {
		t.Errorf("granted %+v, want a GPU of node %s", grants, guest)
	}
	ns.Delete(t, "a")
	expect.NoError(t, ns.Client.ResourceV1().ResourceClaims(ns.Name).Delete(t.Context(), "any-mode",
		metav1.DeleteOptions{}))
	harness.Eventually(t, "the claim to be gone", ns.CheckNothingLeft)

	leave()
	classGoes(t, "e2e-guest")
	if _, err := class(t.Context(), "share.e2e-guest"); err != nil {
		t.Errorf("the class that a template names: %v", err)
	}
	expect.NoError(t, ns.Client.ResourceV1().ResourceClaimTemplates(ns.Name).Delete(t.Context(), "names-it",
		metav1.DeleteOptions{}))
	classGoes(t, "share.e2e-guest")
}

// Classes that are printed, kept in a repository and applied over those that the
// controller made are the repository's from then on.
func TestPrintedClassesTakeOverTheControllers(t *testing.T) {
	t.Parallel()
	cluster.Share(t, v1alpha1.ControllerName)
	ns := cluster.Namespace(t)
	for name, flags := range map[string][]string{"by the client": nil,
		"by the server": {"--server-side", "--force-conflicts"}} {
		t.Run(name, func(t *testing.T) {
			kept, other := uniqueModel(), uniqueModel()
			keptGoes, otherGoes := gpuAppears(t, kept, kept), gpuAppears(t, other, other)
			for _, model := range []string{kept, other} {
				classComes(t, model)
				classComes(t, "exclusive."+model)
			}
			// In the controller's pod it would take a kubelet, which another test may have ended.
			command := exec.CommandContext(t.Context(), "go", "run", "../../../cmd/gpu-compat-controller", "classes",
				"--model", kept, "--mode", "exclusive")
			var refused strings.Builder
			command.Stderr = &refused
			printed, err := command.Output()
			if err != nil {
				t.Fatalf("print the classes: %v\n%s", err, refused.String())
			}
			file := filepath.Join(t.TempDir(), "classes.yaml")
			// What the repository says further, the controller would undo in a class of its own.
			expect.NoError(t, os.WriteFile(file,
				bytes.ReplaceAll(printed, []byte("GPUs of the model"), []byte("From the repository, GPUs of the model")),
				0o600))
			t.Cleanup(func() { deleteClasses(t, kept, "exclusive."+kept) })
			ns.MustKubectl(t, append([]string{"apply", "-f", file}, flags...)...)
			// The other model's class goes last: what holds then is not just late.
			keptGoes()
			otherGoes()
			classGoes(t, other)
			classGoes(t, "exclusive."+other)
			for _, name := range []string{kept, "exclusive." + kept} {
				got, err := class(t.Context(), name)
				if err != nil {
					t.Errorf("the class that was applied: %v", err)
					continue
				}
				if text := got.Annotations["gpu.aliyun.com/description"]; !strings.HasPrefix(text, "From the repository") ||
					got.Labels["app.kubernetes.io/managed-by"] != "gitops" {
					t.Errorf("the class that was applied has the labels %v and the description %q", got.Labels, text)
				}
			}
		})
	}
}

func deleteClasses(t *testing.T, names ...string) {
	t.Helper()
	classes := cluster.Client.ResourceV1().DeviceClasses()
	for _, name := range names {
		err := classes.Delete(harness.Context(t), name+".gpu.aliyun.com", metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
}

// A claim by model alone says no compute, which one in mode core_mem has to.
func TestClassWithoutAModeLeavesOutCoreMem(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	setMode := cluster.Label(t, "switch", modeLabel)
	ns := cluster.Namespace(t)
	setMode("core_mem")
	cluster.Publishes(t, "switch", "gpu-0-core-mem")
	classComes(t, "tesla-t4")
	classComes(t, "core-mem.tesla-t4")
	ns.Template(t, "nothing", harness.Requests(harness.OfClass("tesla-t4")))
	ns.Template(t, "memory", harness.Requests(harness.Capped("tesla-t4", -1, "memory", "4Gi")))
	ns.Template(t, "both", harness.Requests(harness.Capped("core-mem.tesla-t4", -1, "memory", "4Gi", "cores", "25")))
	ns.Create(t, harness.Pod("nothing", "switch", harness.FromTemplate("nothing")),
		harness.Pod("memory", "switch", harness.FromTemplate("memory")))
	ns.WaitUnschedulable(t, "nothing", noRoom)
	ns.WaitUnschedulable(t, "memory", noRoom)
	ns.Run(t, harness.Pod("both", "switch", harness.FromTemplate("both")))
	ns.Delete(t, "both")

	setMode("share")
	cluster.Publishes(t, "switch", "gpu-0-share")
	for pod, units := range map[string]int64{"nothing": 1, "memory": 4} {
		ns.WaitRunning(t, pod)
		ns.HasEnv(t, pod, "main", harness.LegacyEnv(int(units), 15, int(units), 0))
	}
}

// gpuAppears makes the slice of a node that is not there, with one GPU of a model,
// until the returned function is called or the test ends.
func gpuAppears(t *testing.T, node, model string) (goes func()) {
	t.Helper()
	client := cluster.Client.ResourceV1().ResourceSlices()
	slice, err := client.Create(t.Context(), &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-models-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: "gpu.aliyun.com", NodeName: &node,
			Pool: resourceapi.ResourcePool{Name: node + "/gpu", Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"index": {IntValue: ptr.To(int64(0))}, "memoryMiB": {IntValue: ptr.To(int64(1024))},
				"model": {StringValue: &model}, "mode": {StringValue: ptr.To("exclusive")},
			}}},
		},
	}, metav1.CreateOptions{})
	expect.NoError(t, err)
	goes = sync.OnceFunc(func() {
		if err := client.Delete(harness.Context(t), slice.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(goes)
	return goes
}

// uniqueModel is a model that no other GPU has, in lower case.
func uniqueModel() string { return fmt.Sprintf("e2e-%x", time.Now().UnixNano()) }
