// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package gang

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// asClaims has limits of nvidia.com/gpu become claims until the test has ended.
func asClaims(t *testing.T, ns *harness.Namespace) {
	t.Helper()
	converted := func(want bool) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			pod, err := ns.Admitted(ctx, harness.Asking("nvidia.com/gpu 1"))
			if err == nil && len(pod.Spec.ResourceClaims) > 0 != want {
				err = fmt.Errorf("a pod has the claims %v", pod.Spec.ResourceClaims)
			}
			return err
		}
	}
	t.Cleanup(func() { harness.Eventually(t, "pods to be given no claims", converted(false)) })
	ns.Option(t, "nvidia-gpu-claims")
	harness.Eventually(t, "pods to be given claims", converted(true))
}

// With the option a pod that asks for nvidia.com/gpu has a claim from its creation on, which
// the cluster autoscaler can read, and gets what it would get without; so does a gang.
func TestNVIDIAGPUsAsClaims(t *testing.T) {
	ns := cluster.Namespace(t)
	asClaims(t, ns)

	// Two containers with GPUs of their own; the init container saw those of the second.
	manifest := filepath.Join(t.TempDir(), "pod.yaml")
	apply := func(number string) (string, error) {
		content := strings.ReplaceAll(asksForGPUs, "NUMBER", number)
		expect.NoError(t, os.WriteFile(manifest, []byte(content), 0o600))
		return ns.Kubectl(t, "apply", "-f", manifest)
	}
	for range 2 {
		_, err := apply("2")
		expect.NoError(t, err)
	}
	ns.WaitRunning(t, "p")
	if output, err := apply("1"); err == nil || !strings.Contains(output, "pod updates may not change fields") {
		t.Errorf("the number was changed: %v\n%s", err, output)
	}
	pod := ns.Get(t, "p")
	if pod.Status.ExtendedResourceClaimStatus != nil || len(pod.Status.ResourceClaimStatuses) != 1 {
		t.Errorf("its claims are %v, and of the scheduler's own making %v", pod.Status.ResourceClaimStatuses,
			pod.Status.ExtendedResourceClaimStatus)
	}
	grants := ns.Granted(t, "p")
	if len(grants) != 3 {
		t.Fatalf("granted %+v, want three GPUs", grants)
	}
	// The request for more GPUs comes first.
	ns.SeesItsGPUs(t, "p", "b", grants[:2])
	ns.SeesItsGPUs(t, "p", "a", grants[2:])
	ns.Delete(t, "p")

	// Five pods for four GPUs: as a gang of five they wait, with claims, and hold nothing.
	five := members("five", 5, 5, "whole", "nvidia.com/gpu 1")
	ns.Create(t, five...)
	waitsWhole(t, ns, "five-", "five-0")
	harness.Eventually(t, "the pods that wait to have claims", func(ctx context.Context) error {
		claims, err := ns.Client.ResourceV1().ResourceClaims(ns.Name).List(ctx, metav1.ListOptions{})
		if err == nil && len(claims.Items) != len(five) {
			err = fmt.Errorf("there are %d", len(claims.Items))
		}
		return err
	})
	ns.Delete(t, names(five)...)
	four := members("four", 4, 4, "whole", "nvidia.com/gpu 1")
	ns.Create(t, four...)
	waitRuns(t, ns, "four-", 4)

	// Who opted out is served as without the option.
	ns.Delete(t, "four-0", "four-1", "four-2", "four-3")
	out := harness.Labelled(harness.GoingTo(harness.Asking("nvidia.com/gpu 1"), "out", "whole"),
		"gpu.aliyun.com/legacy", "false")
	ns.Run(t, out)
	stored := ns.Get(t, "out")
	if stored.Status.ExtendedResourceClaimStatus == nil || len(stored.Spec.ResourceClaims) > 0 {
		t.Errorf("a pod that opted out has %v", stored.Spec.ResourceClaims)
	}
	ns.SeesItsGPUs(t, "out", "c0", ns.Granted(t, "out"))
}

const asksForGPUs = `apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  schedulerName: ack-co-scheduler
  nodeSelector: {kubernetes.io/hostname: whole}
  terminationGracePeriodSeconds: 0
  initContainers:
  - name: warm-up
    image: localhost/gpu-probe:latest
    imagePullPolicy: Never
    args: [devices]
    resources: {limits: {nvidia.com/gpu: 2}}
  containers:
  - name: a
    image: localhost/gpu-probe:latest
    imagePullPolicy: Never
    resources: {limits: {nvidia.com/gpu: 1}}
  - name: b
    image: localhost/gpu-probe:latest
    imagePullPolicy: Never
    resources: {limits: {nvidia.com/gpu: NUMBER}}
`
