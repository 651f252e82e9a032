// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// amounts is a request for a share with these amounts, given as name, amount, name, …
func amounts(pairs ...string) *resourceapi.ExactDeviceRequest {
	return &resourceapi.ExactDeviceRequest{DeviceClassName: harness.ShareClass, Capacity: harness.Capacities(pairs...)}
}

func createClaim(ctx context.Context, ns *harness.Namespace, spec resourceapi.ResourceClaimSpec) error {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: spec}
	_, err := ns.Client.ResourceV1().ResourceClaims(ns.Name).Create(ctx, claim,
		metav1.CreateOptions{DryRun: harness.DryRun})
	return err
}

// The module tests/policies tests what else the policy refuses.
func TestPluginWritesSlicesOfItsOwnNodeOnly(t *testing.T) {
	t.Parallel()
	// Nobody else changes their slices meanwhile.
	for _, node := range []string{"mixed", "whole"} {
		cluster.Share(t, node)
	}
	ctx := t.Context()
	stolen := cluster.ClientOf(t, harness.PluginNamespace, "gpu-kubelet-plugin", cluster.Plugin(t, "mixed"))
	published := func(*resourceapi.ResourceSlice) error { return nil }
	own, other := cluster.Slice(t, "mixed", "is there", published), cluster.Slice(t, "whole", "is there", published)
	const refused = "gpu-kubelet-plugin on node mixed may only write ResourceSlices of driver gpu.aliyun.com for that node"

	slices := stolen.ResourceV1().ResourceSlices()
	create := func(client kubernetes.Interface, node, driver string) error {
		spec := resourceapi.ResourceSliceSpec{Driver: driver, NodeName: &node,
			Pool: resourceapi.ResourcePool{Name: node + "/gpu", Generation: 1, ResourceSliceCount: 1}}
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}, Spec: spec}
		_, err := client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{DryRun: harness.DryRun})
		return err
	}
	update := func(slice *resourceapi.ResourceSlice) error {
		changed := slice.DeepCopy()
		changed.Spec.Devices = nil
		_, err := slices.Update(ctx, changed, metav1.UpdateOptions{DryRun: harness.DryRun})
		return err
	}
	remove := func(slice *resourceapi.ResourceSlice) error {
		return slices.Delete(ctx, slice.Name, metav1.DeleteOptions{DryRun: harness.DryRun})
	}

	const ours = "gpu.aliyun.com"
	harness.CheckRefusal(t, "a slice for its own node", "", create(stolen, "mixed", ours))
	harness.CheckRefusal(t, "an update of its own slice", "", update(own))
	harness.CheckRefusal(t, "the removal of its own slice", "", remove(own))
	harness.CheckRefusal(t, "a slice for another node", refused, create(stolen, "whole", ours))
	harness.CheckRefusal(t, "a slice of another driver", refused, create(stolen, "mixed", "gpu.example.com"))
	harness.CheckRefusal(t, "an update of another node's slice", refused, update(other))
	harness.CheckRefusal(t, "the removal of another node's slice", refused, remove(other))

	nowhere := cluster.ClientOf(t, harness.PluginNamespace, "gpu-kubelet-plugin", nil)
	harness.CheckRefusal(t, "a slice written with a token of no pod", "names no node", create(nowhere, "mixed", ours))
}

// A tenant whose quota and bound allow a share of 1Gi does not close a GPU with it, by
// whatever class.
func TestTenantTakesOneSlotOfAGPU(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "share")
	ns := cluster.Namespace(t)
	tenant := ns.Tenant(t)
	create := func(name string, request resourceapi.DeviceRequest) error {
		template := &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: harness.Requests(request)},
		}
		_, err := tenant.ResourceV1().ResourceClaimTemplates(ns.Name).Create(t.Context(), template, metav1.CreateOptions{})
		return err
	}
	all := harness.Exactly(amounts("memory", "1Gi", "slots", "20"))
	harness.CheckRefusal(t, "a template for all slots", "slots 20: a share takes one slot of its GPU", create("all", all))

	// The policy does not know the classes that an administrator made.
	all.Exactly.DeviceClassName = ns.DeviceClass(t,
		resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.aliyun.com" && device.attributes["gpu.aliyun.com"].mode == "share"`,
		}}}})
	harness.CheckRefusal(t, "a template of another class", "", create("own", all))
	harness.Make(t, tenant.CoreV1().Pods(ns.Name), harness.Pod("p", "share", harness.FromTemplate("own")))
	ns.IsTold(t, "p", "request gpu: 20 of slots asked for; a share takes one slot of its GPU")
}
