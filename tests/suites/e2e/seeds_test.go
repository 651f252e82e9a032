// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// pinned lets the pods of a document run on a node, and changes nothing else: other
// tests count on theirs.
func pinned(template *corev1.PodTemplateSpec, node string) {
	template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
}

func startJob(t *testing.T, ns *harness.Namespace, job *batchv1.Job) {
	t.Helper()
	harness.Make(t, ns.Client.BatchV1().Jobs(ns.Name), job)
}

// hasTable waits until `kubectl inspect cgpu NODE` prints what it is to print.
func hasTable(t *testing.T, node, want string) {
	t.Helper()
	harness.Eventually(t, "the table of node "+node, func(context.Context) error {
		got, _, err := cluster.TryInspect(t, node)
		if err != nil {
			return err
		}
		return expect.Diff(want, got)
	})
}

// All of them are taken as they are, but for the one whose kind nobody has installed.
func TestManifestsOfTheDocumentsAreTaken(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	for _, pattern := range []string{"*.yaml", "ack-co-scheduler/*.yaml"} {
		files, err := filepath.Glob(harness.DemoLegacy(pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%d files %s: %v", len(files), pattern, err)
		}
		for _, file := range files {
			if filepath.Base(file) == "tf-smoke-gpu.yaml" {
				continue
			}
			if _, err := ns.Kubectl(t, "create", "--dry-run=server", "--validate=strict", "-f", file); err != nil {
				t.Error(err)
			}
		}
	}
}

// GPUtest.yaml, and the tables before and after of its document, which are of a node
// with one GPU of 15 GiB.
func TestDocumentOnRegisteredClusters(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "switch")
	ns := cluster.Namespace(t)
	hasTable(t, "switch", inspectedNode(t, "switch", 15, 0, 0))
	job := harness.Document[batchv1.Job](t, "GPUtest.yaml")
	pinned(&job.Spec.Template, "switch")
	startJob(t, ns, job)
	pod := ns.PodsOf(t, "gpu-share-sample", 1)[0]
	hasTable(t, "switch", inspectedNode(t, "switch", 15, 20, 3))
	ns.HasEnv(t, pod, "gpu-share-sample", harness.LegacyEnv(3, 15, 3, 0))
	ns.SeesItsGPUs(t, pod, "gpu-share-sample", ns.Granted(t, pod))
	// As demo/legacy/README.md has a user look.
	harness.Eventually(t, "kubectl logs to print what the container was given", func(context.Context) error {
		output, err := ns.Kubectl(t, "logs", "job/gpu-share-sample")
		if err != nil || !harness.ContainsAll("\n"+output,
			[]string{"\nALIYUN_COM_GPU_MEM_CONTAINER=3\n", "\n/dev/nvidia0 "}) {
			return fmt.Errorf("it prints (%w)\n%s", err, output)
		}
		return nil
	})
	ns.MustKubectl(t, "delete", "-f", harness.DemoLegacy("GPUtest.yaml"), "--wait")
	templatesGo(t, ns)
	hasTable(t, "switch", inspectedNode(t, "switch", 15, 0, 0))
}

// The table of binpack: 15/15 9/15 0/15 0/15, 24/60 (40%). No GPU is split for a pod
// that asks for more than one has.
func TestDocumentOnBinpack(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	packedNode(t, "fill", 4)
	ns := cluster.Namespace(t)
	job := harness.Document[batchv1.Job](t, "binpack.yaml")
	pinned(&job.Spec.Template, "fill")
	startJob(t, ns, job)
	ns.PodsOf(t, "binpack", 8)
	hasTable(t, "fill", inspected(t, [4]int{15, 9, 0, 0}, 40))
	large := harness.Asking("mem 16")
	ns.Create(t, harness.On("fill", large)...)
	ns.WaitUnschedulable(t, large.Name, noRoom)
	hasTable(t, "fill", inspected(t, [4]int{15, 9, 0, 0}, 40))
}

// The table of spread: three GPUs of 4/15, 12/60 (20%).
func TestDocumentOnSpread(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	cluster.Label(t, "fill", "ack.node.gpu.placement")("spread")
	spreadNode(t, "fill", 4)
	ns := cluster.Namespace(t)
	deployment := harness.Document[appsv1.Deployment](t, "spread.yaml")
	pinned(&deployment.Spec.Template, "fill")
	ns.Deploy(t, deployment)
	ns.PodsOf(t, "spread", 3)
	hasTable(t, "fill", inspected(t, [4]int{4, 4, 4, 0}, 20))
}

// Both Jobs on GPU models, while a node with that model and one without have free
// GPUs.
func TestDocumentOnGPUModels(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, topoNode)
	cluster.Share(t, "whole")
	cluster.Label(t, topoNode, modeLabel)("default")
	cluster.Publishes(t, topoNode, harness.DeviceNames(8, "gpu-%d")...)
	cluster.IsLabelled(t, topoNode, "Tesla-V100-SXM2-32GB 32510MiB 8")
	cluster.IsLabelled(t, "whole", "NVIDIA-A100-SXM4-80GB 81920MiB 8")
	for _, test := range []struct{ file, want string }{{"select-card-model.yaml", topoNode},
		{"avoid-card-model.yaml", "whole"}} {
		t.Run(test.file, func(t *testing.T) {
			ns := cluster.Namespace(t)
			job := harness.Document[batchv1.Job](t, test.file)
			if affinity := job.Spec.Template.Spec.Affinity; affinity != nil {
				// Of these two nodes the one with the model, were it not for the Job.
				required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
				required.NodeSelectorTerms[0].MatchExpressions = append(required.NodeSelectorTerms[0].MatchExpressions,
					corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
						Values: []string{topoNode, "whole"}})
				affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{{
					Weight: 100,
					Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname,
						Operator: corev1.NodeSelectorOpIn, Values: []string{topoNode}}}},
				}}
			}
			startJob(t, ns, job)
			pod := ns.PodsOf(t, "tensorflow-mnist", 1)[0]
			grants := ns.Granted(t, pod)
			if len(grants) != 1 || grants[0].GPU.Node != test.want {
				t.Fatalf("granted %+v, want a GPU of node %s", grants, test.want)
			}
			ns.SeesItsGPUs(t, pod, "tensorflow-mnist", grants)
		})
	}
}
