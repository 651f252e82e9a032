// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

func TestWhereTheyLand(t *testing.T) {
	const template = `
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: eight}
spec:
  spec:
    devices:
      requests:
      - {name: gpu, exactly: {deviceClassName: share.gpu.aliyun.com, capacity: {requests: {memory: 8Gi}}}}
`
	const claimed = `
apiVersion: batch/v1
kind: Job
metadata: {name: job}
spec:
  parallelism: 3
  completions: 2
  template:
    spec:
      restartPolicy: Never
      resourceClaims: [{name: gpu, resourceClaimTemplateName: eight}]
      containers: [{name: main, image: train, resources: {claims: [{name: gpu}]}}]
`
	const shared = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: one}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: exclusive.gpu.aliyun.com}}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: set}
spec:
  replicas: 2
  serviceName: set
  ordinals: {start: 5}
  selector: {matchLabels: {app: set}}
  template:
    metadata: {labels: {app: set}}
    spec:
      resourceClaims: [{name: gpu, resourceClaimName: one}]
      containers: [{name: main, image: train, resources: {claims: [{name: gpu}]}}]
`
	for name, test := range map[string]struct {
		nodes    func(*site)
		manifest string
		want     []string
	}{
		"shares as on ACK fill a GPU before the next": {
			func(s *site) { s.node("n1", 2, mode.Share) }, workload("Deployment", 5, "aliyun.com/gpu-mem: 5"),
			[]string{"train-0=n1:gpu-0-share", "train-1=n1:gpu-0-share", "train-2=n1:gpu-0-share", "train-3=n1:gpu-1-share",
				"train-4=n1:gpu-1-share"},
		},
		"shares of a node with spread go round": {
			func(s *site) { s.spreadNode("n1", 3) }, workload("Deployment", 7, "aliyun.com/gpu-mem: 4"),
			[]string{"train-0=n1:gpu-0-share", "train-1=n1:gpu-1-share", "train-2=n1:gpu-2-share", "train-3=n1:gpu-0-share",
				"train-4=n1:gpu-1-share", "train-5=n1:gpu-2-share", "train-6=n1:gpu-0-share"},
		},
		"what spread holds back is let go for who needs it": {
			func(s *site) { s.spreadNode("n1", 2) },
			workload("Deployment", 2, "aliyun.com/gpu-mem: 6", `, "aliyun.com/gpu-count": "2"`),
			[]string{"train-0=n1:gpu-0-share+gpu-1-share", "train-1=n1:gpu-0-share+gpu-1-share"},
		},
		"some wait": {
			func(s *site) { s.node("n1", 1, mode.Share) }, workload("Deployment", 3, "aliyun.com/gpu-mem: 8"),
			[]string{"train-0=n1:gpu-0-share", "train-1=-", "train-2=-"},
		},
		"whole GPUs": {
			func(s *site) { s.node("n1", 2, mode.Exclusive) }, workload("ReplicaSet", 2, "nvidia.com/gpu: 1"),
			[]string{"train-0=n1:gpu-0", "train-1=n1:gpu-1"},
		},
		"a device plugin has what no claim can have": {
			func(s *site) {
				s.node("n1", 1, mode.Exclusive, allocatable(map[corev1.ResourceName]string{"pods": "10"}))
				s.Nodes = append(s.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "old"}})
				allocatable(map[corev1.ResourceName]string{"pods": "10", "nvidia.com/gpu": "1"})(s.Nodes[1])
			}, workload("Deployment", 3, "nvidia.com/gpu: 1"),
			[]string{"train-0=n1:gpu-0", "train-1=old:", "train-2=-"},
		},
		"claims of a template, as many as run at once": {
			func(s *site) { s.node("n1", 1, mode.Share); s.node("n2", 1, mode.Share) }, claimed + template,
			[]string{"job-0=n1:gpu-0-share", "job-1=n2:gpu-0-share"},
		},
		"one claim of several pods": {
			func(s *site) { s.node("n1", 1, mode.Exclusive); s.node("n2", 1, mode.Exclusive) }, shared,
			[]string{"set-5=n1:gpu-0", "set-6=n1:"},
		},
		"CPU that is used up": {
			func(s *site) {
				s.node("n1", 4, mode.Share, allocatable(map[corev1.ResourceName]string{"cpu": "4", "memory": "8Gi", "pods": "9"}))
				s.Bound = []*corev1.Pod{{Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}}}}}
			}, workload("Deployment", 2, "aliyun.com/gpu-mem: 2, cpu: 2"),
			[]string{"train-0=n1:gpu-0-share", "train-1=-"},
		},
		"the node with the least requested": {
			func(s *site) {
				s.node("n1", 1, mode.Share, allocatable(map[corev1.ResourceName]string{"cpu": "4", "pods": "9"}))
				s.node("n2", 1, mode.Share, allocatable(map[corev1.ResourceName]string{"cpu": "8", "pods": "9"}))
			}, workload("Deployment", 3, "aliyun.com/gpu-mem: 2, cpu: 2"),
			[]string{"train-0=n1:gpu-0-share", "train-1=n2:gpu-0-share", "train-2=n2:gpu-0-share"},
		},
		"a gang of which too few find room": {
			func(s *site) { s.node("n1", 1, mode.Share) },
			workload("Deployment", 3, "aliyun.com/gpu-mem: 5", `, pod-group.scheduling.sigs.k8s.io/name: g, `+
				`pod-group.scheduling.sigs.k8s.io/min-available: "4"`),
			[]string{"train-0=-", "train-1=-", "train-2=-"},
		},
		"a gang of which enough do": {
			func(s *site) { s.node("n1", 1, mode.Share) },
			workload("Deployment", 4, "aliyun.com/gpu-mem: 5", `, pod-group.scheduling.sigs.k8s.io/name: g, `+
				`pod-group.scheduling.sigs.k8s.io/min-available: "3"`),
			[]string{"train-0=n1:gpu-0-share", "train-1=n1:gpu-0-share", "train-2=n1:gpu-0-share", "train-3=-"},
		},
		"compute": {
			func(s *site) { s.node("n1", 1, mode.CoreMem) },
			workload("Deployment", 3, "aliyun.com/gpu-mem: 2, aliyun.com/gpu-core.percentage: 40"),
			[]string{"train-0=n1:gpu-0-core-mem", "train-1=n1:gpu-0-core-mem", "train-2=-"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			test.nodes(s)
			s.read(t, test.manifest)
			made := s.plan(t)
			expect.Equal(t, test.want, verdicts(made), "they land at\n%s", printed(t, made))
			waits := 0
			for _, v := range test.want {
				if strings.HasSuffix(v, "=-") {
					waits++
				}
			}
			if made.Waits != waits || made.Fits != len(test.want)-waits || made.AllFit() != (waits == 0) {
				t.Errorf("%d fit and %d wait", made.Fits, made.Waits)
			}
		})
	}
}

func TestDaemonSetsHaveAPodOnEachNode(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1, mode.Share)
	s.node("n2", 1, mode.Share, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	s.node("n3", 1, mode.Share, func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	})
	s.node("n4", 1, mode.Exclusive)
	s.read(t, strings.Replace(workload("DaemonSet", 0, "aliyun.com/gpu-mem: 2"), "  replicas: 0\n", "", 1))
	want := []string{"train-n1=n1:gpu-0-share", "train-n2=n2:gpu-0-share", "train-n4=-"}
	expect.Equal(t, want, verdicts(s.plan(t)), "verdicts")
}

func TestWhyTheyWait(t *testing.T) {
	pod := func(spec string, meta ...string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: p" + strings.Join(meta, "") + "}\nspec: {" + spec + "}\n"
	}
	const asks = "containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 8}}}]"
	const template = "resourceClaims: [{name: gpu, resourceClaimTemplateName: absent}], containers: [{name: c, image: i}]"
	const claim = "resourceClaims: [{name: gpu, resourceClaimName: absent}], containers: [{name: c, image: i}]"
	for name, test := range map[string]struct {
		site     func(*site)
		manifest string
		want     []string
	}{
		"full": {nil, workload("Deployment", 3, "aliyun.com/gpu-mem: 8"), []string{
			"1 of 3 pods would find room, 2 would wait.", "deployment/train -n team (m.yaml, document 1), 2 pods: no node " +
				"has room",
			"asked: claim train-1-gpushare, request main: 1 of class memory.gpu.aliyun.com, memory 8Gi",
			"node n1 (1 GPUs): memory: asked 8Gi, largest free 7Gi on gpu-0",
			"would help: 1Gi more memory free of gpu-0-share on node n1; held by pod team/train-0 (8Gi)",
			"With these pods:\nNAME", "8/15"}},
		"never": {nil, workload("Deployment", 1, "aliyun.com/gpu-mem: 16"), []string{"can never be scheduled",
			"the largest GPU that matches has 15Gi"}},
		"another mode": {nil, workload("Deployment", 1, "nvidia.com/gpu: 1"), []string{"asked class", "offers share"}},
		"taint": {func(s *site) {
			s.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
		}, pod(asks), []string{"the pod does not tolerate its taint dedicated:NoSchedule"}},
		"nodeSelector": {nil, pod(asks + ", nodeSelector: {zone: a}"), []string{"nodeSelector"}},
		"memory of the node": {
			func(s *site) { allocatable(map[corev1.ResourceName]string{"memory": "1Gi", "pods": "9"})(s.Nodes[0]) },
			workload("Deployment", 1, "aliyun.com/gpu-mem: 8, memory: 2Gi"),
			[]string{"node n1 (1 GPUs): memory: asked 2Gi, free 1Gi"}},
		"no GPU asked for, and no room": {
			func(s *site) { allocatable(map[corev1.ResourceName]string{"pods": "0"})(s.Nodes[0]) },
			pod("containers: [{name: c, image: i}]"), []string{"no node takes it", "pods: asked 1, free 0"}},
		"no template": {nil, pod(template),
			[]string{"the ResourceClaimTemplate absent does not exist in namespace team, and the manifests have none"}},
		"no claim": {nil, pod(claim), []string{"the ResourceClaim absent does not exist in namespace team"}},
		"a claim that goes": {func(s *site) {
			s.Snapshot.Claims = []*resourceapi.ResourceClaim{{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "absent",
				DeletionTimestamp: ptr.To(metav1.Unix(1, 0))}}}
		}, pod(claim), []string{"waits for claims that are not there: claim absent is being deleted"}},
		"a template that may not be read": {func(s *site) {
			s.Unread = map[string]string{"ResourceClaimTemplate/team/absent": "you may not read it"}
		}, pod(template), []string{"you may not read it"}},
		"refused": {nil, workload("Deployment", 1, "aliyun.com/gpu-core.percentage: 20"),
			[]string{"it would be refused: reqeust resources must include aliyun.com/gpu-mem"}},
		"opted out": {nil, pod(asks, `, labels: {gpu.aliyun.com/legacy: "false"}`),
			[]string{"it opted out by its label"}},
		"a system pod":   {nil, pod(asks, ", namespace: kube-system"), []string{"pods of this namespace are left alone"}},
		"names its node": {nil, pod(asks + ", nodeName: n1"), []string{"it names its node in spec.nodeName"}},
		"gated": {nil, pod(asks + ", schedulingGates: [{name: wait}]"),
			[]string{"schedulingGates hold it back (wait)"}},
		"its namespace did": {nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: team, labels: " +
			"{gpu.aliyun.com/legacy: \"false\"}}\n---\n" + pod(asks), []string{"its namespace opted out"}},
		"no class": {func(s *site) { s.Snapshot.Classes = nil }, pod(asks),
			[]string{"DeviceClass memory.gpu.aliyun.com does not exist"}},
		"gang": {nil, workload("Deployment", 2, "aliyun.com/gpu-mem: 8", `, pod-group.scheduling.sigs.k8s.io/name: g, `+
			`pod-group.scheduling.sigs.k8s.io/min-available: "2"`), []string{
			"0 of 2 pods", "of its gang team/g 1 would find room at once, and it needs 2"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.node("n1", 1, mode.Share)
			if test.site != nil {
				test.site(s)
			}
			s.read(t, test.manifest)
			made := s.plan(t)
			expect.Equal(t, false, made.AllFit(), "all fit")
			expect.Says(t, printed(t, made), test.want...)
		})
	}
}

func TestWhatIsNotPlannedIsSaid(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1, mode.Share)
	s.read(t, `
apiVersion: v1
kind: Service
metadata: {name: s}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: p}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "0 0 * * *"
  jobTemplate:
    spec:
      template:
        metadata: {annotations: {cpuset-scheduler: "true"}}
        spec:
          restartPolicy: Never
          volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
          topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]
          affinity: {podAntiAffinity: {}}
          containers: [{name: c, image: i, resources: {limits: {aliyun.com/gpu-mem: 2}}}]
`)
	made := s.plan(t)
	expect.Says(t, printed(t, made), "The pod would find room.", "nightly-0",
		"Skipped: Service/s (m.yaml, document 1): it makes no pods", "Skipped: PyTorchJob/p (m.yaml, document 2): "+
			"PyTorchJob of "+
			"kubeflow.org/v1 is not known here")
	expect.Says(t, strings.Join(made.Notes, "\n"), "Not looked at: affinity towards other pods (cronjob/nightly).",
		"Not looked at: topologySpreadConstraints", "Not looked at: where volumes can be", "Not looked at: CPUs of a "+
			"container's own",
		"cronjob/nightly (m.yaml, document 3): planned as one of its runs.")
}

func TestAllIsSkipped(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1, mode.Share)
	s.read(t, "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: p}\n---\n"+
		"apiVersion: apps/v1beta1\nkind: Deployment\nmetadata: {name: d}\n")
	made := s.plan(t)
	expect.Equal(t, true, made.Nothing(), "nothing is planned")
	expect.Says(t, printed(t, made), "Nothing was planned: all that the manifests have was skipped.\n",
		"Skipped: Deployment/d (m.yaml, document 2): it is of apps/v1beta1: write it as apps/v1.")
	s.read(t, workload("Deployment", 0, "aliyun.com/gpu-mem: 2")+"---\napiVersion: v1\nkind: Service\n"+
		"metadata: {name: s}\n")
	expect.Equal(t, false, s.plan(t).Nothing(), "there is nothing to plan beside a Deployment of no pods")
}

func TestNothingToPlan(t *testing.T) {
	s := newSite(t)
	made := s.plan(t)
	if !made.AllFit() || printed(t, made) != "There are no pods to plan.\n" {
		t.Errorf("got %s", printed(t, made))
	}
}

// A claim has 256 users at most. That more pods share it is the scheduler's to find out when it has chosen a node.
func TestPodsThatShareAClaimAreAsManyAsKubernetesTakes(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1, mode.Share)
	s.read(t, `
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: one}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: share.gpu.aliyun.com}}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: many}
spec:
  replicas: 258
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec:
      resourceClaims: [{name: gpu, resourceClaimName: one}]
      containers: [{name: main, image: x, resources: {claims: [{name: gpu}]}}]
`)
	made := s.plan(t)
	if made.Fits != 256 || made.Waits != 2 {
		t.Errorf("%d fit and %d wait, want 256 and 2", made.Fits, made.Waits)
	}
	expect.Says(t, printed(t, made), "2 pods: claim team/one has 256 users, as many as Kubernetes lets a claim have: it "+
		"takes another when one of them is gone.")
}
