// SPDX-License-Identifier: Apache-2.0

package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/bundle"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
)

// planted stands wherever something secret could be.
const planted = "hunter2"

var ofDriver = map[string]string{"app.kubernetes.io/name": "dra-driver-gpushare"}

// about is metadata with secrets.
func about(namespace, name string, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels,
		Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": planted, "note": planted,
			"gpu.aliyun.com/legacy-request": "kept"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: planted}}}
}

// container has a secret in each of its fields that a user fills in.
func container() corev1.Container {
	return corev1.Container{
		Name: "main", Image: planted, Command: []string{planted}, Args: []string{planted}, WorkingDir: planted,
		Env: []corev1.EnvVar{{Name: "API_TOKEN", Value: planted}}, EnvFrom: []corev1.EnvFromSource{{Prefix: planted}},
		VolumeMounts:  []corev1.VolumeMount{{Name: planted, MountPath: planted}},
		LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{planted}}}},
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{
			planted}}}},
		Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{"aliyun.com/gpu-mem": resource.MustParse("3")}},
	}
}

func input() bundle.Input {
	pod := &corev1.Pod{ObjectMeta: about("team", "train",
		map[string]string{"app": planted, "gpu.aliyun.com/legacy": "true"})}
	pod.Spec = corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{container()},
		InitContainers: []corev1.Container{container()}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: planted}},
		ServiceAccountName: planted, Hostname: planted, HostAliases: []corev1.HostAlias{{IP: planted}},
		Volumes: []corev1.Volume{{Name: planted}}, EphemeralContainers: []corev1.EphemeralContainer{{
			TargetContainerName: planted}},
		SecurityContext: &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Value: planted}}},
		ResourceClaims:  []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("its-template")}}}
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Message: planted, PodIP: planted,
		Conditions: []corev1.PodCondition{{Type: "custom", Message: planted},
			{Type: corev1.PodScheduled, Message: "0/3 nodes"}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Image: planted, ImageID: planted, ContainerID: planted,
			State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: planted}},
			LastTerminationState: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Message: planted}}}}}
	other := &corev1.Pod{ObjectMeta: about("team", planted, nil),
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}}
	driver := &corev1.Pod{ObjectMeta: about("gpu", "plugin-1", ofDriver)}
	driver.Spec.ServiceAccountName = "gpu-kubelet-plugin"
	tenants := &corev1.Pod{ObjectMeta: about("team", planted, ofDriver)}
	tenants.Status.ContainerStatuses = []corev1.ContainerStatus{{Image: planted}}
	alike := tenants.DeepCopy()
	alike.Spec.ServiceAccountName = "gpu-kubelet-plugin"
	driver.Status.ContainerStatuses = []corev1.ContainerStatus{{Image: "driver:v1", ImageID: "sha256:1"}}
	config := []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: "other.example.com",
			Parameters: runtime.RawExtension{Raw: []byte(`{"password":"` + planted + `"}`)}}}}}
	claim := &resourceapi.ResourceClaim{ObjectMeta: about("team", "its-claim", nil)}
	claim.Spec.Devices.Config = config
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Config: []resourceapi.DeviceAllocationConfiguration{{DeviceConfiguration: config[0].DeviceConfiguration}}}}
	claim.Status.Devices = []resourceapi.AllocatedDeviceStatus{{Driver: "other.example.com",
		Data: &runtime.RawExtension{Raw: []byte(`"` + planted + `"`)}}}
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: about("team", "its-template", nil)}
	template.Spec.ObjectMeta, template.Spec.Spec.Devices.Config = about("", "", nil), config
	class := &resourceapi.DeviceClass{ObjectMeta: about("", "its-class", nil)}
	class.Spec.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: config[0].DeviceConfiguration}}
	program := corev1.PodTemplateSpec{ObjectMeta: about("", "", ofDriver), Spec: corev1.PodSpec{
		ImagePullSecrets:   []corev1.LocalObjectReference{{Name: planted}},
		ServiceAccountName: "gpu-kubelet-plugin",
		Containers: []corev1.Container{{Name: "plugin", SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
			Args: []string{"--password=" + planted, "--db-pwd", planted, "--proxy=http://me:" + planted + "@host/", "--kept=1"},
			Env: []corev1.EnvVar{{Name: "API_TOKEN", Value: planted}, {Name: "DB_PASS", Value: planted}, {Name: "DSN",
				Value: planted}, {Name: "HTTPS_PROXY", Value: "http://me:" + planted + "@proxy:3128"},
				{Name: "MODE_LABEL", Value: "a-setting"}}}}}}
	node := &corev1.Node{ObjectMeta: about("", "n1", map[string]string{"zone": "a-zone"})}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: planted}}
	node.Status.NodeInfo = corev1.NodeSystemInfo{MachineID: planted, SystemUUID: planted, BootID: planted,
		KernelVersion: "6.8.0"}
	slice := &resourceapi.ResourceSlice{ObjectMeta: about("", "n1-gpus", nil), Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.aliyun.com", NodeName: ptr.To("n1"), Pool: resourceapi.ResourcePool{Name: "n1/gpu", Generation: 1,
			ResourceSliceCount: 1}}}
	slice.Spec.Devices = []resourceapi.Device{{Name: "gpu-0", Attributes: map[resourceapi.
		QualifiedName]resourceapi.DeviceAttribute{"index": {IntValue: ptr.To(int64(0))},
		"memoryMiB": {IntValue: ptr.To(int64(15360))}, "mode": {StringValue: ptr.To("exclusive")}}}}
	node.Spec.ProviderID = planted
	policy := func(labels map[string]string, text string) *admissionv1.ValidatingAdmissionPolicy {
		return &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: about("", "policy", labels), Spec: admissionv1.
			ValidatingAdmissionPolicySpec{Validations: []admissionv1.Validation{{Expression: text}}}}
	}
	return bundle.Input{
		Version: "v1.2.3", Now: time.Unix(0, 0),
		Snapshot: &doctor.Snapshot{
			ServerVersion: "v1.37.2", Nodes: []*corev1.Node{node}, Pods: []*corev1.Pod{pod, other, driver, tenants, alike},
			Claims: []*resourceapi.ResourceClaim{claim}, Classes: []*resourceapi.DeviceClass{class},
			DaemonSets: []*appsv1.DaemonSet{{ObjectMeta: about("gpu", "plugin", ofDriver), Spec: appsv1.DaemonSetSpec{
				Template: program}}, {ObjectMeta: about("team", planted, ofDriver)}},
			Deployments: []*appsv1.Deployment{{ObjectMeta: about("gpu", "controller", ofDriver), Spec: appsv1.DeploymentSpec{
				Template: program}}},
			ConfigMaps: []*corev1.ConfigMap{{ObjectMeta: about("gpu", "settings", ofDriver),
				Data: map[string]string{"LOG_LEVEL": "4", "API_KEY": planted}}},
			Validating: []*admissionv1.ValidatingAdmissionPolicy{policy(ofDriver, "its-expression"), policy(nil, planted)},
			Unread:     []string{"namespaces"},
		},
		Templates: []*resourceapi.ResourceClaimTemplate{template},
		Events: []*corev1.Event{{ObjectMeta: about("team", "event", nil), Reason: "GPUClaimWaiting",
			Message: "what was said"}},
		Logs: []bundle.Log{{Namespace: "gpu", Pod: "plugin-1", Container: "plugin", Text: []byte("a line\n"), Cut: true},
			{Namespace: "gpu", Pod: "plugin-1", Container: "plugin", Previous: true, Text: []byte("before\n")}},
		Table:   inspect.Input{Nodes: []*corev1.Node{node}, Slices: []*resourceapi.ResourceSlice{slice}},
		Missing: []string{"logs of something: forbidden"},
	}
}

func TestNothingSecretIsInIt(t *testing.T) {
	files, err := bundle.Files(input())
	expect.NoError(t, err)
	for _, f := range files {
		for line := range strings.Lines(string(f.Data)) {
			if strings.Contains(line, planted) {
				t.Errorf("%s has %s", f.Name, line)
			}
		}
	}
}

func TestWhatIsInIt(t *testing.T) {
	files, err := bundle.Files(input())
	expect.NoError(t, err)
	expect.Equal(t, "README.txt", files[0].Name, "the first file")
	byName := map[string]string{}
	for _, f := range files {
		byName[f.Name] = string(f.Data)
	}
	for name, wanted := range map[string][]string{
		"README.txt": {"v1.2.3", "Secrets were not read", "pods.yaml", "logs of something: forbidden",
			"namespaces: you may not list them", "Only the end is there of:\n- logs/gpu/plugin-1_plugin.log"},
		"versions.yaml": {"kubernetes: v1.37.2", "driver:v1 sha256:1: 1", "1970-01-01T00:00:00Z"},
		"nodes.yaml":    {"zone: a-zone", "name: n1", "kernelVersion: 6.8.0"},
		"pods.yaml": {"its-template", "aliyun.com/gpu-mem", "CrashLoopBackOff", "exitCode: 137",
			"0/3 nodes", "gpu.aliyun.com/legacy-request: kept", "plugin-1"},
		"resourceclaims.yaml":         {"its-claim", "driver: other.example.com"},
		"resourceclaimtemplates.yaml": {"its-template"},
		"deviceclasses.yaml":          {"its-class"},
		"events.yaml":                 {"what was said"},
		"driver/daemonsets.yaml": {"a-setting", "API_TOKEN", "(left out)", "--kept=1",
			"http://(left out)@proxy:3128"},
		"driver/deployments.yaml":               {"a-setting"},
		"driver/configmaps.yaml":                {`LOG_LEVEL: "4"`, "API_KEY: (left out)"},
		"driver/policies.yaml":                  {"its-expression"},
		"logs/gpu/plugin-1_plugin.log":          {"a line"},
		"logs/gpu/plugin-1_plugin.previous.log": {"before"},
		"doctor.txt":                            {"you may not list namespaces"},
		"doctor.json":                           {`"check": "rights"`},
		"inspect.txt":                           {"Allocated/Total GPU Memory", "unknown"},
		"inspect.json":                          {`"nodes"`},
	} {
		for _, want := range wanted {
			if !strings.Contains(byName[name], want) {
				t.Errorf("%s does not have %q:\n%s", name, want, byName[name])
			}
		}
	}
}

func TestArchive(t *testing.T) {
	var out bytes.Buffer
	files := []bundle.File{{Name: "README.txt", Data: []byte("read me")}, {Name: "logs/a.log", Data: nil}}
	expect.NoError(t, bundle.Write(&out, "gpu-bundle", files, time.Unix(100, 0)))
	zipped, err := gzip.NewReader(&out)
	expect.NoError(t, err)
	var names []string
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		expect.NoError(t, err)
		data, err := io.ReadAll(archive)
		if err != nil || header.Mode != 0o600 {
			t.Errorf("%s: mode %o, %v", header.Name, header.Mode, err)
		}
		names = append(names, header.Name+"="+string(data))
	}
	expect.Equal(t, []string{"gpu-bundle/README.txt=read me", "gpu-bundle/logs/a.log="}, names, "files")
}
