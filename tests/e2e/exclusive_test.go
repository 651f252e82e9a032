//go:build e2e

package e2e

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/dra-driver-gpushare/tests/e2e/harness"
)

func TestExclusivePodsGetCardsOfTheirOwn(t *testing.T) {
	t.Parallel()
	cluster.Share(t, "whole")
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Exclusive("card", 1)))
	ns.Template(t, "two", harness.Requests(harness.Exclusive("cards", 2)))
	ns.Run(t,
		harness.Pod("a", "whole", harness.FromTemplate("one")),
		harness.Pod("b", "whole", harness.FromTemplate("one")),
		harness.Pod("c", "whole", harness.FromTemplate("two")),
	)

	holder := map[string]string{}
	for pod, want := range map[string]int{"a": 1, "b": 1, "c": 2} {
		grants := ns.Granted(t, pod)
		if len(grants) != want {
			t.Errorf("pod %s was granted %d cards, want %d", pod, len(grants), want)
		}
		for _, grant := range grants {
			if other := holder[grant.Card.UUID]; other != "" {
				t.Errorf("card %d went to pod %s and to pod %s", grant.Card.Index, other, pod)
			}
			holder[grant.Card.UUID] = pod
		}
		seesItsCards(t, ns, pod, "main", grants)
		if diff := cmp.Diff(map[string]string{"NVIDIA_VISIBLE_DEVICES": "void"}, ns.GPUEnv(t, pod, "main")); diff != "" {
			t.Errorf("environment of pod %s (-want +got):\n%s", pod, diff)
		}
	}
}

// seesItsCards checks that a container has the device nodes of the granted cards
// and of no others.
func seesItsCards(t *testing.T, ns *harness.Namespace, pod, container string, grants []harness.Grant) {
	t.Helper()
	want := map[string]bool{}
	for _, grant := range grants {
		want[grant.Card.DevicePath()] = true
	}
	got := map[string]bool{}
	for _, path := range ns.CardNodes(t, pod, container) {
		got[path] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("device nodes of cards in %s/%s (-want +got):\n%s", pod, container, diff)
	}
}
