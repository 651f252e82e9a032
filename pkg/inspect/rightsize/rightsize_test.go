// SPDX-License-Identifier: Apache-2.0

package rightsize_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/consumption"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/rightsize"
)

// scene is a namespace of pods with one claim each, and what they used.
type scene struct {
	pods   []*corev1.Pod
	claims []*resourceapi.ResourceClaim
	users  []consumption.User
}

// pod adds a pod of a controller, "Kind/name", with a claim of a template and these devices, each as in
// "request gpu-0-share 4".
func (s *scene) pod(name, controller, template string, results ...string) {
	kind, owner, _ := strings.Cut(controller, "/")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name,
		CreationTimestamp: metav1.NewTime(time.Unix(int64(len(s.pods)), 0))}}
	if kind != "" {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner, Controller: ptr.To(true)}}
		pod.Labels = map[string]string{"pod-template-hash": "7d9f"}
	}
	pod.Spec.Containers = []corev1.Container{{Name: "main"}, {Name: "other"}}
	pod.Spec.InitContainers = []corev1.Container{{Name: "side",
		RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{
		{Name: "gpu", ResourceClaimName: ptr.To(name + "-gpu")}}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name + "-gpu"}}
	if strings.HasPrefix(template, "gpushare.") {
		claim.Labels = map[string]string{v1alpha1.LabelLegacy: "true"}
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{}
	for _, text := range results {
		fields := strings.Fields(text)
		result := resourceapi.DeviceRequestAllocationResult{Request: fields[0], Driver: v1alpha1.DriverName,
			Pool: v1alpha1.PoolName("n1"), Device: fields[1]}
		if len(fields) > 2 {
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
				v1alpha1.CapMemory: resource.MustParse(fields[2] + "Gi")}
		}
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, result)
	}
	s.pods, s.claims = append(s.pods, pod), append(s.claims, claim)
}

// used is what was seen of a pod in so many hours, each as in "main GPU-0 3.5".
func (s *scene) used(pod string, hours float64, peaks ...string) *consumption.User {
	long := time.Duration(hours * float64(time.Hour))
	series := consumption.Series{Namespace: "team", Pod: pod, Claim: pod + "-gpu", UUID: "GPU-0"}
	workloads := consumption.NewWorkloads(s.pods)
	user := consumption.User{Workload: workloads.Pod("team", pod), Pod: pod, Gone: !workloads.There("team", pod),
		Granted: []consumption.Granted{{Series: series, Present: long, Seen: long, Age: long}}}
	for _, text := range peaks {
		of := consumption.Used{Series: series}
		if _, err := fmt.Sscan(text, &of.Container, &of.UUID, &of.MostGiB); err != nil {
			panic(err)
		}
		user.Used = append(user.Used, of)
	}
	s.users = append(s.users, user)
	return &s.users[len(s.users)-1]
}

func (s *scene) decide() *rightsize.Report {
	return rightsize.Decide(rightsize.Input{Settings: rightsize.Settings(s.pods, s.claims), Users: s.users, Headroom: 0.2,
		LargestGiB: 15})
}

const week = 7 * 24

// It names the waste that was scripted, and advises against nothing that peaked.
func TestAdvice(t *testing.T) {
	const infer, legacy = "ReplicaSet/infer-7d9f", "gpushare.mem.main.8"
	for name, test := range map[string]struct {
		script func(s *scene)
		// want are, for each setting, workload, GiB needed, verdict and the beginning of the reason.
		want  []string
		frees int64
	}{
		"waste": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, legacy, "main gpu-0-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 2.1")
		}, []string{"deployment/infer 3 shrink it never used more than 2.1 GiB"}, 5},
		"never used": {func(s *scene) {
			s.pod("idle", "", legacy, "main gpu-0-share 8")
			s.used("idle", week)
		}, []string{"pod/idle 1 shrink it never used its GPU"}, 7},
		"a peak of one of two pods": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, legacy, "main gpu-0-share 8")
			s.pod("infer-7d9f-b", infer, legacy, "main gpu-1-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 1")
			s.used("infer-7d9f-b", week, "main GPU-1 4.1")
		}, []string{"deployment/infer 5 shrink it never used more than 4.1 GiB"}, 6},
		"a peak of a pod that is gone": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, legacy, "main gpu-0-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 1")
			s.used("infer-55c8f97bb-9zzzz", 1, "main GPU-0 7.9")
		}, []string{"deployment/infer 8 keep its peak needs what it has"}, 0},
		"a peak that needs just what it has": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, legacy, "main gpu-0-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 6.5")
		}, []string{"deployment/infer 8 keep its peak needs what it has"}, 0},
		"less room than asked for": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, legacy, "main gpu-0-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 7")
		}, []string{"deployment/infer 9 grow above its peak is less room than asked for"}, -1},
		"a share that was filled": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, legacy, "main gpu-0-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 8")
		}, []string{"deployment/infer 10 grow it filled its share"}, -2},
		"more than a GPU has": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, "gpushare.mem.main.15", "main gpu-0-share 15")
			s.used("infer-7d9f-a", week, "main GPU-0 15")
		}, []string{"deployment/infer 18 keep it needs more, and no GPU has that"}, 0},
		"less than a day": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, legacy, "main gpu-0-share 8")
			s.used("infer-7d9f-a", 23.9, "main GPU-0 1")
		}, []string{"deployment/infer 0 wait it was seen for less than a day"}, 0},
		"less than a day, by many pods": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, legacy, "main gpu-0-share 8")
			s.pod("infer-7d9f-b", infer, legacy, "main gpu-0-share 8")
			s.used("infer-7d9f-a", 13, "main GPU-0 1")
			s.used("infer-7d9f-b", 13, "main GPU-0 1")
		}, []string{"deployment/infer 0 wait it was seen for less than a day"}, 0},
		"an hour each night": {func(s *scene) {
			s.pod("nightly-x", "Job/nightly", legacy, "main gpu-0-share 8")
			for night := range 6 {
				s.used(fmt.Sprintf("nightly-%d", night), 1, "main GPU-0 1").Granted[0].Age = week * time.Hour
			}
		}, []string{"job/nightly 0 wait it was seen for less than a day"}, 0},
		"never seen": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, legacy, "main gpu-0-share 8")
		}, []string{"deployment/infer 0 wait it was seen for less than a day"}, 0},
		"a time when nobody looked": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, legacy, "main gpu-0-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 1").Granted[0].Seen = 150 * time.Hour
		}, []string{"deployment/infer 0 wait what it used is not known for part of its time"}, 0},
		"two containers": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, "gpushare.mem.main.8.side.4", "main gpu-0-share 8", "side gpu-0-share 4")
			s.used("infer-7d9f-a", week, "main GPU-0 1", "side GPU-0 3")
		}, []string{"deployment/infer 2 shrink it never used more than 1.0", "deployment/infer 4 keep its peak"}, 6},
		"two containers of one share": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, "three", "gpu gpu-0-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 2", "other GPU-0 2")
		}, []string{"deployment/infer 5 shrink it never used more than 4.0"}, 3},
		"several GPUs": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, "gpushare.mem-x2.main.16", "main gpu-0-share 8", "main gpu-1-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 1", "main GPU-1 3")
		}, []string{"deployment/infer 4 shrink it never used more than 3.0"}, 8},
		"two workloads of one template": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, "eight", "gpu gpu-0-share 8")
			s.pod("db-0", "StatefulSet/db", "eight", "gpu gpu-0-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 1")
			s.used("db-0", week, "main GPU-0 6")
		}, []string{"deployment/infer,statefulset/db 8 keep its peak needs"}, 0},
		"a young workload of one template": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, "eight", "gpu gpu-0-share 8")
			s.pod("db-0", "StatefulSet/db", "eight", "gpu gpu-0-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 1")
			s.used("db-0", 2, "main GPU-0 1")
		}, []string{"deployment/infer,statefulset/db 0 wait it was seen for less than a day"}, 0},
		"a template of pods that do not run now": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, "eight", "gpu gpu-0-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 1")
			s.used("nightly-29834000-x", 2, "main GPU-0 6").Granted[0].MostGiB = 8.4
			s.used("small-29834000-x", 2, "main GPU-0 15").Granted[0].MostGiB = 4.2
		}, []string{"deployment/infer 8 keep its peak needs what it has"}, 0},
		"a claim of two pods": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, "", "gpu gpu-0-share 8")
			s.pod("db-0", "StatefulSet/db", "", "gpu gpu-0-share 8")
			for _, pod := range s.pods {
				pod.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: ptr.To("shared")}
			}
			s.claims = s.claims[:1]
			s.claims[0].Name = "shared"
			u := s.used("", week, "main GPU-0 1", "other GPU-0 1.5")
			u.Workload.Kind, u.Granted[0].Claim = "resourceclaim", "shared"
		}, []string{"deployment/infer,statefulset/db 3 shrink it never used more than 2.5 GiB"}, 5},
		"a whole GPU": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, "whole", "gpu gpu-0")
			s.used("infer-7d9f-a", week, "main GPU-0 1")
		}, []string{"deployment/infer 0 skip it has GPUs in mode exclusive, which are not sized by GiB"}, 0},
		"several requests": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, "two", "a gpu-0-share 8", "b gpu-0-share 8")
			s.used("infer-7d9f-a", week, "main GPU-0 1")
		}, []string{"deployment/infer 0 skip its claim has several requests"}, 0},
		"all of a GPU's memory": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, "gpushare.mem-whole.main.15", "main gpu-0-share 15")
			s.used("infer-7d9f-a", week, "main GPU-0 1")
		}, []string{"deployment/infer 0 skip its pods ask for all of a GPU's memory"}, 0},
		"while it is rolled out": {func(s *scene) {
			s.pod("infer-7d9f-a", infer, legacy, "main gpu-0-share 8")
			s.pod("infer-7d9f-b", infer, "gpushare.mem.main.4", "main gpu-0-share 4")
			s.used("infer-7d9f-a", week, "main GPU-0 1.5")
		}, []string{"deployment/infer 2 shrink it never used more than 1.5"}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			var s scene
			test.script(&s)
			got := s.decide()
			if len(got.Advice) != len(test.want) || got.FreesGiB != test.frees {
				t.Fatalf("got %+v, which frees %d, want %d of it, which free %d", got.Advice, got.FreesGiB, len(test.want),
					test.frees)
			}
			for i, a := range got.Advice {
				text := fmt.Sprintf("%s %d %s %s", strings.Join(a.Workloads, ","), a.NeedsGiB, a.Verdict, a.Why)
				if !strings.HasPrefix(text, test.want[i]) {
					t.Errorf("got %q, want %q", text, test.want[i])
				}
				if a.NeedsGiB > 0 && float64(a.NeedsGiB) < a.PeakGiB {
					t.Errorf("it is advised to have less than it needed: %+v", a)
				}
				expect.Equal(t, a.Verdict == rightsize.Shrink || a.Verdict == rightsize.Grow, a.Command+a.Write != "",
					"advice of %s has a command: %q%q", a.Verdict, a.Command, a.Write)
			}
		})
	}
}

func TestHowToWriteIt(t *testing.T) {
	const limits = `{"limits":{"aliyun.com/gpu-mem":"2"},"requests":{"aliyun.com/gpu-mem":"2"}}`
	for name, test := range map[string]struct{ controller, template, device, want string }{
		"a Deployment": {"ReplicaSet/infer-7d9f", "gpushare.mem.main.8", "main gpu-0-share 8",
			`kubectl patch deployment/infer -n team -p '{"spec":{"template":{"spec":{"containers":[{"name":"main","resources":` +
				limits + `}]}}}}'`},
		"a sidecar of a DaemonSet": {"DaemonSet/probe", "gpushare.mem.side.8", "side gpu-0-share 8",
			`kubectl patch daemonset/probe -n team -p '{"spec":{"template":{"spec":{"initContainers":[{"name":"side",` +
				`"resources":` + limits + `}]}}}}'`},
		"several GPUs": {"StatefulSet/db", "gpushare.mem-x2.main.16", "main gpu-0-share 8",
			`kubectl patch statefulset/db -n team -p '{"spec":{"template":{"spec":{"containers":[{"name":"main","resources":` +
				strings.ReplaceAll(limits, `"2"`, `"4"`) + `}]}}}}'`},
		"a CronJob": {"Job/nightly-00000001", "gpushare.mem.main.8", "main gpu-0-share 8",
			`kubectl patch cronjob/nightly -n team -p '{"spec":{"jobTemplate":{"spec":{"template":{"spec":{"containers":` +
				`[{"name":"main","resources":` + limits + `}]}}}}}}'`},
		"a Job": {"Job/train", "gpushare.mem.main.8", "main gpu-0-share 8",
			`write aliyun.com/gpu-mem: "2" for container main into the manifest of job/train, and make it again`},
		"a pod": {"", "gpushare.mem.main.8", "main gpu-0-share 8",
			`write aliyun.com/gpu-mem: "2" for container main into the manifest of pod/p, and make it again`},
		"a template": {"ReplicaSet/infer-7d9f", "eight", "gpu gpu-0-share 8",
			"write 2Gi for the capacity memory of request gpu into the manifest of resourceclaimtemplate/eight, which does " +
				"not change: `kubectl replace --force -n team -f` it, and have its pods made again"},
	} {
		t.Run(name, func(t *testing.T) {
			var s scene
			s.pod("p", test.controller, test.template, test.device)
			s.used("p", week, "main GPU-0 1.5")
			report := s.decide()
			if len(report.Advice) != 1 {
				t.Fatalf("got %+v", report.Advice)
			}
			expect.Equal(t, test.want, report.Advice[0].Command+report.Advice[0].Write, "told")
		})
	}
}
