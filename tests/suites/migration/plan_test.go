// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package migration

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// labels are those by which ACK says which GPUs the nodes have.
const labels = "kubectl label nodes n1 n2 aliyun.accelerator/nvidia_count=4 aliyun.accelerator/nvidia_mem=16130MiB"

// plan runs the document's plan, of which no pod's verdict may differ from what comes to pass.
func (r *rehearsal) plan(t *testing.T, b *block) {
	b.ran = true
	// Its exit status says that some would wait.
	command := strings.TrimSpace(b.text)
	r.eventually(t, "! "+command, "3 of 5 pods would find room, 2 would wait", "prod trains n1 gpu-0-share")
	output, err := r.shell(t.Context(), "! "+command+" -o json")
	expect.NoError(t, err)
	if err := json.Unmarshal([]byte(output), &r.planned); err != nil {
		t.Fatalf("%v:\n%s", err, output)
	}
}

// comesToPass compares the plan with the pod that ran through the migration and, created again now
// that it has ended, with all pods, and with what is left of the GPUs.
func (r *rehearsal) comesToPass(t *testing.T, ranOn *corev1.Pod) {
	ns := &harness.Namespace{Cluster: r.Cluster, Name: "prod"}
	r.run(t, &block{text: "kubectl -n prod delete pod trains --now"})
	created, err := r.shell(t.Context(),
		"grep -v nodeName: tests/suites/migration/pods.yaml | kubectl apply -f - 2>&1 || true")
	expect.NoError(t, err)
	for _, pod := range r.planned.Pods {
		if pod.Name == ranOn.Name && pod.Node != ranOn.Spec.NodeName {
			t.Errorf("pod %s ran on %s, planned was %s", pod.Name, ranOn.Spec.NodeName, pod.Node)
		}
		// The policies do not name the container.
		why, refused := strings.CutPrefix(pod.Why, `it would be refused: container "main": `)
		switch {
		case refused && (!strings.Contains(created, why) || strings.Contains(created, "pod/"+pod.Name+" created")):
			t.Errorf("pod %s was to be refused with %q:\n%s", pod.Name, why, created)
		case refused:
		case pod.Node == "":
			ns.WaitUnschedulable(t, pod.Name, "cannot allocate all claims")
		default:
			ns.WaitRunning(t, pod.Name)
			if got := len(ns.ClaimOf(t, pod.Name).Status.Allocation.Devices.Results); got != len(pod.Devices) {
				t.Errorf("pod %s has %d devices, planned were %q", pod.Name, got, pod.Devices)
			}
		}
	}
	left, _ := r.Inspect(t, "-o", "json")
	var now inspect.Table
	expect.NoError(t, json.Unmarshal([]byte(left), &now))
	if got, want := allocated(now.Nodes), allocated(r.planned.Nodes); got != want {
		t.Errorf("%d GiB are allocated, planned were %d", got, want)
	}
	r.run(t, &block{text: "kubectl -n prod delete pods --all --now"})
}

// allocated is how many GiB of the nodes' GPUs are.
func allocated(nodes []inspect.Node) (sum int64) {
	for _, node := range nodes {
		if node.MemoryGiB.Allocated != nil {
			sum += *node.MemoryGiB.Allocated
		}
	}
	return sum
}
