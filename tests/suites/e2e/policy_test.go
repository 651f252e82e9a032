// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// amounts is a request for a share with these amounts, given as name, amount, name, …
func amounts(pairs ...string) *resourceapi.ExactDeviceRequest {
	return &resourceapi.ExactDeviceRequest{DeviceClassName: harness.ShareClass, Capacity: harness.Capacities(pairs...)}
}

func asAdmin(request *resourceapi.ExactDeviceRequest) *resourceapi.ExactDeviceRequest {
	request.AdminAccess = ptr.To(true)
	return request
}

func either(first, second *resourceapi.CapacityRequirements) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: "gpu", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "first", DeviceClassName: harness.ShareClass, Capacity: first},
		{Name: "second", DeviceClassName: harness.ShareClass, Capacity: second},
	}}
}

func two(request resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	request.Exactly.AllocationMode, request.Exactly.Count = resourceapi.DeviceAllocationModeExactCount, 2
	return request
}

func TestAmountsOfClaims(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t, harness.AdminAccess)
	otherClass := amounts("memory", "1500Mi")
	otherClass.DeviceClassName = "gpu.example.com"
	modelClass := amounts("memory", "1500Mi")
	modelClass.DeviceClassName = "share.nvidia-a10.gpu.aliyun.com"
	ofModel := func(class string, pairs ...string) resourceapi.DeviceRequest {
		request := amounts(pairs...)
		request.DeviceClassName = class
		return harness.Exactly(request)
	}
	tests := map[string]struct {
		request resourceapi.DeviceRequest
		refused string // what the message says; empty where the claim is taken
	}{
		"whole Gi":          {harness.Exactly(amounts("memory", "3Gi")), ""},
		"the same in bytes": {harness.Exactly(amounts("memory", "3221225472")), ""},
		"the same in Mi":    {harness.Exactly(amounts("memory", "3072Mi")), ""},
		"no amount":         {harness.Exactly(amounts()), ""},
		"no capacity": {
			harness.Exactly(&resourceapi.ExactDeviceRequest{DeviceClassName: harness.ShareClass}), ""},
		"no cores": {harness.Exactly(amounts("memory", "1Gi", "cores", "0")), ""},
		"cores where none are granted": {harness.Exactly(amounts("memory", "1Gi", "cores", "35")),
			"class share.gpu.aliyun.com grants no compute"},
		"memory and cores": {harness.Capped("core-mem", -1, "memory", "1Gi", "cores", "35"), ""},
		"cores without memory": {harness.Capped("core-mem", -1, "cores", "35"), "class core-mem.gpu.aliyun.com " +
			"needs both memory (1Gi, 2Gi, ...) and cores"},
		"memory without cores": {harness.Capped("core-mem", -1, "memory", "1Gi"), "class core-mem.gpu.aliyun.com " +
			"needs both memory (1Gi, 2Gi, ...) and cores"},
		"no percent": {harness.Capped("core-mem", -1, "memory", "1Gi", "cores", "0"),
			"class core-mem.gpu.aliyun.com needs both memory (1Gi, 2Gi, ...) and cores"},
		"neither memory nor cores": {harness.Capped("core-mem", -1), "class core-mem.gpu.aliyun.com needs both memory " +
			"(1Gi, 2Gi, ...) and cores"},
		"seven percent of core-mem": {harness.Capped("core-mem", -1, "memory", "1Gi", "cores", "7"),
			"cores 7 is not a multiple of 5"},
		"101 percent": {harness.Capped("core-mem", -1, "memory", "1Gi", "cores", "101"),
			"cores 101 is not a multiple of 5 from 0 to 100"},
		"two GPUs with MPS": {two(harness.Capped("mps", -1, "memory", "1Gi")),
			"with MPS a request is for one GPU"},
		"two GPUs with cgpu": {two(harness.Capped("cgpu", -1, "memory", "1Gi")), ""},
		"one slot":           {harness.Exactly(amounts("slots", "1")), ""},
		"all of a GPU's slots": {harness.Exactly(amounts("memory", "1Gi", "slots", "20")), "slots 20: a share " +
			"takes one slot of its GPU"},
		"slots of any mode": {ofModel("nvidia-a10.gpu.aliyun.com", "slots", "2"), "slots 2: a share takes one " +
			"slot of its GPU"},
		"slots of an alternative": {either(harness.Capacities("slots", "1"), harness.Capacities("slots", "2")),
			"request gpu/second: slots 2: a share takes one slot"},
		"class of another driver": {harness.Exactly(otherClass), ""},
		"whole GPUs":              {harness.Exclusive("gpu", 2), ""},
		"broken Gi": {harness.Exactly(amounts("memory", "1500Mi")), "request gpu: memory 1500Mi is not " +
			"a whole number of Gi"},
		"bytes that were meant as GiB": {harness.Exactly(amounts("memory", "3")), "memory 3 is not a whole number of Gi"},
		"half of a byte": {harness.Exactly(amounts("memory", "500m")), "memory 500m is not a whole number " +
			"of Gi"},
		"more than an integer holds": {harness.Exactly(amounts("memory", "100E")), "is not a whole number of Gi"},
		"negative memory": {harness.Exactly(amounts("memory", "-1Gi")), "memory -1Gi is not a whole number " +
			"of Gi"},
		"no memory":            {harness.Exactly(amounts("memory", "0")), "memory 0 is not a whole number of Gi"},
		"class of a GPU model": {harness.Exactly(modelClass), "memory 1500Mi is not a whole number of Gi"},
		"core-mem of a GPU model": {ofModel("core-mem.nvidia-a10.gpu.aliyun.com", "memory", "1Gi"),
			"class core-mem.nvidia-a10.gpu.aliyun.com needs both"},
		"whole GPUs of a model": {ofModel("exclusive.nvidia-a10.gpu.aliyun.com", "memory", "1500Mi"), ""},
		"a model in any mode":   {ofModel("nvidia-a10.gpu.aliyun.com", "memory", "3Gi", "cores", "35"), ""},
		"any mode, broken Gi": {ofModel("nvidia-a10.gpu.aliyun.com", "memory", "3"),
			"memory 3 is not a whole number of Gi"},
		"any mode, seven percent": {ofModel("nvidia-a10.gpu.aliyun.com", "memory", "1Gi", "cores", "7"),
			"cores 7 is not a multiple of 5"},
		"seven percent":  {harness.Exactly(amounts("cores", "7")), "cores 7 is not a multiple of 5"},
		"half a percent": {harness.Exactly(amounts("cores", "500m")), "cores 500m is not a multiple of 5"},
		"negative cores": {harness.Exactly(amounts("cores", "-5")), "cores -5 is not a multiple of 5"},
		"more than a GPU's cores": {harness.Exactly(amounts("cores", "105")), "cores 105 is not a multiple of 5 from " +
			"0 to 100"},
		"no slots": {harness.Exactly(amounts("slots", "0")),
			"slots 0: a share takes one slot of its GPU"},
		"negative slots": {harness.Exactly(amounts("slots", "-1")), "slots -1: a share takes one slot of " +
			"its GPU"},
		"alternatives": {either(harness.Capacities("memory", "3Gi"), harness.Capacities("memory", "2Gi")),
			""},
		"bad second alternative": {either(harness.Capacities("memory", "3Gi"), harness.Capacities("memory", "1500Mi")),
			"request gpu/second: memory 1500Mi is not"},
		"bad cores of an alternative": {either(harness.Capacities("cores", "7"), nil), "request gpu/first: cores 7 is not"},
		"admin who takes nothing":     {harness.Exactly(asAdmin(amounts("memory", "0", "slots", "0"))), ""},
		"admin who takes slots": {harness.Exactly(asAdmin(amounts("slots", "2"))), "slots 2: a share takes one " +
			"slot of its GPU"},
		"admin who takes broken Gi": {harness.Exactly(asAdmin(amounts("memory", "1500Mi"))), "memory 1500Mi is not a " +
			"whole number of Gi"},
		"admin who takes less": {harness.Exactly(asAdmin(amounts("memory", "-1Gi"))), "memory -1Gi is not a whole " +
			"number of Gi"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			spec := harness.Requests(test.request)
			harness.CheckRefusal(t, "claim", test.refused, createClaim(t.Context(), ns, spec))
			harness.CheckRefusal(t, "template", test.refused, createTemplate(t.Context(), ns, spec))
		})
	}
}

func createClaim(ctx context.Context, ns *harness.Namespace, spec resourceapi.ResourceClaimSpec) error {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: spec}
	_, err := ns.Client.ResourceV1().ResourceClaims(ns.Name).Create(ctx, claim,
		metav1.CreateOptions{DryRun: harness.DryRun})
	return err
}

func createTemplate(ctx context.Context, ns *harness.Namespace, spec resourceapi.ResourceClaimSpec) error {
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}}
	_, err := ns.Client.ResourceV1().ResourceClaimTemplates(ns.Name).Create(ctx, template,
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
	create := func(client kubernetes.Interface, node, driver, pool string) error {
		spec := resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1},
		}
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
	harness.CheckRefusal(t, "a slice for its own node", "", create(stolen, "mixed", ours, "mixed/gpu"))
	harness.CheckRefusal(t, "an update of its own slice", "", update(own))
	harness.CheckRefusal(t, "the removal of its own slice", "", remove(own))
	harness.CheckRefusal(t, "a slice for another node", refused, create(stolen, "whole", ours, "whole/gpu"))
	harness.CheckRefusal(t, "a slice of another driver", refused, create(stolen, "mixed", "gpu.example.com", "mixed/gpu"))
	harness.CheckRefusal(t, "an update of another node's slice", refused, update(other))
	harness.CheckRefusal(t, "the removal of another node's slice", refused, remove(other))

	// The scheduler counts by pool and device, whatever node a slice is of.
	const ownPool = "may only write ResourceSlices of pool mixed/gpu, not "
	harness.CheckRefusal(t, "a slice in another node's pool", ownPool+"whole/gpu",
		create(stolen, "mixed", ours, "whole/gpu"))
	harness.CheckRefusal(t, "a slice in a pool of its own making", ownPool+"mixed/e2e",
		create(stolen, "mixed", ours, "mixed/e2e"))

	// Of one number there is one slice, of those that the pool says; a dry run stores none, and may have any name.
	if own.Name != "00000-gpu.aliyun.com-mixed" {
		t.Errorf("the node's slice is called %s", own.Name)
	}
	for _, name := range []string{"e2e-", "00001-gpu.aliyun.com-mixed-"} {
		slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: name}, Spec: own.Spec}
		_, err := slices.Create(ctx, slice, metav1.CreateOptions{})
		harness.CheckRefusal(t, "a slice more than the pool has", "numbered from 00000-gpu.aliyun.com-mixed on: not ", err)
	}

	nowhere := cluster.ClientOf(t, harness.PluginNamespace, "gpu-kubelet-plugin", nil)
	harness.CheckRefusal(t, "a slice written with a token of no pod", "names no node",
		create(nowhere, "mixed", ours, "mixed/gpu"))
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

// Where an administrator says so, a tenant does not lift the limits of its shares.
func TestTenantKeepsItsLimits(t *testing.T) {
	t.Parallel()
	for label, refused := range map[string][2]string{
		"": {},
		"false": {"sets CGPU_DISABLE, which switches off the limits of shares",
			"disableIsolation switches off the limits of shares"},
	} {
		ns := cluster.Namespace(t, func(n *corev1.Namespace) {
			if label != "" {
				n.Labels = map[string]string{"gpu.aliyun.com/lift-limits": label}
			}
		})
		tenant := ns.Tenant(t)
		pod := harness.Asking("mem 1")
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "CGPU_DISABLE", Value: "true"}}
		_, err := tenant.CoreV1().Pods(ns.Name).Create(t.Context(), pod, metav1.CreateOptions{DryRun: harness.DryRun})
		harness.CheckRefusal(t, "a pod with CGPU_DISABLE", refused[0], err)

		spec := harness.Requests(harness.Share("gpu", "1Gi"))
		spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{
			{DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: "gpu.aliyun.com", Parameters: runtime.RawExtension{Raw: []byte(
					`{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig","disableIsolation":true}`)},
			}}}}
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: spec}
		_, err = tenant.ResourceV1().ResourceClaims(ns.Name).Create(t.Context(), claim,
			metav1.CreateOptions{DryRun: harness.DryRun})
		harness.CheckRefusal(t, "a claim with disableIsolation", refused[1], err)
		template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: "t"},
			Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec}}
		_, err = tenant.ResourceV1().ResourceClaimTemplates(ns.Name).Create(t.Context(), template,
			metav1.CreateOptions{DryRun: harness.DryRun})
		harness.CheckRefusal(t, "a template with disableIsolation", refused[1], err)
	}
}
