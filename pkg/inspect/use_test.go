// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// used is a cluster of two nodes with two T4 each, of one of which it is known what is used.
func used() inspect.Input {
	in := inspect.Input{Nodes: []*corev1.Node{node("n1", "10.0.0.1"), node("n2", "10.0.0.2")}}
	for _, name := range []string{"n1", "n2"} {
		in.Slices = append(in.Slices, publish(name, mode.Share, newGPUs(2, "Tesla-T4", 15360)...)...)
		in.Claims = append(in.Claims, claim("team/a-"+name, name+" gpu-0-share 3"),
			claim("team/b-"+name, name+" gpu-0-share 6", name+" gpu-1-share 2"))
	}
	in.Used = map[string]inspect.NodeUse{"n1": {
		GPUs: map[int]int64{0: 5 << 30, 1: 1 << 29},
		Claims: map[inspect.ClaimOn]int64{
			{Namespace: "team", Claim: "a-n1-gpu-x7k2p", GPU: 0}: 1 << 30,
			{Namespace: "team", Claim: "b-n1-gpu-x7k2p", GPU: 0}: 7 << 29,
		},
		Peaks: map[inspect.ClaimOn]int64{{Namespace: "team", Claim: "a-n1-gpu-x7k2p", GPU: 0}: 2 << 30},
	}}
	return in
}

func TestUseStandsBesideGrants(t *testing.T) {
	for name, test := range map[string]struct{ got, want string }{
		"summary": {summary(used(), inspect.Style{}), `
NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)  USED(GiB)
n1    10.0.0.1   9/15                   2/15                   11/30            5.5
n2    10.0.0.2   9/15                   2/15                   11/30            -
`},
		"summary by GPU": {summary(used(), inspect.Style{Width: 60}), `
NAME  GPU   GPU Memory(GiB)  USED(GiB)
n1    GPU0  9/15             5.0
      GPU1  2/15             0.5
      all   11/30            5.5
n2    GPU0  9/15             -
      GPU1  2/15             -
      all   11/30            -
`},
		"details": {details(used(), inspect.Style{}), `
NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  GPU0(Used)  GPU1(Used)
a-n1         team       3                0                1.0         0
b-n1         team       6                2                3.5         0.0
`},
		"details of a node that is not known": {details(used(), inspect.Style{}), `
a-n2         team       3                0                -           0
b-n2         team       6                2                -           -
`},
		"details by GPU": {details(used(), inspect.Style{Width: 60}), `
NAME         NAMESPACE  GPU   GPU Memory(GiB)  USED(GiB)
a-n1         team       GPU0  3                1.0
b-n1         team       GPU0  6                3.5
                        GPU1  2                0.0
`},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Says(t, "\n"+trimmed(test.got), test.want)
		})
	}
	data, err := json.Marshal(inspect.New(used()))
	expect.NoError(t, err)
	var table inspect.Table
	expect.NoError(t, json.Unmarshal(data, &table))
	n1, n2 := table.Nodes[0], table.Nodes[1]
	if *n1.GPUs[0].UsedMiB != 5120 || *n1.Holders[0].Shares[0].UsedMiB != 1024 || n2.GPUs[0].UsedMiB != nil ||
		n2.Holders[0].Shares[0].UsedMiB != nil || n2.Holders[0].Shares[0].PeakMiB != nil {
		t.Errorf("JSON is\n%s", data)
	}
}

// The peak is that of the plugin's metrics. Where it has none yet, it is what is used now.
func TestPeaks(t *testing.T) {
	holders := inspect.New(used()).Nodes[0].Holders
	if a, b := *holders[0].Shares[0].PeakMiB, *holders[1].Shares[0].PeakMiB; a != 2048 || b != 3584 {
		t.Errorf("the peaks are %d and %d MiB, want 2048 and 3584", a, b)
	}
}

// What a container uses that has a GPU by two claims is told of both at once, and is its pod's once.
func TestUseByTwoClaims(t *testing.T) {
	in := inspect.Input{Slices: publish("n1", mode.Share, newGPU("Tesla-T4", 15360)), Nodes: []*corev1.Node{node("n1")}}
	for _, name := range []string{"a", "b"} {
		in.Claims = append(in.Claims, changed(claim("team/p", "n1 gpu-0-share 3"), func(c *resourceapi.ResourceClaim) {
			c.Name = name
		}))
	}
	in.Claims = append(in.Claims, claim("team/q", "n1 gpu-0-share 3"), claim("other/p", "n1 gpu-0-share 3"))
	in.Used = map[string]inspect.NodeUse{"n1": {Claims: map[inspect.ClaimOn]int64{
		{Namespace: "team", Claim: "a,b", GPU: 0}: 5 << 30, {Namespace: "team", Claim: "b", GPU: 0}: 1 << 30,
		{Namespace: "other", Claim: "a,b", GPU: 0}: 1 << 30, {Namespace: "team", Claim: "a,b", GPU: 1}: 1 << 30}}}
	want := map[string]int64{"team/p": 6144, "team/q": 0, "other/p": 0}
	for _, h := range inspect.New(in).Nodes[0].Holders {
		if got, of := *h.Shares[0].UsedMiB, h.Namespace+"/"+h.Name(); got != want[of] {
			t.Errorf("%s uses %d MiB, want %d", of, got, want[of])
		}
	}
}

// Also where others share one of the claims: it is told of the pod that has the other for itself.
func TestUseByAClaimThatIsShared(t *testing.T) {
	in := inspect.Input{Slices: publish("n1", mode.Share, newGPU("Tesla-T4", 15360)), Nodes: []*corev1.Node{node("n1")}}
	for name, by := range map[string][]resourceapi.ResourceClaimConsumerReference{
		"a": {{Resource: "pods", Name: "p"}}, "b": {{Resource: "pods", Name: "p"}, {Resource: "pods", Name: "q"}},
		"d": {{APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: "g"}},
	} {
		in.Claims = append(in.Claims, changed(claim("team/p", "n1 gpu-0-share 3"), func(c *resourceapi.ResourceClaim) {
			c.Name, c.Status.ReservedFor = name, by
		}))
	}
	in.Used = map[string]inspect.NodeUse{"n1": {Claims: map[inspect.ClaimOn]int64{
		{Namespace: "team", Claim: "a,b", GPU: 0}: 5 << 30, {Namespace: "team", Claim: "a,d", GPU: 0}: 2 << 30,
		{Namespace: "team", Claim: "b,d", GPU: 0}: 1 << 30, {Namespace: "team", Claim: "b", GPU: 0}: 1 << 29}}}
	want := map[string]int64{"p": 7168, "p,q": 1536, "podgroups/g": 0}
	for _, h := range inspect.New(in).Nodes[0].Holders {
		expect.Equal(t, want[h.Name()], *h.Shares[0].UsedMiB, "MiB used by %s", h.Name())
	}
}
