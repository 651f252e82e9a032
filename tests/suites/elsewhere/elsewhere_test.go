// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package elsewhere tests the driver where it is installed in a namespace of its own, has no
// option, so that it lists no pods and evicts none, and lets nobody but administrators lift
// limits (LIMITS_LIFTED_BY=classes); lane elsewhere makes the cluster.
package elsewhere

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const (
	installed = "gpu-system"
	node      = "n1"
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }

// stolen is a client with the token of one of the driver's pods.
func stolen(t *testing.T, component string) kubernetes.Interface {
	t.Helper()
	pods, err := cluster.Client.CoreV1().Pods(installed).List(t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=" + component,
	})
	if err != nil || len(pods.Items) == 0 {
		t.Fatalf("look for the pods of %s: %d, %v", component, len(pods.Items), err)
	}
	return cluster.ClientOf(t, installed, component, &pods.Items[0])
}

// What the driver's tokens may not do in kube-system, they may not do here.
func TestTokensAreRestricted(t *testing.T) {
	plugin, supervisor, controller := stolen(t, "gpu-kubelet-plugin"), stolen(t, "gpu-mps-supervisor"),
		stolen(t, "gpu-compat-controller")
	dryRun := metav1.CreateOptions{DryRun: harness.DryRun}
	patch := metav1.PatchOptions{DryRun: harness.DryRun}

	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "invented"}}
	slice.Spec.Driver, slice.Spec.NodeName = "gpu.aliyun.com", ptr.To("n2")
	slice.Spec.Pool = resourceapi.ResourcePool{Name: "n2/gpu", ResourceSliceCount: 1}
	_, err := plugin.ResourceV1().ResourceSlices().Create(t.Context(), slice, dryRun)
	harness.CheckRefusal(t, "a slice of another node", "gpu-kubelet-plugin on node n1 may only write ResourceSlices", err)
	ofNodes := map[string]kubernetes.Interface{"gpu-kubelet-plugin": plugin, "gpu-mps-supervisor": supervisor}
	for name, client := range ofNodes {
		_, err = client.CoreV1().Events(metav1.NamespaceDefault).Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: "invented"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n2"},
			Source:         corev1.EventSource{Component: name, Host: "n2"},
			Reason:         "GPUModeServed", Message: "x", Type: "Normal",
		}, dryRun)
		harness.CheckRefusal(t, "an Event of another node", name+" on node n1 may only write", err)
	}
	label := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
	_, err = controller.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, label, patch)
	harness.CheckRefusal(t, "a label of a node", "gpu-compat-controller may change no label of a node but", err)
	pods := plugin.CoreV1().Pods(metav1.NamespaceAll)
	if _, err := pods.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the plugin lists all pods: %v, want that forbidden", err)
	}
	if _, err := pods.Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the plugin watches all pods: %v, want that forbidden", err)
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "p"}}
	for name, client := range map[string]kubernetes.Interface{"plugin": plugin, "controller": controller} {
		if err := client.CoreV1().Pods(metav1.NamespaceDefault).EvictV1(t.Context(), eviction); !apierrors.IsForbidden(err) {
			t.Errorf("the %s evicts pods: %v, want that forbidden", name, err)
		}
	}

	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "invented.gpu.aliyun.com",
		Labels: map[string]string{"app.kubernetes.io/managed-by": "gpu-compat-controller"}}}
	_, err = controller.ResourceV1().DeviceClasses().Create(t.Context(), class, dryRun)
	harness.CheckRefusal(t, "a class", "", err)
	class.Spec.ExtendedResourceName = ptr.To("nvidia.com/gpu")
	_, err = controller.ResourceV1().DeviceClasses().Create(t.Context(), class, dryRun)
	harness.CheckRefusal(t, "a class for a resource of pods", "may write no extendedResourceName into DeviceClasses", err)
	class.Spec.ExtendedResourceName, class.Spec.Config = nil, []resourceapi.DeviceClassConfiguration{{
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver: "gpu.aliyun.com", Parameters: runtime.RawExtension{Raw: []byte(`{"disableIsolation":true}`)}}}}}
	_, err = controller.ResourceV1().DeviceClasses().Create(t.Context(), class, dryRun)
	harness.CheckRefusal(t, "a class that lifts limits", "may write no configuration into DeviceClasses", err)
}

// Pods get their GPUs although the plugin knows of none but those that use claims, and
// nobody else's words lift limits.
func TestPodsRun(t *testing.T) {
	ns := cluster.Namespace(t)
	tenant := ns.Tenant(t)
	legacy := harness.GoingTo(harness.Asking("mem 3"), "legacy", node)
	main := &legacy.Spec.Containers[0]
	main.Env = append(main.Env, corev1.EnvVar{Name: "CGPU_DISABLE", Value: "true"})
	spec := harness.Requests(harness.Capped("mps", -1, "memory", "2Gi"))
	spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "gpu.aliyun.com", Parameters: runtime.RawExtension{
			Raw: []byte(`{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig","disableIsolation":true}`),
		}},
	}}}
	ns.Template(t, "lifting", spec)
	for _, pod := range []*corev1.Pod{legacy, harness.Pod("claims", node, harness.FromTemplate("lifting"))} {
		harness.Make(t, tenant.CoreV1().Pods(ns.Name), pod)
	}
	for pod, container := range map[string]string{"legacy": legacy.Spec.Containers[0].Name, "claims": "main"} {
		ns.WaitRunning(t, pod)
		ns.SeesItsGPUs(t, pod, container, ns.Granted(t, pod))
		if env := ns.GPUEnv(t, pod, container); pod == "claims" && env["CGPU_DISABLE"] != "" {
			t.Errorf("pod %s has %v: its limits are lifted", pod, env)
		}
		ns.WaitPodEvent(t, pod, "GPUIsolationKept", "LIMITS_LIFTED_BY=classes")
	}
}

// `helm test` shows what its pod was given, on a node whose mode the values name.
func TestHelmTest(t *testing.T) {
	output, err := exec.CommandContext(t.Context(), os.Getenv("HELM"), "test", "dra-driver-gpushare", "--logs",
		"--namespace", installed, "--kubeconfig", filepath.Join(cluster.Dir, "kubeconfig")).CombinedOutput()
	if err != nil {
		t.Fatalf("helm test: %v\n%s", err, output)
	}
	for _, text := range []string{"On node " + node, "ALIYUN_COM_GPU_MEM_CONTAINER=1\n", "CUDA_MPS_PIPE_DIRECTORY=",
		"\n/dev/nvidia", "Succeeded"} {
		if !strings.Contains(string(output), text) {
			t.Errorf("helm test does not print %q:\n%s", text, output)
		}
	}
	harness.Eventually(t, "the claim of the pod that has ended to be gone", func(ctx context.Context) error {
		claims, err := cluster.Client.ResourceV1().ResourceClaims(installed).List(ctx, metav1.ListOptions{})
		if err == nil && len(claims.Items) > 0 {
			err = fmt.Errorf("there are %d", len(claims.Items))
		}
		return err
	})
}

// A device plugin is noticed by what the node and the kubelet say, without any list of pods.
func TestDevicePluginIsNoticed(t *testing.T) {
	ns := cluster.Namespace(t)
	stop := cluster.DevicePlugin(t, node, "nvidia.com/gpu", 4)
	cluster.Publishes(t, node)
	stop()
	harness.Eventually(t, "the node to offer its GPUs again", func(ctx context.Context) error {
		output, err := ns.Kubectl(t, "get", "resourceslices", "-o", "jsonpath={.items[*].spec.devices[*].name}")
		if err == nil && !strings.Contains(output, "gpu-3-mps") {
			err = errors.New(output)
		}
		return err
	})
}
