// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// withSizes is a namespace in which 100 percent of a GPU's memory are 24 GiB, and a replica 5.
const withSizes = "with-sizes"

// withOthers is a server with the option other-manifests, and with nvidia-gpu-claims, which reads
// nvidia.com/gpu as well.
func withOthers(t testing.TB) *server {
	t.Helper()
	const dir = "testdata/deployments/options/"
	return shared("other-manifests", func() *server {
		objects := append(decoded(t, dir+"other-manifests/policy.yaml", dir+"other-manifests/apply-again.yaml",
			dir+"other-manifests/refuse.yaml", dir+"nvidia-gpu-claims/policy.yaml", dir+"nvidia-gpu-claims/refuse.yaml"),
			runtime.Object(namespace(withSizes, v1alpha1.LabelGPUGiB, "24", v1alpha1.LabelReplicaGiB, "5")))
		return newServerWith(t, objects)
	})
}

// noted is a pod with annotations, written as "key=value".
func noted(p *corev1.Pod, annotations ...string) *corev1.Pod {
	p.Annotations = map[string]string{}
	for _, annotation := range annotations {
		key, value, _ := strings.Cut(annotation, "=")
		p.Annotations[key] = value
	}
	return p
}

// given is "TEMPLATE CONTAINER:REQUEST …" of the claim that a pod was given, and "CONTAINER=RESOURCE" of each limit of
// another project's that it still has.
func given(p *corev1.Pod) string {
	var parts []string
	for _, claim := range p.Spec.ResourceClaims {
		if claim.Name == legacy.ClaimName || claim.Name == legacy.ClaimNVIDIA {
			parts = append(parts, ptr.Deref(claim.ResourceClaimTemplateName, ""))
		}
	}
	for _, c := range members(p) {
		for _, claim := range c.Resources.Claims {
			parts = append(parts, c.Name+":"+claim.Request)
		}
		for _, amounts := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
			for name := range maps.Keys(amounts) {
				if strings.Contains(string(name), "/") {
					parts = append(parts, c.Name+"="+string(name))
				}
			}
		}
	}
	return strings.Join(parts, " ")
}

func TestManifestsOfOthers(t *testing.T) {
	s := withOthers(t)
	one := func(amounts string, annotations ...string) *corev1.Pod {
		return noted(podFor(amounts), annotations...)
	}
	const alone = "gpushare.nvidia.c.1 c:c" // as the option nvidia-gpu-claims gives a whole GPU
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want string // the template's name and who uses it, or what the error says
	}{
		"HAMi: memory":                   {one("nvidia.com/gpu 1 nvidia.com/gpumem 3000"), "gpushare.mem-on--cgpu.c.3 c:c"},
		"HAMi: memory that fills no GiB": {one("nvidia.com/gpu 1 nvidia.com/gpumem 3073"), "gpushare.mem-on--cgpu.c.4 c:c"},
		"HAMi: memory alone":             {one("nvidia.com/gpumem 1"), "gpushare.mem-on--cgpu.c.1 c:c"},
		"HAMi: memory and compute": {one("nvidia.com/gpu 1 nvidia.com/gpumem 3000 nvidia.com/gpucores 33"),
			"gpushare.core.c.3-35 c:c"},
		"HAMi: GPUs by another name": {one("nvidia.com/vgpu 1 nvidia.com/gpumem 4096 nvidia.com/gpucores 50"),
			"gpushare.core.c.4-50 c:c"},
		"HAMi: a GPU by another name": {one("nvidia.com/vgpu 1"), alone},
		"HAMi: GPUs by both names": {one("nvidia.com/gpu 1 nvidia.com/vgpu 1 nvidia.com/gpumem 4096"),
			"resources of two projects"},
		"HAMi: compute by the documents' name": {one("nvidia.com/gpu 1 nvidia.com/gpumem 3000 nvidia.com/cores 30"),
			"gpushare.core.c.3-30 c:c"},
		"HAMi: two GPUs, of each": {one("nvidia.com/gpu 2 nvidia.com/gpumem 3000 nvidia.com/gpucores 30"),
			"gpushare.core-x2.c.6-60 c:c"},
		"HAMi: two containers of two GPUs": {pod("p", nil, limited("a", "nvidia.com/gpu 2 nvidia.com/gpumem 1024"),
			limited("b", ""), limited("c", "nvidia.com/gpu 2 nvidia.com/gpumem 2048")),
			"gpushare.mem-x2-on--cgpu.a.2.c.4 a:a-card0 a:a-card1 c:c-card0 c:c-card1"},
		"HAMi: init containers and sidecars": {withInit(podFor("nvidia.com/gpumem 2000"),
			limited("i", "nvidia.com/gpumem 9000"), sidecar(limited("side", "nvidia.com/gpumem 1000"))),
			"gpushare.mem-on--cgpu.c.2.side.1 c:c i:c side:side"},
		"HAMi: a whole GPU": {one("nvidia.com/gpu 1"), alone},
		"HAMi: no amount of memory": {one("nvidia.com/gpu 1 nvidia.com/gpumem 0"),
			alone + " c=nvidia.com/gpumem c=nvidia.com/gpumem"},
		"HAMi: all compute, so all memory": {one("nvidia.com/gpu 2 nvidia.com/gpucores 100"), "gpushare.nvidia.c.2 c:c"},
		"HAMi: all memory by percent": {one("nvidia.com/gpu 1 nvidia.com/gpumem-percentage 100 nvidia.com/gpucores 50"),
			alone},
		"HAMi: memory wins over percent": {one("nvidia.com/gpumem 1024 nvidia.com/gpumem-percentage 50"),
			"gpushare.mem-on--cgpu.c.1 c:c"},
		"HAMi: percent of a known GPU": {in(withSizes, one("nvidia.com/gpu 1 nvidia.com/gpumem-percentage 30")),
			"gpushare.mem-on--cgpu.c.8 c:c"},
		"HAMi: a whole GPU of a type": {one("nvidia.com/gpu 2", "nvidia.com/use-gputype=A100,V100"),
			"gpushare.nvidia-on--model-a100--model-v100.c.2 c:c"},
		"HAMi: not of these types": {one("nvidia.com/gpumem 1024", "nvidia.com/nouse-gputype=Tesla T4, 1080,"),
			"gpushare.mem-on--cgpu--nomodel-tesla-t4--nomodel-1080.c.1 c:c"},
		"HAMi: of a UUID": {one("nvidia.com/gpu 1 nvidia.com/gpumem 1024 nvidia.com/gpucores 5",
			"nvidia.com/use-gpuuuid=GPU-03f69c50-207a-2038-9b45-23cac89cb67d"),
			"gpushare.core-on--uuid-gpu-03f69c50-207a-2038-9b45-23cac89cb67d.c.1-5 c:c"},
		"HAMi: not of a UUID": {one("nvidia.com/gpu 1", "nvidia.com/nouse-gpuuuid=GPU-1"),
			"gpushare.nvidia-on--nouuid-gpu-1.c.1 c:c"},
		"HAMi: mode hami-core": {one("nvidia.com/gpumem 1024", "nvidia.com/vgpu-mode=hami-core"),
			"gpushare.mem-on--cgpu.c.1 c:c"},
		"HAMi: mode mps": {one("nvidia.com/gpumem 1024", "nvidia.com/vgpu-mode=mps"), "gpushare.mem-on--mps.c.1 c:c"},
		"HAMi: numa-bind of one GPU": {one("nvidia.com/gpumem 1024", "nvidia.com/numa-bind=true"),
			"gpushare.mem-on--cgpu.c.1 c:c"},
		"HAMi: the usual priority": {one("nvidia.com/gpu 1 nvidia.com/gpumem 1024 nvidia.com/priority 1"),
			"gpushare.mem-on--cgpu.c.1 c:c"},
		"HAMi: a GPU of nobody else": {one("nvidia.com/gpu 1 nvidia.com/gpucores 100", "hami.io/gpu-scheduler-policy=mutex"),
			alone},

		"Volcano: memory": {one("volcano.sh/vgpu-number 2 volcano.sh/vgpu-memory 3000"),
			"gpushare.mem-x2-on--cgpu.c.6 c:c"},
		"Volcano: and compute":  {one("volcano.sh/vgpu-memory 3000 volcano.sh/vgpu-cores 50"), "gpushare.core.c.3-50 c:c"},
		"Volcano: a number":     {one("volcano.sh/vgpu-number 1"), alone},
		"Volcano: older memory": {one("volcano.sh/gpu-memory 1024"), "gpushare.mem-on--cgpu.c.1 c:c"},
		"Volcano: older number": {one("volcano.sh/gpu-number 1"), alone},
		"Volcano: percent": {in(withSizes, one("volcano.sh/vgpu-memory-percentage 50")),
			"gpushare.mem-on--cgpu.c.12 c:c"},
		"Volcano: of a UUID": {one("volcano.sh/vgpu-memory 1024", "volcano.sh/vgpu-use-gpuuuid=GPU-1,GPU-2",
			"volcano.sh/vgpu-mode=hami-core"), "gpushare.mem-on--cgpu--uuid-gpu-1--uuid-gpu-2.c.1 c:c"},

		"vgpu-manager: both": {one("nvidia.com/vgpu-number 1 nvidia.com/vgpu-cores 10 nvidia.com/vgpu-memory 1024"),
			"gpushare.core.c.1-10 c:c"},
		"vgpu-manager: a number": {one("nvidia.com/vgpu-number 1"), alone},
		"vgpu-manager: types": {one("nvidia.com/vgpu-number 1 nvidia.com/vgpu-memory 1024",
			"nvidia.com/include-gpu-type=A10", "nvidia.com/exclude-gpu-type=A100"),
			"gpushare.mem-on--cgpu--model-a10--nomodel-a100.c.1 c:c"},

		"a replica": {in(withSizes, one("nvidia.com/gpu.shared 1")), "gpushare.mem.c.5 c:c"},
		"replicas": {in(withSizes, one("nvidia.com/gpu.shared 2")),
			"several nvidia.com/gpu.shared give a program no more than one"},
		"a replica, no size":  {one("nvidia.com/gpu.shared 1"), "gpu.aliyun.com/replica-gib=GIB of namespace team"},
		"a replica and a GPU": {in(withSizes, one("nvidia.com/gpu.shared 1 nvidia.com/gpu 1")), "use those of one"},

		"percent without a size": {one("nvidia.com/gpu 1 nvidia.com/gpumem-percentage 50"),
			"write nvidia.com/gpumem (MiB), volcano.sh/vgpu-memory (MiB) or aliyun.com/gpu-mem (GiB), or have an " +
				"administrator set the size of 100 percent by the label gpu.aliyun.com/gpu-gib=GIB of namespace team"},
		"less than nothing of a GPU": {one("nvidia.com/gpu 1 nvidia.com/gpumem -3000"),
			"nvidia.com/gpumem of container c is no whole number"},
		"less than no GPU": {one("nvidia.com/gpu -1 nvidia.com/gpumem 3000"),
			"nvidia.com/gpu of container c is no whole number"},
		"half a MiB":    {one("nvidia.com/gpumem 500m"), "nvidia.com/gpumem of container c is no whole number"},
		"thousands":     {one("nvidia.com/gpumem 3e3"), "gpushare.mem-on--cgpu.c.3 c:c"},
		"more than all": {one("nvidia.com/gpumem-percentage 101"), "100 at most"},
		"more compute":  {one("nvidia.com/gpumem 1024 nvidia.com/gpucores 101"), "100 at most"},
		"mode mig": {one("nvidia.com/gpumem 1024", "nvidia.com/vgpu-mode=mig"),
			"ask for its profile, as nvidia.com/mig-1g.10gb: 1"},
		"whole, in mode mig": {one("nvidia.com/gpu 1", "nvidia.com/vgpu-mode=mig"), "vgpu-mode mig:"},
		"mode mps and compute": {one("nvidia.com/gpumem 1024 nvidia.com/gpucores 20", "nvidia.com/vgpu-mode=mps"),
			"remove nvidia.com/gpucores"},
		"a high priority": {one("nvidia.com/gpumem 1024 nvidia.com/priority 0"), "remove nvidia.com/priority"},
		"places":          {one("nvidia.com/gpu 1", "nvidia.com/use-gpuindexes=0,1"), "choose it by nvidia.com/use-gpuuuid"},
		"one NUMA node": {one("nvidia.com/gpu 2", "nvidia.com/numa-bind=true"),
			"matchAttribute: resource.kubernetes.io/numaNode"},
		"memory as an annotation": {one("nvidia.com/gpu 1", "nvidia.com/gpumem=3000"),
			"the annotation nvidia.com/gpumem limits nothing: write it among the limits of the container"},
		"compute as an annotation": {one("nvidia.com/gpu 1 nvidia.com/gpumem 3000", "nvidia.com/gpucores=30"),
			"the annotation nvidia.com/gpucores limits nothing"},
		"memory as an annotation, and as a limit": {one("nvidia.com/gpu 1 nvidia.com/gpumem 3000", "nvidia.com/gpumem=3000"),
			"gpushare.mem-on--cgpu.c.3 c:c"},
		"a share for oneself": {one("nvidia.com/gpumem 1024", "hami.io/gpu-scheduler-policy=mutex"),
			"ask for nvidia.com/gpu alone"},
		"bytes":          {one("nvidia.com/gpumem 3Gi"), "nvidia.com/gpumem of container c is no whole number up to 1048576"},
		"half":           {one("nvidia.com/gpumem 0.5"), "is no whole number"},
		"too much":       {one("nvidia.com/gpumem 1048576"), "no GPU has more than 999 GiB"},
		"as on ACK, too": {one("nvidia.com/gpumem 1024 mem 3"), "the pod asks for GPUs twice"},
		"two projects":   {one("nvidia.com/gpumem 1024 volcano.sh/vgpu-memory 1024"), "resources of two projects"},
		"only an init container": {withInit(podFor(""), limited("i", "nvidia.com/gpumem 1024")),
			"only init containers ask for a GPU"},
		"not alike": {pod("p", nil, limited("a", "nvidia.com/gpumem 1024"),
			limited("b", "nvidia.com/gpumem 1024 nvidia.com/gpucores 5")),
			"all containers have to ask alike"},
		"other numbers of GPUs": {pod("p", nil, limited("a", "nvidia.com/gpumem 1024"),
			limited("b", "nvidia.com/gpu 2 nvidia.com/gpumem 1024")),
			"ask for as many GPUs in each"},
		"too many GPUs": {one("volcano.sh/vgpu-number 14 volcano.sh/vgpu-memory 1024"),
			"more GPUs than the scheduler can look for"},
		"more than a claim's": {one("volcano.sh/vgpu-number 33 volcano.sh/vgpu-memory 1024"), "32 GPUs or shares at most"},
		"a long annotation": {one("nvidia.com/gpu 1", "nvidia.com/use-gputype="+strings.Repeat("A100,", 20000)),
			"name fewer"},
		"an odd annotation": {one("nvidia.com/gpu 1", `nvidia.com/use-gputype=A100")`),
			"may have letters, digits, - and blanks"},
		"the claim's name": {changed(one("nvidia.com/gpumem 1024"), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: legacy.ClaimName}}
		}), `an entry "gpushare" in spec.resourceClaims`},

		"another resource":  {one("nvidia.com/mig-1g.5gb 1"), " c=nvidia.com/mig-1g.5gb c=nvidia.com/mig-1g.5gb"},
		"nothing":           {one("", "nvidia.com/use-gputype=A100"), ""},
		"opted out":         {optingOut(one("nvidia.com/gpumem 1024")), "c=nvidia.com/gpumem c=nvidia.com/gpumem"},
		"its namespace did": {in(optedOut, one("nvidia.com/gpumem 1024")), "c=nvidia.com/gpumem c=nvidia.com/gpumem"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := s.create(test.pod)
			switch {
			case err != nil:
				if test.want == "" || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want %q", err, test.want)
				}
			case given(got) != strings.TrimSpace(test.want):
				t.Errorf("it was given %q, want %q", given(got), test.want)
			}
			if err != nil || !strings.Contains(test.want, "gpushare.") {
				return
			}
			if _, err := legacy.ParseName(strings.Fields(test.want)[0]); err != nil {
				t.Errorf("the controller makes no such template: %v", err)
			}
			if again, err := s.create(got); err != nil || !cmp.Equal(got, again) {
				t.Errorf("a second pass: %v (-first +second):\n%s", err, cmp.Diff(got, again))
			}
			updated, err := s.update(got, askingAgain(got, test.pod))
			if err != nil || !cmp.Equal(got, updated) {
				t.Errorf("applied again: %v (-first +again):\n%s", err, cmp.Diff(got, updated))
			}
		})
	}
}

// askingAgain is what applying a manifest again makes of its pod: all limits of the manifest beside what was added.
func askingAgain(stored, manifest *corev1.Pod) *corev1.Pod {
	p := applied(stored, manifest)
	for i, c := range manifest.Spec.InitContainers {
		p.Spec.InitContainers[i].Resources.Limits, p.Spec.InitContainers[i].Resources.Requests = c.Resources.Limits,
			c.Resources.Requests
	}
	return p
}

// What comes of annotations, variables and the scheduler beside the claim.
func TestWhatElseManifestsOfOthersSay(t *testing.T) {
	s := withOthers(t)
	asked := noted(podFor("nvidia.com/gpu 2 nvidia.com/gpumem 3000"),
		"hami.io/node-scheduler-policy=spread")
	asked.Spec.SchedulerName = "hami-scheduler"
	asked.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "CUDA_DISABLE_CONTROL", Value: "true"}}
	got, err := s.create(asked)
	expect.NoError(t, err)
	want := asked.DeepCopy()
	want.TypeMeta, want.Spec.SchedulerName = got.TypeMeta, corev1.DefaultSchedulerName
	want.Labels = map[string]string{v1alpha1.LabelLegacy: "true", v1alpha1.LabelNodePlacement: "spread"}
	want.Annotations[v1alpha1.AnnotationLegacyRequest] = `{"c":{"aliyun.com/gpu-mem":"6"}}`
	want.Annotations[v1alpha1.AnnotationOtherRequest] = `{"c":{"nvidia.com/gpu":"2","nvidia.com/gpumem":"3k"}}`
	want.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: legacy.ClaimName,
		ResourceClaimTemplateName: ptr.To("gpushare.mem-x2-on--cgpu.c.6")}}
	c := &want.Spec.Containers[0]
	c.Resources = limited("c", "").Resources
	c.Resources.Claims = []corev1.ResourceClaim{{Name: legacy.ClaimName, Request: "c"}}
	c.Env = append(c.Env, corev1.EnvVar{Name: "CGPU_DISABLE", Value: "true"})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	again := askingAgain(got, asked)
	again.Spec.SchedulerName = asked.Spec.SchedulerName
	if again, err = s.update(got, again); err != nil || !cmp.Equal(got, again) {
		t.Errorf("applied again: %v (-first +again):\n%s", err, cmp.Diff(got, again))
	}
	// Another amount is for the API server to refuse.
	other := askingAgain(got, podFor("nvidia.com/gpu 2 nvidia.com/gpumem 4000"))
	if changed, err := s.update(got, other); err != nil || !cmp.Equal(other, changed) {
		t.Errorf("with another amount: %v (-applied +got):\n%s", err, cmp.Diff(other, changed))
	}
}

func TestSchedulersOfOthers(t *testing.T) {
	s := withOthers(t)
	for scheduler, want := range map[string]string{"hami-scheduler": corev1.DefaultSchedulerName,
		"vgpu-scheduler": corev1.DefaultSchedulerName, "volcano": "volcano", "mine": "mine"} {
		asked := podFor("")
		asked.Spec.SchedulerName = scheduler
		if got, err := s.create(asked); err != nil || got.Spec.SchedulerName != want {
			t.Errorf("%s became %v, %v, want %s", scheduler, got, err, want)
		}
	}
}

// Limits of a webhook come too late: none of the policies looks at a pod again that asked for nothing.
func TestLimitsOfOthersThatAWebhookAdds(t *testing.T) {
	s := withOthers(t)
	_, err := s.createBefore(func(p *corev1.Pod) { p.Spec.Containers[0] = limited("c", "nvidia.com/gpumem 1024") },
		podFor(""))
	expect.Error(t, err, "did a webhook add the limits")
}

// The API server calls policies in no order: each comes first here.
func TestPoliciesReadOthersInAnyOrder(t *testing.T) {
	const dir, convert = "testdata/deployments/options/", "gpushare-legacy-convert"
	with := func(option string) *server {
		t.Helper()
		objects := append(decoded(t, dir+option+"/policy.yaml"),
			runtime.Object(namespace(withSizes, v1alpha1.LabelReplicaGiB, "5")))
		return newServerWith(t, objects, allBut(t, convert)...)
	}
	first, second := with("other-manifests"), with("nvidia-gpu-claims")
	for _, p := range []*corev1.Pod{
		podFor("nvidia.com/gpu 1"),
		podFor("nvidia.com/gpu 1 nvidia.com/gpumem 3000"),
		pod("p", nil, limited("a", "nvidia.com/gpu 1"), limited("b", "volcano.sh/vgpu-number 1")),
		podFor("nvidia.com/gpu 1 nvidia.com/gpucores 100"),
		podFor("nvidia.com/gpu 1 nvidia.com/cores 30"),
		noted(podFor("nvidia.com/gpu 1"), "nvidia.com/use-gputype=A100"),
		noted(podFor("nvidia.com/gpu 2"), "nvidia.com/numa-bind=true"),
		noted(podFor("nvidia.com/gpu 1"), "nvidia.com/gpumem=3000"),
		pod("p", nil, limited("a", "mem 3"), limited("b", "nvidia.com/gpumem 3000")),
		podOf(withSizes, limited("c", "nvidia.com/gpu.shared 1")),
	} {
		var results []*corev1.Pod
		for _, order := range [][]*server{{first, second}, {second, first}} {
			// The API server calls those again that did something, until nothing changes.
			got := p
			for _, s := range append(order, order...) {
				var err error
				if got, err = s.create(got); err != nil {
					t.Fatal(err)
				}
			}
			results = append(results, got)
		}
		if diff := cmp.Diff(given(results[0]), given(results[1])); diff != "" {
			t.Errorf("%s, with annotations %v (-other-manifests first +last):\n%s", describe(p), p.Annotations, diff)
		}
	}
}

// A pod of as many containers as a manifest has at the very most is still within the API server's budget.
func TestManyContainersOfOthers(t *testing.T) {
	var containers []corev1.Container
	for i := range 64 {
		amounts := "nvidia.com/gpumem 1024 nvidia.com/gpucores 5"
		if i >= 16 {
			amounts = ""
		}
		containers = append(containers, limited(fmt.Sprintf("c%d", i), amounts))
	}
	p := noted(pod("p", nil, containers...), "nvidia.com/use-gputype="+strings.Repeat("A10,", 5))
	got, err := withOthers(t).create(p)
	if err != nil || !strings.HasPrefix(template(got), "gpushare.core-on--model-a10--") {
		t.Errorf("%v, %v", got, err)
	}
}
