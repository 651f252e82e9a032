// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// V100: 16130 MiB, of which 3 of 15 units are 3226 MiB.
func newGPU(index int) claim.GPU {
	return claim.GPU{Index: index, UUID: fmt.Sprintf("GPU-%d", index), Model: "Tesla-V100", MemoryMiB: 16130}
}

func share(request string, index int, units int64, change ...func(*claim.Grant)) claim.Grant {
	g := claim.Grant{Request: request, Pool: "n/gpu", Device: fmt.Sprintf("gpu-%d-share", index),
		ShareID: types.UID(fmt.Sprintf("%s-%d", request, index)), Mode: mode.Share, GPU: newGPU(index), Units: units,
		Slots: 1}
	for _, c := range change {
		c(&g)
	}
	return g
}

func underMPS(g *claim.Grant)           { g.Mode, g.Isolation = mode.MPS, "mps" }
func admin(g *claim.Grant)              { g.Admin = true }
func lifted(g *claim.Grant)             { g.Config = v1alpha1.WithoutIsolation() }
func whole(g *claim.Grant)              { g.Mode, g.ShareID, g.Units, g.Device = mode.Exclusive, "", 0, "gpu-0" }
func isFor(c string) func(*claim.Grant) { return func(g *claim.Grant) { g.Config.Container = &c } }

// pod is a pod of namespace "team" that uses claims of the same names as its own names for
// them: "main=a b/request" is a container main that uses claim a and a request of claim b.
func pod(name string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{NodeName: "n"}}
	known := map[string]bool{}
	for _, text := range containers {
		name, uses, _ := strings.Cut(text, "=")
		c := corev1.Container{Name: strings.TrimPrefix(name, "init:")}
		for used := range strings.FieldsSeq(uses) {
			claimName, request, _ := strings.Cut(used, "/")
			c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: claimName, Request: request})
			if !known[claimName] {
				known[claimName] = true
				p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: claimName,
					ResourceClaimName: &claimName})
			}
		}
		status := corev1.ContainerStatus{Name: c.Name, ContainerID: "containerd://" + p.Name + "-" + c.Name}
		if c.Name != name {
			p.Spec.InitContainers = append(p.Spec.InitContainers, c)
			p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, status)
			continue
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, status)
	}
	return p
}

func in(p *corev1.Pod, container string) Owner {
	return Owner{Places: []Place{{Pod: p.UID, Container: p.Name + "-" + container}}}
}

// node puts together what is judged: process 1 holds the first amount of the first GPU, and
// so on.
type node struct {
	pods   []*corev1.Pod
	claims map[string][]claim.Grant
	// on are the processes: GPU, MiB and whose.
	on    []process
	rules Rules
	// notOffered has the node offer the first GPU only, unread has some pods not be known.
	notOffered, unread bool
}

type process struct {
	gpu    int
	mib    int64
	owner  Owner
	client bool // of MPS
	nobody bool
}

// holds is a node with these claims and processes.
func holds(claims map[string][]claim.Grant, on ...process) node { return node{claims: claims, on: on} }

func on(gpu int, mib int64, owner Owner) process { return process{gpu: gpu, mib: mib, owner: owner} }

// client is a process that is MPS'.
func client(gpu int, mib int64, owner Owner) process {
	return process{gpu: gpu, mib: mib, owner: owner, client: true}
}

func (n node) input() Input {
	out := Input{Owners: map[int]Owner{}, Pods: map[types.UID]*corev1.Pod{}, PodsUnread: n.unread, Rules: n.rules,
		Granted: Granted{Offered: map[int]bool{0: true, 1: !n.notOffered}}}
	for i := range 2 {
		use := gpu.Use{Index: i, UUID: newGPU(i).UUID, TotalMiB: 16130, UsedMiB: 7, TellsMPS: true}
		for j, p := range n.on {
			if p.gpu == i {
				use.Processes = append(use.Processes, gpu.Process{PID: j + 1, MemoryMiB: p.mib, MPSClient: p.client})
			}
		}
		out.GPUs = append(out.GPUs, use)
	}
	for i, p := range n.on {
		if !p.nobody {
			out.Owners[i+1] = p.owner
		}
	}
	for _, p := range n.pods {
		out.Pods[p.UID] = p
	}
	for name, grants := range n.claims {
		out.Claims = append(out.Claims, Claim{Namespace: "team", Name: name, Grants: grants,
			Pods: []types.UID{types.UID("uid-of-" + name)}, PodNames: []string{"of-" + name}})
	}
	return out
}

func grants(g ...claim.Grant) []claim.Grant { return g }

func TestFindings(t *testing.T) {
	one, two := pod("one", "main=a"), pod("two", "main=a", "side=a", "free=")
	requests := pod("requests", "x=c/x", "y=c/y")
	sidecars := pod("sidecars", "init:load=a", "main=a")
	legacy := pod("legacy", "main=")
	legacy.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	foreign, both := pod("foreign", "main=other"), pod("both", "main=a other")
	ab, elsewhere := pod("ab", "main=a b"), pod("elsewhere", "main=a")
	elsewhere.Namespace = "other"
	starting := pod("starting", "main=a")
	starting.Status.ContainerStatuses = nil
	static := pod("static", "main=")
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
	system := pod("exporter", "main=")
	system.Namespace = "monitoring"
	a := map[string][]claim.Grant{"a": {share("gpu", 0, 3)}}
	mps := map[string][]claim.Grant{"a": {share("gpu", 0, 3, underMPS)}}
	told := Rules{TellsMPS: true}
	all := []*corev1.Pod{one, two, requests, sidecars, legacy, foreign, both, starting, static, system, ab, elsewhere}
	for name, tc := range map[string]struct {
		node node
		want []string // kind, pod/container, GPU, and a part of the message after a colon
	}{
		"nothing runs":                       {node{claims: a}, nil},
		"within a share":                     {holds(a, on(0, 3226, in(one, "main"))), nil},
		"a little beyond it, as NVML counts": {holds(a, on(0, 3226+64, in(one, "main"))), nil},
		"over its share": {holds(a, on(0, 3226+65, in(one, "main"))),
			[]string{`over-share one/main 0: container "main" holds 3291 MiB of GPU 0 in 1 process; it was granted 3226 MiB`}},
		"over its share by two processes": {holds(a, on(0, 2000, in(one, "main")), on(0, 2000, in(one, "main"))),
			[]string{`over-share one/main 0: holds 4000 MiB of GPU 0 in 2 processes`}},
		"containers and pods that share a claim hold no more than it grants": {
			holds(a, on(0, 1000, in(one, "main")), on(0, 1000, in(two, "main")), on(0, 1226, in(two, "side"))), nil},
		"each keeps to the limit that it has, and all together do not": {
			holds(a, on(0, 1000, in(one, "main")), on(0, 1000, in(two, "main")), on(0, 1400, in(two, "side"))),
			[]string{`over-share one/main 0: container "main" holds 1000 MiB of GPU 0 in 1 process; 3 containers share ` +
				`3 GiB of it by claim a, and hold 3400 MiB`,
				"over-share two/main 0: 3 containers share 3 GiB", "over-share two/side 0: "}},
		"one that takes more than its share is no fault of the others": {
			holds(a, on(0, 5000, in(one, "main")), on(0, 1000, in(two, "main")), on(0, 1000, in(two, "side"))),
			[]string{"over-share one/main 0: it was granted 3226 MiB"}},
		"together, of two claims that one of them has": {
			holds(map[string][]claim.Grant{"a": {share("gpu", 0, 3)}, "b": {share("more", 0, 2)}},
				on(0, 3200, in(one, "main")), on(0, 3200, in(ab, "main"))),
			[]string{"over-share ab/main 0: 2 containers share 5 GiB of it by claim a, b, and hold 6400 MiB",
				"over-share one/main 0: "}},
		"the claim of that name in another namespace": {
			holds(a, on(0, 3000, in(one, "main")), on(0, 3000, in(elsewhere, "main"))),
			[]string{"no-grant elsewhere/main 0 [a]: "}},
		"a container beside those that have the claim": {holds(a, on(0, 100, in(two, "free"))),
			[]string{`no-grant two/free 0: container "free" has 1 process on GPU 0, of which no claim grants it anything`}},
		"another GPU than its own": {holds(a, on(0, 100, in(one, "main")), on(1, 200, in(one, "main"))),
			[]string{`no-grant one/main 1: it holds 200 MiB`}},
		"init containers and sidecars": {holds(a, on(0, 3000, in(sidecars, "load")), on(0, 3000, in(sidecars, "main"))),
			[]string{"over-share sidecars/load 0: 2 containers share 3 GiB", "over-share sidecars/main 0: "}},
		"each container its own request": {
			holds(map[string][]claim.Grant{"c": grants(share("x", 0, 2), share("y", 0, 8))},
				on(0, 3000, in(requests, "x")), on(0, 8000, in(requests, "y"))),
			[]string{`over-share requests/x 0: granted 2150 MiB`}},
		"requests for one container count together": {
			holds(map[string][]claim.Grant{"c": grants(share("x", 0, 2, isFor("z")), share("y", 0, 8, isFor("z")))},
				on(0, 10753, in(requests, "x"))), nil},
		"a request on another GPU": {
			holds(map[string][]claim.Grant{"c": grants(share("x", 0, 2), share("y", 1, 8))}, on(1, 10, in(requests, "x"))),
			[]string{`no-grant requests/x 1: `}},
		"a whole GPU": {
			holds(map[string][]claim.Grant{"a": {share("gpu", 0, 0, whole)}}, on(0, 16000, in(one, "main"))), nil},
		"an administrator's": {
			holds(map[string][]claim.Grant{"a": {share("gpu", 0, 0, admin)}}, on(0, 9000, in(one, "main"))), nil},
		"limits that were lifted": {
			holds(map[string][]claim.Grant{"a": {share("gpu", 0, 3, lifted)}}, on(0, 9000, in(one, "main"))), nil},
		"memory that is not told": {holds(a, on(0, gpu.UnknownMemory, in(one, "main"))), nil},
		"a client of MPS":         {node{claims: mps, rules: told, on: []process{client(0, 3226, in(one, "main"))}}, nil},
		"beside MPS": {
			node{claims: mps, rules: told, on: []process{client(0, 100, in(one, "main")), on(0, 100, in(one, "main"))}},
			[]string{`beside-mps one/main 0: container "main" has process 2, by the node's number, on GPU 0 beside MPS`}},
		"beside MPS, by a driver that does not tell": {holds(mps, on(0, 100, in(one, "main"))), nil},
		"a share without MPS on a GPU": {
			node{claims: a, rules: told, on: []process{on(0, 100, in(one, "main"))}}, nil},
		"the overhead of MPS": {
			node{claims: mps, rules: Rules{MPSOverheadMiB: 514}, on: []process{client(0, 3740, in(one, "main"))}}, nil},
		"GPUs that the node does not offer": {
			node{claims: a, notOffered: true, on: []process{on(1, 100, in(one, "main")),
				on(1, 100, Owner{Program: "Xorg"}), on(0, 9000, in(one, "main"))}},
			[]string{"over-share one/main 0: "}},
		"a process that has ended": {holds(nil, process{gpu: 0, mib: 100, nobody: true}), nil},
		"no pod": {
			holds(nil, on(0, 100, Owner{Program: "xmrig"}), on(0, 50, Owner{Program: "xmrig"}),
				on(1, 100, Owner{Program: "Xorg"})),
			[]string{"no-pod / 0: process 1 (xmrig) on GPU 0 belongs to no pod; it holds 100 MiB", "no-pod / 1: (Xorg)"}},
		"the server of MPS, of a host's daemon": {holds(nil, on(0, 66, Owner{Program: "nvidia-cuda-mps"})), nil},
		"the server of MPS, of gpu-mps-supervisor": {
			holds(nil, on(0, 66, Owner{Places: []Place{{Pod: "u"}}, Program: "nvidia-cuda-mps", OfSupervisor: true})), nil},
		"a pod's process that calls itself the server of MPS": {
			holds(nil, on(0, 66, Owner{Places: []Place{{Pod: "u"}}, Program: "nvidia-cuda-mps"})),
			[]string{"no-pod / 0: process 1 (nvidia-cuda-mps) on GPU 0 is of the pod with UID u"}},
		"another program of gpu-mps-supervisor's pod": {
			holds(nil, on(0, 66, Owner{Places: []Place{{Pod: "u"}}, Program: "sh", OfSupervisor: true})),
			[]string{"no-pod / 0: process 1 (sh)"}},
		"a pod that is not known": {holds(nil, on(0, 100, Owner{Places: []Place{{Pod: "u"}}, Program: "p"})),
			[]string{"no-pod / 0: process 1 (p) on GPU 0 is of the pod with UID u, which is not known and was granted nothing"}},
		"a pod that was deleted by force, and has a claim": {
			holds(a, on(0, 100, Owner{Places: []Place{{Pod: "uid-of-a"}}, Program: "p"}),
				on(1, 100, Owner{Places: []Place{{Pod: "uid-of-a"}}, Program: "p"})),
			[]string{"no-pod / 1: ", "gone-pod of-a/ 0: 1 process on GPU 0 of pod team/of-a (UID uid-of-a), which is gone: " +
				"they hold 100 MiB, and claim a grants 3226 MiB"}},
		"what it holds is its claim's": {
			holds(a, on(0, 3000, Owner{Places: []Place{{Pod: "uid-of-a"}}}), on(0, 3000, in(one, "main"))),
			[]string{"gone-pod of-a/ 0: ", "over-share one/main 0: 2 containers share 3 GiB of it by claim a, and hold 6000"}},
		"while pods cannot be read, none is gone": {
			node{claims: a, unread: true, on: []process{on(0, 100, Owner{Places: []Place{{Pod: "uid-of-a"}}})}}, nil},
		"a node in a pod of another cluster": {
			holds(a, on(0, 100, Owner{Places: []Place{{Pod: "outer", Container: "x"}, {Pod: one.UID, Container: "one-main"}}})),
			nil},
		"a container that is not in the pod's status yet": {
			holds(a, on(0, 3000, Owner{Places: []Place{{starting.UID, "id"}}})), nil},
		"the same, on a GPU that the pod does not have": {holds(a, on(1, 3000, Owner{Places: []Place{{starting.UID, "id"}}})),
			[]string{"no-grant starting/ 1: a container has 1 process"}},
		"a pod with a device plugin's limits": {holds(nil, on(0, 100, in(legacy, "main"))),
			[]string{"no-grant legacy/main 0 plugin: "}},
		"an exempt namespace": {
			node{rules: Rules{ExemptNamespaces: map[string]bool{"monitoring": true}},
				on: []process{on(0, 100, in(system, "main"))}}, nil},
		"a namespace that is not exempt": {holds(nil, on(0, 100, in(system, "main"))),
			[]string{"no-grant exporter/main 0: "}},
		"over its share, with a claim of another driver": {holds(a, on(0, 9000, in(both, "main"))),
			[]string{"over-share both/main 0 [other]: "}},
		"a claim of another driver": {holds(nil, on(0, 100, in(foreign, "main"))),
			[]string{"no-grant foreign/main 0 [other]: "}},
		"a static pod": {holds(nil, on(0, 100, in(static, "main"))), []string{"no-grant static/main 0 stays: "}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.node.pods = all
			findings := Judge(tc.node.input()).Findings
			if len(findings) != len(tc.want) {
				t.Fatalf("findings %+v, want %q", findings, tc.want)
			}
			for i, f := range findings {
				where := fmt.Sprintf("%s %s/%s %d", f.Kind, f.Pod.Name, f.Container, f.Index)
				if len(f.Unread) > 0 {
					where += fmt.Sprint(" ", f.Unread)
				}
				if f.AsksPlugin {
					where += " plugin"
				}
				if !f.Kind.OnNode() && !f.MayEvict {
					where += " stays"
				}
				want, message, _ := strings.Cut(tc.want[i], ": ")
				if where != strings.TrimSuffix(want, ":") || !strings.Contains(f.Message, message) {
					t.Errorf("%s: %s\nwant %s", where, f.Message, tc.want[i])
				}
			}
		})
	}
}

func TestUse(t *testing.T) {
	p, q := pod("one", "main=a b", "side=a"), pod("two", "main=")
	input := node{pods: []*corev1.Pod{p, q}, claims: map[string][]claim.Grant{
		"a": {share("gpu", 0, 3)}, "b": {share("more", 0, 2), share("more", 1, 0, whole)},
	}, on: []process{
		{gpu: 0, mib: 100, owner: in(p, "main")}, {gpu: 0, mib: 200, owner: in(p, "main")},
		{gpu: 0, mib: 400, owner: in(p, "side")}, {gpu: 1, mib: 800, owner: in(p, "main")},
		{gpu: 1, mib: 9, owner: in(q, "main")},
	}}.input()
	ten, sixty, seventy := 10, 60, 70
	input.GPUs[0].Processes[0].SMPercent, input.GPUs[0].Processes[1].SMPercent = &ten, &sixty
	got := Judge(input)
	use := func(container, claimName string, index int, used, granted int64, sm *int, processes int) ClaimUse {
		return ClaimUse{Namespace: "team", Pod: "one", Container: container, Claim: claimName, Index: index,
			UUID: newGPU(index).UUID, UsedMiB: used, GrantedMiB: granted, SMPercent: sm, Processes: processes}
	}
	expect.Equal(t, []ClaimUse{
		use("main", "a,b", 0, 300, 5376, &seventy, 2), use("main", "b", 1, 800, 16130, nil, 1),
		use("side", "a", 0, 400, 3226, nil, 1),
	}, got.Claims, "claims")
}

// A claim that was created again under its name has not what the one before has, whose records are here still.
func TestClaimThatWasMadeAnew(t *testing.T) {
	p := pod("one", "main=a")
	input := node{pods: []*corev1.Pod{p}, claims: map[string][]claim.Grant{"a": {share("gpu", 0, 3)}},
		on: []process{{gpu: 0, mib: 3000, owner: in(p, "main")}, {gpu: 1, mib: 3000, owner: in(p, "main")}}}.input()
	before := input.Claims[0]
	before.Grants = []claim.Grant{share("gpu", 1, 3)}
	for name, claims := range map[string][]Claim{"before": {before, input.Claims[0]}, "after": {input.Claims[0], before}} {
		input.Claims = claims
		if got := Judge(input); len(got.Findings) > 0 || len(got.Claims) != 2 {
			t.Errorf("%s: findings %+v, claims %+v", name, got.Findings, got.Claims)
		}
	}
}

// What pods hold that are gone is shown by claim: there is one series for each.
func TestUseOfPodsThatAreGone(t *testing.T) {
	gone := func(uid types.UID) Owner { return Owner{Places: []Place{{Pod: uid}}} }
	input := node{claims: map[string][]claim.Grant{"a": {share("gpu", 0, 3)}}, on: []process{
		{gpu: 0, mib: 100, owner: gone("uid-of-a")}, {gpu: 0, mib: 200, owner: gone("joined")},
	}}.input()
	input.Claims[0].Pods = append(input.Claims[0].Pods, "joined")
	got := Judge(input)
	expect.Equal(t, []ClaimUse{{Namespace: "team", Claim: "a", UUID: "GPU-0", UsedMiB: 300, GrantedMiB: 3226,
		Processes: 2}}, got.Claims, "claims")
	if len(got.Findings) != 2 || !strings.Contains(got.Findings[0].Message, "of a pod of namespace team (UID joined)") {
		t.Errorf("findings %+v, want one of each pod", got.Findings)
	}
}

// Who has one instance of a GPU has nothing of the one beside.
func TestInstances(t *testing.T) {
	p := pod("p", "main=a")
	instance := share("r", 0, 0, whole)
	instance.GPU.UUID, instance.GPU.MemoryMiB = "MIG-1", 40192
	input := node{pods: []*corev1.Pod{p}, claims: map[string][]claim.Grant{"a": {instance}}}.input()
	input.Owners = map[int]Owner{1: in(p, "main"), 2: in(p, "main")}
	process := func(pid int) []gpu.Process { return []gpu.Process{{PID: pid, MemoryMiB: 50000}} }
	input.GPUs = []gpu.Use{
		{Index: 0, UUID: "MIG-1", Parent: "GPU-0", Processes: process(1)},
		{Index: 0, UUID: "MIG-2", Parent: "GPU-0", Processes: process(2)},
	}
	got := Judge(input)
	if len(got.Findings) != 1 || got.Findings[0].Kind != NoGrant || got.Findings[0].UUID != "MIG-2" ||
		!strings.Contains(got.Findings[0].Message, "on GPU 0's MIG device MIG-2, of which no claim grants it anything") {
		t.Errorf("findings %+v, want one, of MIG-2", got.Findings)
	}
	if len(got.Claims) != 1 || got.Claims[0].UUID != "MIG-1" || got.Claims[0].GrantedMiB != 40192 {
		t.Errorf("claims %+v, want what is used of MIG-1", got.Claims)
	}
}
