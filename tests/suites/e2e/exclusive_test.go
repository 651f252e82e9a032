// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

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
