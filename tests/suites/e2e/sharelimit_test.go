// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// limitedTo is a namespace with the label that the option share-limit reads.
func limitedTo(t *testing.T, gib string) *harness.Namespace {
	t.Helper()
	return cluster.Namespace(t, harness.AdminAccess,
		func(n *corev1.Namespace) { n.Labels["gpu.aliyun.com/max-share-gib"] = gib })
}

// The option is for namespaces with its label, so that other tests do not meet it.
func TestOptionShareLimit(t *testing.T) {
	t.Parallel()
	ns, broken, others := limitedTo(t, "8"), limitedTo(t, "8Gi"), cluster.Namespace(t)
	option := filepath.Join("..", "..", "..", "deployments", "options", "share-limit")
	if output, err := ns.Kubectl(t, "apply", "-k", option); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	harness.Eventually(t, "the option to refuse", func(ctx context.Context) error {
		if createClaim(ctx, ns, harness.Requests(harness.Exactly(amounts("memory", "9Gi")))) == nil {
			return errors.New("a share of 9Gi is taken")
		}
		return nil
	})
	otherDriver := amounts("memory", "80Gi")
	otherDriver.DeviceClassName = "gpu.example.com"
	for name, test := range map[string]struct {
		request resourceapi.DeviceRequest
		refused string
	}{
		"as much as allowed": {harness.Exactly(amounts("memory", "8Gi")), ""},
		"of two GPUs":        {two(harness.Exactly(amounts("memory", "8Gi"))), ""},
		"no amount":          {harness.Exactly(amounts()), ""},
		"whole GPUs":         {harness.Exclusive("gpu", 2), ""},
		"another driver":     {harness.Exactly(otherDriver), ""},
		"an administrator":   {harness.Exactly(asAdmin(amounts("memory", "80Gi"))), ""},
		"more": {harness.Exactly(amounts("memory", "9Gi")), "request gpu asks for 9Gi of a GPU, and " +
			"namespace " + ns.Name + " is allowed shares of 8Gi at most"},
		"more, in Mi": {harness.Exactly(amounts("memory", "9216Mi")), "request gpu asks for 9Gi of a GPU"},
		"more with compute": {harness.Capped("core-mem", -1, "memory", "10Gi", "cores", "35"),
			"request gpu asks for 10Gi of a GPU"},
		"more, or else allowed": {either(harness.Capacities("memory", "16Gi"), harness.Capacities("memory", "8Gi")),
			"request gpu/first asks for 16Gi of a GPU"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := harness.Requests(test.request)
			harness.CheckRefusal(t, "claim", test.refused, createClaim(t.Context(), ns, spec))
			harness.CheckRefusal(t, "template", test.refused, createTemplate(t.Context(), ns, spec))
		})
	}
	ownTemplate := func(name string) *corev1.Pod {
		return harness.Pod("p", "any", harness.FromTemplate(name))
	}
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		refused string
	}{
		"as much as allowed": {harness.Asking("mem 8", "mem 8"), ""},
		"of two GPUs":        {harness.Labelled(harness.Asking("mem 16"), ack.PodLabelCount, "2"), ""},
		"cards":              {harness.Asking("gpu 4"), ""},
		"nothing":            {harness.Asking("cpu 1"), ""},
		"a template's own":   {ownTemplate("gpushare.mem"), ""},
		"more": {harness.Asking("mem 3", "mem 9"), "container c1 asks for aliyun.com/gpu-mem 9, and " +
			"namespace " + ns.Name + " is allowed shares of 8 GiB of a GPU at most"},
		"more with compute": {harness.Asking("mem 9 core 30"), "container c0 asks for aliyun.com/gpu-mem 9, and"},
		"more of two GPUs": {harness.Labelled(harness.Asking("mem 18"), ack.PodLabelCount, "2"), "container c0 asks " +
			"for aliyun.com/gpu-mem 18 of 2 GPUs, and"},
		"more of a whole GPU": {harness.Labelled(harness.Asking("mem 15"), ack.PodLabelPlacement, ack.RequireWholeDevice),
			"container c0 asks for aliyun.com/gpu-mem 15, and"},
		"more by its template": {ownTemplate("gpushare.mem-x2-whole.main.18"), "container main asks for " +
			"aliyun.com/gpu-mem 18 of 2 GPUs, and"},
	} {
		t.Run("a pod: "+name, func(t *testing.T) {
			_, err := ns.Admitted(t.Context(), test.pod)
			harness.CheckRefusal(t, "pod", test.refused, err)
		})
	}
	harness.CheckRefusal(t, "claim", `the label gpu.aliyun.com/max-share-gib: "8Gi" of namespace `+broken.Name+
		" is not a whole number of GiB",
		createClaim(t.Context(), broken, harness.Requests(harness.Exactly(amounts("memory", "1Gi")))))
	_, err := broken.Admitted(t.Context(), harness.Asking("cpu 1"))
	harness.CheckRefusal(t, "pod without a GPU", "", err)
	harness.CheckRefusal(t, "claim", "", createClaim(t.Context(), others, harness.Requests(harness.Exactly(amounts(
		"memory", "80Gi")))))
}
