// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

func TestPodsAndTheirTemplates(t *testing.T) {
	s := newServer(t)
	count := func(text string) map[string]string { return map[string]string{ack.PodLabelCount: text} }
	placement := func(text string) map[string]string { return map[string]string{ack.PodLabelPlacement: text} }
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string // the template's name and who uses it, or what the error says
	}{
		"nothing":               {podFor(""), ""},
		"zero is nothing":       {podFor("mem 0 core 0 gpu 0"), ""},
		"memory":                {podFor("mem 3"), "gpushare.mem.c.3 c:c"},
		"memory and no compute": {podFor("mem 3 core 0"), "gpushare.mem.c.3 c:c"},
		"memory and compute":    {podFor("mem 3 core 20"), "gpushare.core.c.3-20 c:c"},
		"cards":                 {podFor("gpu 2"), "gpushare.gpu.c.2 c:c"},
		"two of three containers": {pod("p", nil, limited("a", "mem 1"), limited("b", ""), limited("c", "mem 7")),
			"gpushare.mem.a.1.c.7 a:a c:c"},
		"a sidecar alone": {withInit(podFor(""), sidecar(limited("s", "mem 1")),
			limited("i", "mem 10G")), "gpushare.mem.s.1 s:s i:s"},
		"sidecars come last": {withInit(podFor("mem 3"), sidecar(limited("side", "mem 1"))),
			"gpushare.mem.c.3.side.1 c:c side:side"},
		"init containers do not count": {withInit(podFor("mem 3"), limited("i", "mem 10G")), "gpushare.mem.c.3 c:c i:c"},
		"four GPUs":                    {pod("p", count("4"), limited("c", "mem 8")), "gpushare.mem-x4.c.8 c:c"},
		"two GPUs of two containers": {pod("p", count("2"), limited("c", "mem 8"), limited("d", "mem 4")),
			"gpushare.mem-x2.c.8.d.4 c:c-card0 c:c-card1 d:d-card0 d:d-card1"},
		"no number of GPUs": {pod("p", count("0"), limited("c", "mem 8")), "gpushare.mem.c.8 c:c"},
		"a whole GPU": {pod("p", placement("require-whole-device"), limited("c", "mem 15")),
			"gpushare.mem-whole.c.15 c:c"},
		"eight large GPUs": {pod("p", count("8"), limited("c", "mem 1120")), "gpushare.mem-x8.c.1120 c:c"},
		"thousands":        {pod("p", count("4"), limited("c", "mem 1000")), "gpushare.mem-x4.c.1000 c:c"},
		"the most of all GPUs": {pod("p", count("13"), limited("c", "mem 12987 core 1300")),
			"gpushare.core-x13.c.12987-1300 c:c"},
		"all compute of ten GPUs": {pod("p", count("10"), limited("c", "mem 10 core 1000")),
			"gpushare.core-x10.c.10-1000 c:c"},
		"memory of one GPU":             {podFor("mem 5 count 1"), "gpushare.mem.c.5 c:c"},
		"and compute of one GPU":        {podFor("mem 5 core 20 count 1"), "gpushare.core.c.5-20 c:c"},
		"one GPU, and the label":        {pod("p", count("2"), limited("c", "mem 8 count 1")), "gpushare.mem-x2.c.8 c:c"},
		"labels do not matter for GPUs": {pod("p", count("x"), limited("c", "gpu 3")), "gpushare.gpu.c.3 c:c"},

		"only init":        {withInit(podFor(""), limited("i", "mem 2")), "only init containers"},
		"a number of GPUs": {podFor("count 1"), "asks for aliyun.com/gpu-count, which gives it no GPU"},
		"memory and a number of GPUs": {pod("p", nil, limited("c", "mem 3"), limited("d", "count 1")),
			"asks for aliyun.com/gpu-count"},
		"memory of two GPUs": {podFor("mem 8 count 2"), "asks for aliyun.com/gpu-count, " +
			"which gives it no GPU: ask for aliyun.com/gpu-mem, beside which it may be 1"},
		"a number, in init": {withInit(podFor("mem 3"), limited("i", "count 1")),
			"asks for aliyun.com/gpu-count, which gives it no GPU"},
		"GPUs and a number": {podFor("gpu 1 count 1"), "asks for aliyun.com/gpu-count"},
		"bytes":             {podFor("mem 10G"), "aliyun.com/gpu-mem 10G of container c is not a plain whole number of GiB"},
		"half":              {podFor("mem 0.5"), "aliyun.com/gpu-mem 500m of container c is not a plain whole number"},
		"binary thousands": {pod("p", count("4"), limited("c", "mem 1Ki")), "aliyun.com/gpu-mem 1Ki of " +
			"container c is not a plain whole number of GiB, from 1 to 999 on each GPU"},
		"millions": {podFor("mem 1000000"), "aliyun.com/gpu-mem 1M of " +
			"container c is not a plain whole number of GiB, from 1 to 999 on each GPU"},
		"more than any GPU": {podFor("mem 1000"), "aliyun.com/gpu-mem 1000 of container " +
			"c is 1000 GiB of each GPU, and can be from 1 to 999"},
		"more than any of two GPUs": {pod("p", count("2"), limited("c", "mem 2000")), "aliyun.com/gpu-mem 2000 of " +
			"container c is 1000 GiB of each GPU, and can be from 1 to 999"},
		"more than ten GPUs' compute": {pod("p", count("10"), limited("c", "mem 10 core 2000")), "must be a multiple " +
			"of 5, from 5 to 100 on each GPU"},
		"seven percent":             {podFor("mem 3 core 7"), "must be a multiple of 5, from 5 to 100 on each GPU"},
		"more than a GPU's compute": {podFor("mem 3 core 105"), "must be a multiple of 5, from 5 to 100 on each GPU"},
		"compute alone":             {podFor("core 20"), "reqeust resources must include aliyun.com/gpu-mem"},
		"different resources": {pod("p", nil, limited("a", "mem 1"), limited("b", "mem 1 core 5")),
			"The requested gpu resource types should be consistent for all containers"},
		"memory and GPUs": {pod("p", nil, limited("a", "mem 1 gpu 1")), "The requested gpu resource types " +
			"should be consistent for all containers"},
		"a count that is none": {pod("p", count("x"), limited("c", "mem 8")), `failed to parse request device ` +
			`count from pod label aliyun.com/gpu-count,reason: strconv.Atoi: parsing "x": invalid syntax`},
		"more GPUs than a claim holds": {pod("p", count("33"), limited("c", "mem 33")), "a claim is for 32 GPUs at most"},
		"seven on two GPUs": {pod("p", count("2"), limited("c", "mem 7")), "invalid replica for resource " +
			"aliyun.com/gpu-mem,because 7 / 2 = 3.5"},
		"compute on four GPUs": {pod("p", count("4"), limited("c", "mem 4 core 10")), "invalid replica for " +
			"resource aliyun.com/gpu-core.percentage,because 10 / 4 = 2.5"},
		"another placement": {pod("p", placement("any"), limited("c", "mem 8")), "Invalid value of pod label " +
			"ack.gpushare.placement:only support [require-whole-device]"},
		"more GPUs than are searched for in time": {podFor("gpu 17"),
			"more GPUs than the scheduler can look for while all pods wait"},
		"more whole GPUs than a claim holds": {podFor("gpu 33"), "aliyun.com/gpu 33 of container c is not a plain whole " +
			"number of GPUs, from 1 to 32"},
		"more whole GPUs of two containers": {pod("p", nil, limited("a", "gpu 16"), limited("b", "gpu 17")),
			"a pod can be given 32 GPUs or shares at most"},
		"more shares than a claim holds": {pod("p", count("17"), limited("a", "mem 17"), limited("b", "mem 17")),
			"32 GPUs or shares at most"},
		"the claim's name": {changed(podFor("mem 3"), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: legacy.ClaimName}}
		}), `an entry "gpushare" in spec.resourceClaims`},
		"the pod opted out": {pod("p", map[string]string{v1alpha1.LabelLegacy: "false"}, limited("c", "mem 3")),
			"it opted out by its label gpu.aliyun.com/legacy=false"},
		"and asks for a number": {pod("p", map[string]string{v1alpha1.LabelLegacy: "false"}, limited("c", "count 1")),
			"asks for aliyun.com/gpu-count and was not given a claim instead: it opted out by its label"},
		"and asks for too many": {pod("p", map[string]string{v1alpha1.LabelLegacy: "false"}, limited("c", "gpu 50")),
			"asks for aliyun.com/gpu and was not given a claim instead: it opted out by its label"},
		"its namespace did": {in(optedOut, podFor("mem 3")),
			"its namespace opted out by the label gpu.aliyun.com/legacy=false"},
		"the system's pod": {in(metav1.NamespaceSystem, podFor("mem 3")), "pods of this namespace are left alone"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.create(test.pod)
			switch {
			case err != nil:
				if test.want == "" || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want %q", err, test.want)
				}
			case strings.TrimSpace(template(got)+" "+uses(got)) != test.want:
				t.Errorf("template %s, used %s, want %q", template(got), uses(got), test.want)
			}
		})
	}
}

// Any pod becomes what the model makes of it, and only in the ways that it has to. A
// second pass changes nothing, and neither does applying its manifest again.
func TestRandomPods(t *testing.T) {
	s := newServer(t)
	random := rand.New(rand.NewPCG(5, 5))
	converted, refused := 0, 0
	pods := 1500
	if testing.Short() {
		pods = 150
	}
	for i := range pods {
		p := randomPod(random)
		want, wantErr := model(p)
		got, err := s.create(p)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("pod %d, %s: the policies say %v, the model %v", i, describe(p), err, wantErr)
		}
		checkOfPod(t, p, want, err)
		if err != nil {
			refused++
			continue
		}
		if template(got) != want {
			t.Fatalf("pod %d, %s: template %q, want %q", i, describe(p), template(got), want)
		}
		if want == "" {
			continue
		}
		if _, err := legacy.ParseName(want); err != nil {
			t.Fatalf("pod %d, %s: the controller makes no such template: %v", i, describe(p), err)
		}
		converted++
		var recorded map[string]corev1.ResourceList
		if err := json.Unmarshal([]byte(got.Annotations[v1alpha1.AnnotationLegacyRequest]), &recorded); err != nil {
			t.Fatalf("pod %d, %s: annotation %q: %v", i, describe(p), got.Annotations[v1alpha1.AnnotationLegacyRequest], err)
		}
		for _, c := range members(p) {
			for _, resource := range []corev1.ResourceName{ack.ResourceMemory, ack.ResourceCores, ack.ResourceGPUs} {
				want, got := c.Resources.Limits[resource], recorded[c.Name][resource]
				if want.Cmp(got) != 0 {
					t.Fatalf("pod %d, %s: %s of %s is recorded for container %s", i, describe(p), got.String(), resource, c.Name)
				}
			}
		}
		for _, c := range members(got) {
			for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
				for resource, amount := range list {
					if strings.HasPrefix(string(resource), "aliyun.com/") {
						t.Fatalf("pod %d, %s: container %s still has %s %s", i, describe(p), c.Name, resource, amount.String())
					}
				}
			}
		}
		again, err := s.create(got)
		if diff := cmp.Diff(got, again); err != nil || diff != "" {
			t.Fatalf("pod %d, %s: a second pass: %v (-first +second):\n%s", i, describe(p), err, diff)
		}
		updated, err := s.update(got, askingAgain(got, p))
		if diff := cmp.Diff(got, updated); err != nil || diff != "" {
			t.Fatalf("pod %d, %s: applied again: %v (-first +again):\n%s", i, describe(p), err, diff)
		}
	}
	if (converted < 200 || refused < 200) && !testing.Short() {
		t.Errorf("%d pods were converted, %d refused: too few to show anything", converted, refused)
	}
	t.Logf("%d pods were converted, %d refused", converted, refused)
}

func randomPod(random *rand.Rand) *corev1.Pod {
	pick := func(texts ...string) string { return texts[random.IntN(len(texts))] }
	kind := pick("mem", "mem", "core", "gpu", "any")
	amounts := func() string {
		mem := "mem " + pick("1", "2", "3", "8", "8", "15", "16", "999", "1000", "1120", "2000", "1Ki", "10G", "7", "0") + " "
		core := "core " + pick("5", "20", "20", "100", "200", "1000", "7", "105", "0") + " "
		gpu := "gpu " + pick("1", "2", "8", "16", "33", "0") + " "
		switch kind {
		case "mem":
			return pick(mem, mem, mem+"count "+pick("1", "1", "0", "2"), "")
		case "core":
			return pick(mem+core, mem+core, "")
		case "gpu":
			return pick(gpu, gpu, "")
		default:
			return pick(mem, core, gpu, mem+core, mem+gpu, "")
		}
	}
	p := pod("p", map[string]string{})
	for i := range 1 + random.IntN(3) {
		p.Spec.Containers = append(p.Spec.Containers, limited(fmt.Sprintf("c%d", i), amounts()))
	}
	for i := range random.IntN(3) {
		c := limited(fmt.Sprintf("i%d", i), amounts())
		if random.IntN(2) == 0 {
			c = sidecar(c)
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	if count := pick("", "", "", "0", "1", "2", "2", "4", "10", "33", "02", "x"); count != "" {
		p.Labels[ack.PodLabelCount] = count
	}
	if placement := pick("", "", "", "", ack.RequireWholeDevice, "any"); placement != "" {
		p.Labels[ack.PodLabelPlacement] = placement
	}
	return p
}

func describe(p *corev1.Pod) string {
	var out []string
	for _, c := range members(p) {
		text := c.Name
		if c.RestartPolicy != nil {
			text += " (sidecar)"
		}
		for _, name := range []corev1.ResourceName{ack.ResourceMemory, ack.ResourceCores, ack.ResourceGPUs} {
			if amount, ok := c.Resources.Limits[name]; ok {
				text += fmt.Sprintf(" %s %s", name, amount.String())
			}
		}
		out = append(out, text)
	}
	return fmt.Sprintf("labels %v, %s", p.Labels, strings.Join(out, "; "))
}

// Without the policy that converts, and without its bindings, pods that ask are refused.
func TestWithoutThePolicyThatConverts(t *testing.T) {
	s := newServer(t, "gpushare-legacy-convert")
	_, err := s.create(podFor("mem 3"))
	expect.Error(t, err, "is the MutatingAdmissionPolicy gpushare-legacy-convert, with its binding, installed?")
	if got, err := s.create(podFor("")); err != nil || template(got) != "" {
		t.Errorf("a pod that asks for nothing: %v, %v", got, err)
	}
}

// Another amount is not what the pod was converted from: it is for the API server to
// refuse.
func TestAnotherAmountIsAChange(t *testing.T) {
	s := newServer(t)
	old, err := s.create(podFor("mem 3"))
	expect.NoError(t, err)
	applied := old.DeepCopy()
	applied.Spec.Containers[0].Resources.Limits = limited("c", "mem 4").Resources.Limits
	got, err := s.update(old, applied)
	if diff := cmp.Diff(applied, got); err != nil || diff != "" {
		t.Errorf("%v (-applied +got):\n%s", err, diff)
	}
}

func TestPodsThatNameTheirNode(t *testing.T) {
	s := newServer(t)
	on := func(namespace string, containers ...corev1.Container) *corev1.Pod {
		return changed(pod("p", nil, containers...), func(p *corev1.Pod) { p.Namespace, p.Spec.NodeName = namespace, "n1" })
	}
	const gpu, class = "nvidia.com/gpu 1", "deviceclass.resource.kubernetes.io/share.gpu.aliyun.com 1"
	mirror := changed(on(team, limited("c", gpu)),
		func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} })
	for name, test := range map[string]struct {
		pod     *corev1.Pod
		refused string
	}{
		"a GPU":        {on(team, limited("c", gpu)), "asks for nvidia.com/gpu and names its node in spec.nodeName"},
		"what to do":   {on(team, limited("c", gpu)), "Use the nodeSelector kubernetes.io/hostname: n1"},
		"a shared GPU": {on(team, limited("c", "nvidia.com/gpu.shared 1")), "asks for nvidia.com/gpu.shared"},
		"a class": {on(team, limited("c", class)),
			"asks for deviceclass.resource.kubernetes.io/share.gpu.aliyun.com and"},
		"any whole GPU": {on(team, limited("c", "deviceclass.resource.kubernetes.io/gpu.aliyun.com 1")),
			"asks for deviceclass.resource.kubernetes.io/gpu.aliyun.com and"},
		"a request without a limit": {on(team, requested("c", class)),
			"asks for deviceclass.resource.kubernetes.io/share.gpu.aliyun.com and"},
		"the second container":    {on(team, limited("a", ""), limited("b", gpu)), "asks for nvidia.com/gpu"},
		"an init container":       {withInit(on(team, limited("c", "")), limited("i", gpu)), "asks for nvidia.com/gpu"},
		"no GPU":                  {on(team, limited("c", "nvidia.com/gpu 0")), ""},
		"another driver's class":  {on(team, limited("c", "deviceclass.resource.kubernetes.io/nic.example.com 1")), ""},
		"the node alone":          {on(team, limited("c", "")), ""},
		"the GPU alone":           {podFor(gpu + " " + class), ""},
		"a static pod's mirror":   {mirror, "asks for nvidia.com/gpu"},
		"a pod that opted out":    {optingOut(on(team, limited("c", gpu))), "asks for nvidia.com/gpu"},
		"its namespace opted out": {on(optedOut, limited("c", gpu)), ""},
		"the system's":            {on(metav1.NamespaceSystem, limited("c", gpu)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.create(test.pod)
			expect.Error(t, err, test.refused)
			// Who writes pods is not told how to get round it.
			if err != nil && strings.Contains(err.Error(), v1alpha1.LabelLegacy) {
				t.Errorf("error %v", err)
			}
		})
	}
	for user, exempt := range map[string]bool{"system:node:n1": true, "system:serviceaccount:team:default": false,
		"admin": false} {
		if _, err := s.createBy(user, mirror); (err == nil) != exempt {
			t.Errorf("a mirror of a static pod, written by %s: %v", user, err)
		}
	}
}

// The option share-limit bounds shares and touches nothing else, even where its label
// is a typo.
func TestOptionShareLimit(t *testing.T) {
	s := newServer(t)
	of := func(namespace string, labels map[string]string, amounts string) *corev1.Pod {
		return in(namespace, pod("p", labels, limited("c", amounts)))
	}
	eight := map[string]string{ack.PodLabelCount: "8"}
	inBounded := func(p *corev1.Pod) { p.Namespace = bounded }
	s.createEach(t, map[string]newPod{
		"as much as allowed": {of(bounded, nil, "mem 8"), ""},
		"of eight GPUs":      {of(bounded, eight, "mem 64"), ""},
		"more": {of(bounded, nil, "mem 9"), "container c asks for aliyun.com/gpu-mem 9, and " +
			"namespace bounded is allowed shares of 8 GiB of a GPU at most"},
		"more of eight GPUs": {of(bounded, eight, "mem 1120"), "container c asks for aliyun.com/gpu-mem 1120 of 8 " +
			"GPUs, and"},
		"more of a whole GPU": {of(bounded, map[string]string{ack.PodLabelPlacement: ack.RequireWholeDevice}, "mem 15"),
			"container c asks for aliyun.com/gpu-mem 15, and"},
		"a template's own": {changed(fromTemplate("gpushare.mem"), inBounded), ""},
		"more by its template": {changed(fromTemplate("gpushare.mem-x2-whole.c.18"), inBounded),
			"container c asks for aliyun.com/gpu-mem 18 of 2 GPUs, and"},
		"no GPU":                {of(bounded, nil, ""), ""},
		"a typo and no GPU":     {of(boundedTypo, nil, ""), ""},
		"a typo and whole GPUs": {of(boundedTypo, nil, "gpu 2"), ""},
		"a typo and a share": {of(boundedTypo, nil, "mem 1"), `the label gpu.aliyun.com/max-share-gib: "8Gi" of ` +
			`namespace bounded-typo is not a whole number of GiB, from 1 to 999`},
		"a typo and compute as well": {of(boundedTypo, nil, "mem 1 core 5"), "is not a whole number of GiB"},
	})
}

func TestSchedulerOfACK(t *testing.T) {
	s := newServer(t)
	asked := podFor("")
	asked.Spec.SchedulerName = "ack-co-scheduler"
	got, err := s.create(asked)
	if err != nil || got.Spec.SchedulerName != corev1.DefaultSchedulerName {
		t.Errorf("created: %v (%v)", got, err)
	}
	if again, err := s.update(got, asked); err != nil || again.Spec.SchedulerName != corev1.DefaultSchedulerName {
		t.Errorf("applied again: %v (%v)", again, err)
	}
	// A pod that ACK's scheduler has keeps it.
	if again, err := s.update(asked, asked); err != nil || again.Spec.SchedulerName != "ack-co-scheduler" {
		t.Errorf("a pod of ACK's scheduler: %v (%v)", again, err)
	}
}
