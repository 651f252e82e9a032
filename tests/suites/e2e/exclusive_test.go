// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

func TestExclusivePodsGetGPUsOfTheirOwn(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "whole")
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Exclusive("card", 1)))
	ns.Template(t, "two", harness.Requests(harness.Exclusive("cards", 2)))
	ns.Run(t,
		harness.Pod("a", "whole", harness.FromTemplate("one")),
		harness.Pod("b", "whole", harness.FromTemplate("one")),
		harness.Pod("c", "whole", harness.FromTemplate("two")),
	)

	haveGPUsOfTheirOwn(t, ns, map[string]int{"a": 1, "b": 1, "c": 2})
}

func TestPlainResourceLimitIsAWholeGPU(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "whole")
	ns := cluster.Namespace(t)
	ns.Run(t,
		harness.Pod("a", "whole", harness.Limit("nvidia.com/gpu", "1")),
		harness.Pod("b", "whole", harness.Limit("nvidia.com/gpu", "2")),
	)

	haveGPUsOfTheirOwn(t, ns, map[string]int{"a": 1, "b": 2})
}

// haveGPUsOfTheirOwn checks that each pod has so many whole GPUs, that no other
// has, and sees these and no others.
func haveGPUsOfTheirOwn(t *testing.T, ns *harness.Namespace, counts map[string]int) {
	t.Helper()
	holder := map[string]string{}
	for pod, want := range counts {
		grants := ns.Granted(t, pod)
		if len(grants) != want {
			t.Errorf("pod %s was granted %d GPUs, want %d", pod, len(grants), want)
		}
		for _, grant := range grants {
			if other := holder[grant.GPU.UUID]; other != "" {
				t.Errorf("GPU %d went to pod %s and to pod %s", grant.GPU.Index, other, pod)
			}
			holder[grant.GPU.UUID] = pod
		}
		ns.SeesItsGPUs(t, pod, "main", grants)
		ns.KnowsItsGPUs(t, pod, "main", grants)
		ns.HasEnv(t, pod, "main", map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"})
	}
}

// A privileged container sees all GPUs of its node, and its programs begin with GPU 0, which may be a neighbour's.
func TestPrivilegedContainersKnowWhichGPUsAreTheirOwn(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "whole")
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Exclusive("card", 1)))
	privileged := func(pod *corev1.Pod) {
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
	}
	ns.Run(t, harness.Pod("neighbour", "whole", harness.FromTemplate("one")))
	ns.Run(t, harness.Pod("limit", "whole", harness.Limit("nvidia.com/gpu", "2"), privileged),
		harness.Pod("claim", "whole", harness.FromTemplate("one"), privileged))
	for _, pod := range []string{"limit", "claim"} {
		ns.KnowsItsGPUs(t, pod, "main", ns.Granted(t, pod))
	}
}
