// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package operators runs the manifests of docs/training.md with the real operators that can be built from Go modules:
// JobSet, Kubeflow Trainer and KubeRay. Lane operators builds them, and makes the cluster: a node whose four GPUs are
// shared by MPS.
package operators

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/harness/component"
)

const (
	checkout = "../../.."
	// The GPUs of the node: gpuMiB each, of which shares are gpuGiB; and what each pod of the manifests asks for.
	gpuMiB, gpuGiB, asksGiB = 16130, 15, 4
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }

// program is one that the lane has built, in the directory that OPERATORS names.
func program(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("OPERATORS")
	if dir == "" {
		t.Fatal("OPERATORS names no directory: `make lane LANE=operators` builds what is in it")
	}
	return filepath.Join(dir, name)
}

// source is a directory of an operator's module; the lane has linked these into that of the programs.
func source(t *testing.T, path ...string) string {
	t.Helper()
	return filepath.Join(append([]string{program(t, "source")}, path...)...)
}

// startJobSet runs JobSet with its webhooks until the test ends.
func startJobSet(t *testing.T) {
	t.Helper()
	webhooks, health := component.FreePort(t), component.FreePort(t)
	certificates := filepath.Join(t.TempDir(), "certificates")
	authorities := component.WriteCertificates(t, certificates)
	configuration := writeYAML(t, component.Object{
		"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration",
		"leaderElection":         component.Object{"leaderElect": false},
		"internalCertManagement": component.Object{"enable": false},
		"webhook":                component.Object{"host": component.Localhost, "port": webhooks, "certDir": certificates},
		"metrics": component.Object{"bindAddress": component.Address(component.FreePort(t)),
			"certDir": certificates},
		"health": component.Object{"healthProbeBindAddress": component.Address(health)},
	})
	define(t, source(t, "jobset", "config", "components", "crd", "bases"))
	component.Run(t, cluster, exec.Command(program(t, "jobset"), "--config", configuration),
		"http://"+component.Address(health)+"/readyz")
	addWebhooks(t, "jobset", source(t, "jobset", "config", "components", "webhook", "manifests.yaml"), webhooks,
		authorities)
}

// startTrainer runs Kubeflow Trainer, which needs JobSet, with its webhooks until the test ends.
func startTrainer(t *testing.T) {
	t.Helper()
	startJobSet(t)
	webhooks, health := component.FreePort(t), component.FreePort(t)
	temporary := t.TempDir()
	// It has no setting for the directory.
	authorities := component.WriteCertificates(t, filepath.Join(temporary, "k8s-webhook-server", "serving-certs"))
	configuration := writeYAML(t, component.Object{
		"apiVersion": "config.trainer.kubeflow.org/v1alpha1", "kind": "Configuration",
		"leaderElection": component.Object{"leaderElect": false},
		"certManagement": component.Object{"enable": false},
		"webhook":        component.Object{"host": component.Localhost, "port": webhooks},
		"metrics":        component.Object{"bindAddress": "0"},
		"health":         component.Object{"healthProbeBindAddress": component.Address(health)},
		"statusServer":   component.Object{"port": component.FreePort(t)},
	})
	define(t, source(t, "trainer", "manifests", "base", "crds"))
	command := exec.Command(program(t, "trainer-controller-manager"), "--config", configuration)
	command.Env = append(os.Environ(), "TMPDIR="+temporary)
	component.Run(t, cluster, command, "http://"+component.Address(health)+"/readyz")
	addWebhooks(t, "trainer", source(t, "trainer", "manifests", "base", "webhook", "manifests.yaml"), webhooks,
		authorities)
}

// startKubeRay runs KubeRay until the test ends.
func startKubeRay(t *testing.T) {
	t.Helper()
	health := component.FreePort(t)
	define(t, source(t, "kuberay", "config", "crd", "bases"))
	component.Run(t, cluster, exec.Command(program(t, "ray-operator"), "--enable-leader-election=false",
		"--metrics-addr="+component.Address(component.FreePort(t)),
		"--health-probe-bind-address="+component.Address(health)), "http://"+component.Address(health)+"/readyz")
}

// define makes the CustomResourceDefinitions of a directory.
func define(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CustomResourceDefinitions in %s: %v", dir, err)
	}
	var all []component.Object
	for _, file := range files {
		all = append(all, component.Read(t, file)...)
	}
	component.Define(t, cluster, all)
}

// addWebhooks has the API server ask a component that serves its webhooks.
func addWebhooks(t *testing.T, name, file string, port int, authorities []byte) {
	t.Helper()
	component.Apply(t, cluster, component.WebhooksAt(component.Read(t, file), name, "https://"+component.Address(port),
		authorities)...)
	t.Cleanup(func() { component.DeleteWebhooks(t, cluster, name) })
}

func writeYAML(t *testing.T, o component.Object) string {
	t.Helper()
	content, err := yaml.Marshal(o)
	expect.NoError(t, err)
	file := filepath.Join(t.TempDir(), "configuration.yaml")
	expect.NoError(t, os.WriteFile(file, content, 0o600))
	return file
}

// apply applies a manifest of demo/operators, with changes, and deletes its objects with the test. It returns what
// kubectl printed.
func apply(t *testing.T, ns *harness.Namespace, name string, changes ...string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(checkout, "demo", "operators", name+".yaml"))
	expect.NoError(t, err)
	file := filepath.Join(t.TempDir(), name+".yaml")
	expect.NoError(t, os.WriteFile(file, []byte(strings.NewReplacer(changes...).Replace(string(content))), 0o600))
	t.Cleanup(func() {
		ns.MustKubectl(t, "delete", "-f", file, "--ignore-not-found", "--timeout=2m")
	})
	return ns.MustKubectl(t, "apply", "-f", file)
}

// havePods waits for that many pods with a share, and checks that each has its limit, which the stand-in for its
// program prints.
func havePods(t *testing.T, ns *harness.Namespace, want int) []corev1.Pod {
	t.Helper()
	var with []corev1.Pod
	harness.Eventually(t, fmt.Sprint(want, " pods with shares"), func(ctx context.Context) error {
		with = nil
		pods, err := ns.Client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			begun := pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodSucceeded
			if begun && len(pod.Spec.ResourceClaims) > 0 {
				with = append(with, pod)
			}
		}
		if len(with) != want {
			return fmt.Errorf("%d have begun, of %d pods", len(with), len(pods.Items))
		}
		return nil
	})
	limit := fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM\n", gpuMiB*asksGiB/gpuGiB)
	for _, pod := range with {
		harness.Eventually(t, "pod "+pod.Name+" to print its limit", func(context.Context) error {
			log := ns.MustKubectl(t, "logs", pod.Name)
			if !strings.Contains(log, limit) || !strings.Contains(log, "\ndevice /dev/nvidia") {
				return fmt.Errorf("its log has not %q and a GPU:\n%s", limit, log)
			}
			return nil
		})
	}
	return with
}

// variable is what a container's variable is set to.
func variable(pod corev1.Pod, name string) string {
	for _, v := range pod.Spec.Containers[0].Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

func TestJobSet(t *testing.T) {
	startJobSet(t)
	ns := cluster.Namespace(t)
	apply(t, ns, "jobset")
	havePods(t, ns, 2)
}

func TestTrainer(t *testing.T) {
	startTrainer(t)
	ns := cluster.Namespace(t)
	if printed := apply(t, ns, "trainjob"); strings.Contains(printed, "Warning") {
		t.Errorf("kubectl warned of the manifest as it stands: %s", printed)
	}
	for _, pod := range havePods(t, ns, 2) {
		if got := variable(pod, "PET_NPROC_PER_NODE"); got != "1" {
			t.Errorf("pod %s starts %q processes, want 1", pod.Name, got)
		}
	}

	// What MPI makes of it is told before.
	printed := apply(t, cluster.Namespace(t), "trainjob", "numProcPerNode: 1", "", "torch: {}", "mpi: {}")
	if !strings.Contains(printed, "Warning: Validation failed for ValidatingAdmissionPolicy 'gpushare-workload-advice'") ||
		!strings.Contains(printed, "Kubeflow Trainer counts aliyun.com/gpu-mem 4 as 4 GPUs") {
		t.Errorf("kubectl printed %s", printed)
	}
}

func TestKubeRay(t *testing.T) {
	startKubeRay(t)
	ns := cluster.Namespace(t)
	if printed := apply(t, ns, "raycluster"); strings.Contains(printed, "Warning") {
		t.Errorf("kubectl warned of the manifest as it stands: %s", printed)
	}
	for _, pod := range havePods(t, ns, 2) {
		if command := variable(pod, "KUBERAY_GEN_RAY_START_CMD"); !strings.Contains(command, "--num-gpus=1") {
			t.Errorf("Ray is told %q, want one GPU", command)
		}
	}
	printed := apply(t, cluster.Namespace(t), "raycluster", `num-gpus: "1"`, "")
	if !strings.Contains(printed, "Ray sees no GPU in the pods of group gpus") {
		t.Errorf("kubectl printed %s", printed)
	}
}
