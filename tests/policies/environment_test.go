// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

var somebody = &user.DefaultInfo{Name: "somebody"}

// with is a container with a variable.
func with(c corev1.Container, name, value string) corev1.Container {
	c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
	return c
}

func fromConfigMap(c corev1.Container, name string) corev1.Container {
	c.Env = append(c.Env,
		corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{Key: "k"}}})
	return c
}

// Nobody lifts limits in namespaces of which their administrators say so.
func TestLimitsAreKeptInNamespaces(t *testing.T) {
	s := newServer(t)
	const byEnv = "container c sets CGPU_DISABLE, which switches off the limits of shares; namespace limits-kept does " +
		"not allow it"
	c := limited("c", "mem 3")
	s.createEach(t, map[string]newPod{
		"true":           {podOf(limitsKept, with(c, "CGPU_DISABLE", "true")), byEnv},
		"1":              {podOf(limitsKept, with(c, "CGPU_DISABLE", "1")), byEnv},
		"from elsewhere": {podOf(limitsKept, fromConfigMap(c, "CGPU_DISABLE")), byEnv},
		"the second":     {podOf(limitsKept, limited("a", ""), with(c, "CGPU_DISABLE", "true")), byEnv},
		"an init container": {withInit(podOf(limitsKept, limited("a", "mem 3")), with(limited("c", ""), "CGPU_DISABLE",
			"true")), byEnv},
		"false":               {podOf(limitsKept, with(c, "CGPU_DISABLE", "false")), ""},
		"another variable":    {podOf(limitsKept, with(c, "OTHER", "true")), ""},
		"in other namespaces": {podOf(team, with(c, "CGPU_DISABLE", "true")), ""},
	})
	configured := func(driver, parameters string) resourceapi.DeviceClaim {
		of := claimed(exactly("a", "mps"))
		of.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: opaque(driver,
			`{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig",`+parameters+"}")}}
		return of
	}
	const byConfig = "disableIsolation switches off the limits of shares, which namespace limits-kept does not allow"
	for name, test := range map[string]struct {
		namespace string
		of        resourceapi.DeviceClaim
		refused   string
	}{
		"disableIsolation":        {limitsKept, configured("gpu.aliyun.com", `"disableIsolation":true`), byConfig},
		"false":                   {limitsKept, configured("gpu.aliyun.com", `"disableIsolation":false`), ""},
		"other fields":            {limitsKept, configured("gpu.aliyun.com", `"env":"None"`), ""},
		"another driver's":        {limitsKept, configured("gpu.example.com", `"disableIsolation":true`), ""},
		"no configuration":        {limitsKept, claimed(exactly("a", "mps")), ""},
		"in any other namespaces": {team, configured("gpu.aliyun.com", `"disableIsolation":true`), ""},
	} {
		t.Run("a claim: "+name, func(t *testing.T) {
			claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: test.namespace, Name: "c"}}
			claim.Spec.Devices = test.of
			expect.Error(t, s.validate(somebody, claim, nil), test.refused)
			expect.Error(t, s.validate(somebody, templateOf(claim), nil), test.refused)
		})
	}
}

// The option visible-devices refuses what asks NVIDIA's runtime for GPUs past all claims.
func TestOptionVisibleDevices(t *testing.T) {
	s := newServer(t)
	const refused = "container c sets NVIDIA_VISIBLE_DEVICES and has no claim"
	c := limited("c", "")
	claimed := c
	claimed.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	s.createEach(t, map[string]newPod{
		"all":                 {podOf(team, with(c, "NVIDIA_VISIBLE_DEVICES", "all")), refused},
		"by number":           {podOf(team, with(c, "NVIDIA_VISIBLE_DEVICES", "0,1")), refused},
		"from elsewhere":      {podOf(team, fromConfigMap(c, "NVIDIA_VISIBLE_DEVICES")), refused},
		"beside a claim":      {podOf(team, with(claimed, "X", "y"), with(c, "NVIDIA_VISIBLE_DEVICES", "all")), refused},
		"an init container":   {withInit(podOf(team, claimed), with(c, "NVIDIA_VISIBLE_DEVICES", "all")), refused},
		"void":                {podOf(team, with(c, "NVIDIA_VISIBLE_DEVICES", "void")), ""},
		"none":                {podOf(team, with(c, "NVIDIA_VISIBLE_DEVICES", "none")), ""},
		"empty":               {podOf(team, with(c, "NVIDIA_VISIBLE_DEVICES", "")), ""},
		"not at all":          {podOf(team, c), ""},
		"with a claim":        {podOf(team, with(claimed, "NVIDIA_VISIBLE_DEVICES", "all")), ""},
		"as on ACK":           {podOf(team, with(limited("c", "mem 3"), "NVIDIA_VISIBLE_DEVICES", "all")), ""},
		"with nvidia.com/gpu": {podOf(team, with(limited("c", "nvidia.com/gpu 1"), "NVIDIA_VISIBLE_DEVICES", "all")), ""},
		"with a class requested": {podOf(team, with(requested("c",
			"deviceclass.resource.kubernetes.io/share.gpu.aliyun.com 1"), "NVIDIA_VISIBLE_DEVICES", "all")), ""},
		"with none of them": {podOf(team, with(limited("c", "nvidia.com/gpu 0"), "NVIDIA_VISIBLE_DEVICES", "all")), refused},
		"left alone":        {podOf(watching, with(c, "NVIDIA_VISIBLE_DEVICES", "all")), ""},
	})
}

// `kubectl debug` is judged by the container that it adds: what else is in the pod is there already.
func TestOptionVisibleDevicesOfEphemeralContainers(t *testing.T) {
	s := newServer(t)
	const refused = "container debug sets NVIDIA_VISIBLE_DEVICES and has no claim"
	c := limited("c", "")
	claimed := c
	claimed.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
	debugged := func(p *corev1.Pod, containers ...corev1.Container) *corev1.Pod {
		p = p.DeepCopy()
		for _, c := range containers {
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: c.Name, Env: c.Env}})
		}
		return p
	}
	debug := limited("debug", "")
	asking := podOf(team, with(c, "NVIDIA_VISIBLE_DEVICES", "all"))
	asked := debugged(podOf(team, c), with(limited("earlier", ""), "NVIDIA_VISIBLE_DEVICES", "all"))
	for name, test := range map[string]struct {
		before  *corev1.Pod
		added   corev1.Container
		refused string
	}{
		"that asks":                     {podOf(team, claimed), with(debug, "NVIDIA_VISIBLE_DEVICES", "all"), refused},
		"that asks, as a pod did":       {asking, with(debug, "NVIDIA_VISIBLE_DEVICES", "all"), refused},
		"that asks, as one before it":   {asked, with(debug, "NVIDIA_VISIBLE_DEVICES", "all"), refused},
		"without, in a pod that asked":  {asking, debug, ""},
		"without, after one that asked": {asked, debug, ""},
		"void, in a pod that asked":     {asking, with(debug, "NVIDIA_VISIBLE_DEVICES", "void"), ""},
		"that asks, left alone":         {podOf(watching, c), with(debug, "NVIDIA_VISIBLE_DEVICES", "all"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, s.validateSubresource(somebody, debugged(test.before, test.added), test.before,
				"ephemeralcontainers"), test.refused)
		})
	}
}
