// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

const gatePolicy = "testdata/deployments/options/best-node-gate/policy.yaml"

// fromTemplate is a pod with a claim of a template.
func fromTemplate(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := podFor("")
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To(name)}}
	for _, c := range change {
		c(p)
	}
	return p
}

// With the option best-node-gate, pods wait for their nomination that the scheduler would else look at before. Who is
// nominated nothing does not wait, nor does a pod as on ACK, whose claim waits already.
func TestPodsWithGPUsWaitAtTheGate(t *testing.T) {
	s := shared("with the gate", func() *server {
		trusted := namespace("trusted", "gpu.aliyun.com/costly-claims", "allowed")
		return newServerWith(t, append(decoded(t, gatePolicy), trusted))
	})
	ours, kueue := corev1.PodSchedulingGate{Name: v1alpha1.GateBestNode},
		corev1.PodSchedulingGate{Name: "kueue.x-k8s.io/admission"}
	gated, held := []corev1.PodSchedulingGate{ours}, []corev1.PodSchedulingGate{{Name: v1alpha1.GateCostlyClaims}}
	trusted := func(p *corev1.Pod) *corev1.Pod {
		p.Namespace = "trusted"
		return p
	}
	at := func(gates ...corev1.PodSchedulingGate) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.SchedulingGates = gates }
	}
	affinity := func(a corev1.Affinity) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Affinity = &a } }
	term := corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname}
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want []corev1.PodSchedulingGate
	}{
		"with a template's claim": {fromTemplate("t"), gated},
		"with a claim":            {withNIC(podFor("")), gated},
		"with NVIDIA's":           {podFor("nvidia.com/gpu 1"), gated},
		"with a MIG instance":     {podFor("nvidia.com/mig-1g.10gb 1"), gated},
		"with a DeviceClass's":    {podFor("deviceclass.resource.kubernetes.io/share.gpu.aliyun.com 1"), gated},
		"that chooses a placement": {fromTemplate("t", func(p *corev1.Pod) {
			p.Labels = map[string]string{v1alpha1.LabelNodePlacement: "spread"}
		}), gated},
		"at Kueue's gate":    {fromTemplate("t", at(kueue)), []corev1.PodSchedulingGate{kueue, ours}},
		"with costly claims": {trusted(fromTemplate("t")), held},
		"with costly claims, of a gang": {trusted(fromTemplate("t", func(p *corev1.Pod) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
		})), nil},
		"at the gate":               {fromTemplate("t", at(ours)), gated},
		"at the gate for costly":    {fromTemplate("t", at(held...)), append(held, ours)},
		"with costly claims, at it": {trusted(fromTemplate("t", at(held...))), held},
		"with costly claims, at the other gate": {trusted(fromTemplate("t", at(ours))),
			[]corev1.PodSchedulingGate{ours, held[0]}},
		"without GPUs":           {podFor(""), nil},
		"with none":              {podFor("nvidia.com/gpu 0"), nil},
		"as on ACK":              {podFor("mem 3"), nil},
		"as it was made":         {fromTemplate("gpushare.mem.c.3"), nil},
		"of a driver for others": {podFor("deviceclass.resource.kubernetes.io/nic.example.com 1"), nil},
		"on a node":              {fromTemplate("t", func(p *corev1.Pod) { p.Spec.NodeName = "n1" }), nil},
		"of another scheduler": {fromTemplate("t", func(p *corev1.Pod) {
			p.Spec.SchedulerName = "volcano"
		}), nil},
		"of a PodGroup": {fromTemplate("t", func(p *corev1.Pod) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
		}), nil},
		"of a gang": {fromTemplate("t", func(p *corev1.Pod) {
			p.Labels = map[string]string{ack.LabelPodGroup: "g", ack.LabelMinAvailable: "2"}
		}), nil},
		"left to the scheduler": {fromTemplate("t", func(p *corev1.Pod) {
			p.Labels = map[string]string{v1alpha1.LabelNodePlacement: "any"}
		}), nil},
		"that opted out": {fromTemplate("t", func(p *corev1.Pod) {
			p.Labels = map[string]string{v1alpha1.LabelLegacy: "false"}
		}), nil},
		"with a port of its node": {fromTemplate("t", func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 81, HostPort: 81}}
		}), nil},
		"with a port": {fromTemplate("t", func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}}
		}), gated},
		"that is spread": {fromTemplate("t", func(p *corev1.Pod) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: corev1.LabelHostname}}
		}), nil},
		"that avoids others": {fromTemplate("t", affinity(corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}})), nil},
		"that prefers nodes": {fromTemplate("t", affinity(corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1}}}})), nil},
		"that needs a node": {fromTemplate("t", affinity(corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{}}})), gated},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.create(test.pod)
			expect.NoError(t, err)
			if diff := cmp.Diff(test.want, got.Spec.SchedulingGates); diff != "" {
				t.Errorf("its gates (-want +got):\n%s", diff)
			}
		})
	}
}

// The controller takes the gate off, and changes nothing else of what a pod asks for.
func TestControllerTakesItsOwnGateOffAlone(t *testing.T) {
	s := newServer(t)
	const no = "gpu-compat-controller may change nothing of a pod but the annotations"
	const others = "example.com/gate"
	held := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "p", UID: "u"},
			Spec: corev1.PodSpec{
				SchedulingGates: []corev1.PodSchedulingGate{{Name: others}, {Name: v1alpha1.GateBestNode}},
				Containers:      []corev1.Container{{Name: "c", Image: "i"}}},
		}
	}
	gates := func(names ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.SchedulingGates = nil
			for _, name := range names {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
			}
		}
	}
	for name, test := range map[string]struct {
		change  func(*corev1.Pod)
		refused string
	}{
		"its own":              {gates(others), ""},
		"that of others":       {gates(v1alpha1.GateBestNode), no},
		"all":                  {gates(), no},
		"another in its place": {gates(others, "example.com/more"), no},
		"its own, and the image": {func(p *corev1.Pod) {
			gates(others)(p)
			p.Spec.Containers[0].Image = "other"
		}, no},
		"its own, and a choice of nodes": {func(p *corev1.Pod) {
			gates(others)(p)
			p.Spec.NodeSelector = map[string]string{"a": "b"}
		}, no},
		"its own, and a label": {func(p *corev1.Pod) {
			gates(others)(p)
			p.Labels = map[string]string{"a": "b"}
		}, no},
	} {
		t.Run(name, func(t *testing.T) {
			written := held()
			test.change(written)
			write := func(who user.Info) error {
				return s.validateSubresource(who, written, held(), "")
			}
			expect.Error(t, write(account("other", "gpu-compat-controller", "n1")), test.refused)
			expect.Error(t, write(account("other", "kueue", "n1")), "")
		})
	}
}

// heldFor returns a pod at the gate of costly claims with this node affinity.
func heldFor(wanted *corev1.NodeAffinity) *corev1.Pod {
	p := podFor("")
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: v1alpha1.GateCostlyClaims}}
	if wanted != nil {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: wanted}
	}
	return p
}

// Only the controller, and those who may write nodes, can remove the gate of costly claims.
func TestCostlyClaimsStayAtTheirGate(t *testing.T) {
	s := newServerWith(t, decoded(t, gatePolicy))
	const no = "only gpu-compat-controller, and users who may patch nodes, can remove the scheduling gate " +
		"gpu.aliyun.com/costly-claims"
	other := corev1.PodSchedulingGate{Name: "example.com/gate"}
	for name, test := range map[string]struct {
		before, after []corev1.PodSchedulingGate
		refused       string
	}{
		"it":                 {heldFor(nil).Spec.SchedulingGates, nil, no},
		"it, and leaves one": {append(heldFor(nil).Spec.SchedulingGates, other), []corev1.PodSchedulingGate{other}, no},
		"another":            {append(heldFor(nil).Spec.SchedulingGates, other), heldFor(nil).Spec.SchedulingGates, ""},
		"nothing":            {heldFor(nil).Spec.SchedulingGates, heldFor(nil).Spec.SchedulingGates, ""},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := heldFor(nil), heldFor(nil)
			before.Spec.SchedulingGates, after.Spec.SchedulingGates = test.before, test.after
			write := func(who user.Info) error {
				return s.validateSubresource(who, after, before, "")
			}
			expect.Error(t, write(somebody), test.refused)
			if test.refused != "" {
				expect.Error(t, write(account(team, "gpu-compat-controller", "")), test.refused)
				expect.Error(t, write(&user.DefaultInfo{Name: preemption}), "")
			}
			expect.Error(t, write(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}), "")
		})
	}
}

// The controller may pin a pod at the gate of costly claims to one node, and change nothing else of its affinity.
func TestControllerPinsPodsWithCostlyClaims(t *testing.T) {
	s := newServer(t)
	const no = "gpu-compat-controller may change nothing of a pod but the annotations"
	on := func(nodes ...string) *corev1.NodeAffinity {
		return &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
				Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: nodes}}}}}}
	}
	preferring := on("a")
	preferring.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{Weight: 1}}
	labelled := on("a")
	labelled.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0] = corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpExists}}}
	for name, test := range map[string]struct {
		to      *corev1.NodeAffinity
		gate    string
		refused string
	}{
		"a node":                     {on("a"), v1alpha1.GateCostlyClaims, ""},
		"no node":                    {nil, v1alpha1.GateCostlyClaims, ""},
		"two":                        {on("a", "b"), v1alpha1.GateCostlyClaims, no},
		"nodes with a label":         {labelled, v1alpha1.GateCostlyClaims, no},
		"a node, and prefers others": {preferring, v1alpha1.GateCostlyClaims, no},
		"a node, at the other gate":  {on("a"), v1alpha1.GateBestNode, no},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := heldFor(nil), heldFor(test.to)
			before.Spec.SchedulingGates[0].Name, after.Spec.SchedulingGates = test.gate, nil
			expect.Error(t, s.validateSubresource(account("other", "gpu-compat-controller", "n1"), after, before, ""),
				test.refused)
		})
	}
}
