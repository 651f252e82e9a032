// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// account is what the API server knows of who has a token of a ServiceAccount, that of
// a pod on a node unless node is empty.
func account(namespace, name, node string) user.Info {
	info := &user.DefaultInfo{Name: "system:serviceaccount:" + namespace + ":" + name}
	if node != "" {
		info.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	return info
}

// Nor is it good for deleting other nodes' pods.
func TestPluginDeletesPodsOfItsOwnNode(t *testing.T) {
	s := newServer(t)
	const refused = "gpu-kubelet-plugin may delete pods of its own node only, and pod p is not on node"
	on := func(node string) *corev1.Pod {
		p := pod("p", nil)
		p.Spec.NodeName = node
		return p
	}
	for name, test := range map[string]struct {
		who     user.Info
		node    string
		refused string
	}{
		"the own node's":     {account("other", "gpu-kubelet-plugin", "n1"), "n1", ""},
		"another node's":     {account("other", "gpu-kubelet-plugin", "n1"), "n2", refused + " n1"},
		"one without a node": {account("other", "gpu-kubelet-plugin", "n1"), "", refused + " n1"},
		"a token of no pod":  {account("other", "gpu-kubelet-plugin", ""), "n1", refused},
		"... without a node": {account("other", "gpu-kubelet-plugin", ""), "", refused},
		"others":             {account("other", "controller", ""), "n2", ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, s.validate(test.who, nil, on(test.node)), test.refused)
		})
	}
}

// opaque is a configuration for a driver.
func opaque(driver, parameters string) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver,
		Parameters: runtime.RawExtension{Raw: []byte(parameters)}}}
}

// configuration lifts the limits of this driver's shares.
func configuration(driver string) resourceapi.DeviceConfiguration {
	return opaque(driver, `{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig","disableIsolation":true}`)
}

// The controller's token makes no class that lifts the limits of a GPU model's shares, or that
// stands for a resource of pods: only what the controller itself writes.
func TestDeviceClassesOfTheController(t *testing.T) {
	s := newServer(t)
	modes, err := deviceclasses.ModesWithClass()
	expect.NoError(t, err)
	own, err := deviceclasses.Model("NVIDIA-A10", modes)
	expect.NoError(t, err)
	own = append(own, deviceclasses.Profile("1g.10gb"), deviceclasses.Profile("1g.10gb+me"))
	for _, class := range own {
		class.Labels[v1alpha1.LabelManagedBy] = v1alpha1.ControllerName
	}
	class := func(name string, change func(*resourceapi.DeviceClassSpec)) *resourceapi.DeviceClass {
		c := own[0].DeepCopy()
		c.Name = name
		change(&c.Spec)
		return c
	}
	configured := func(driver string) func(*resourceapi.DeviceClassSpec) {
		return func(s *resourceapi.DeviceClassSpec) {
			s.Config = []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: configuration(driver)}}
		}
	}
	const (
		cpus           = "dra-cpu.gpu.aliyun.com"
		config, stands = "no configuration into DeviceClasses", "no extendedResourceName into DeviceClasses"
	)
	lifting := class(own[0].Name, configured("gpu.aliyun.com"))
	hijacking := class(own[0].Name, func(s *resourceapi.DeviceClassSpec) {
		s.ExtendedResourceName = ptr.To("nvidia.com/gpu")
	})
	profile := func(name, resource string) *resourceapi.DeviceClass {
		return class(name, func(s *resourceapi.DeviceClassSpec) { s.ExtendedResourceName = &resource })
	}
	type test struct {
		class, old *resourceapi.DeviceClass
		refused    string
	}
	tests := map[string]test{
		"limits lifted":                   {lifting, nil, config},
		"limits lifted later":             {lifting, own[0], config},
		"another driver configured":       {class(own[0].Name, configured("dra.cpu")), nil, config},
		"a resource taken":                {hijacking, nil, stands},
		"a resource taken later":          {hijacking, own[0], stands},
		"the class of CPUs":               {class(cpus, configured("dra.cpu")), nil, ""},
		"the class of CPUs lifting":       {class(cpus, configured("gpu.aliyun.com")), nil, config},
		"what others wrote is taken back": {own[0], class(own[0].Name, configured("gpu.aliyun.com")), ""},
		"what others wrote is removed":    {nil, hijacking, ""},
		"a MIG profile for another":       {profile("1g.10gb.mig.gpu.aliyun.com", "nvidia.com/mig-7g.80gb"), nil, stands},
		"a MIG profile for whole GPUs":    {profile("1g.10gb.mig.gpu.aliyun.com", "nvidia.com/gpu"), nil, stands},
		"a MIG profile's resource":        {profile("a10.gpu.aliyun.com", "nvidia.com/mig-1g.10gb"), nil, stands},
	}
	for _, class := range own {
		tests[class.Name] = test{class, nil, ""}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for _, namespace := range []string{metav1.NamespaceSystem, "other"} {
				expect.Error(t, s.validate(account(namespace, "gpu-compat-controller", ""), test.class, test.old),
					test.refused)
			}
		})
	}
}

// Nor is the token of another account of the driver's worth more in another namespace.
func TestAccountsInAnotherNamespace(t *testing.T) {
	s := newServer(t)
	event := func(node string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "e"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node},
		}
	}
	ofAPod := event("n1")
	ofAPod.Namespace, ofAPod.InvolvedObject = team,
		corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: team, Name: "n1"}
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "t"}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{exactly("a", "share")}
	request, err := legacy.ParseName("gpushare.mem.main.3.other.2")
	expect.NoError(t, err)
	// As the controller makes it, with a change.
	forLegacy := func(change func(*resourceapi.DeviceClaim)) *resourceapi.ResourceClaimTemplate {
		made := request.Template(team)
		made.Labels[v1alpha1.LabelManagedBy] = v1alpha1.ControllerName
		if change != nil {
			change(&made.Spec.Spec.Devices)
		}
		return made
	}
	for name, test := range map[string]struct {
		account string
		object  runtime.Object
		refused string
	}{
		"an Event of its node": {"gpu-mps-supervisor", event("n1"), ""},
		"of another node": {"gpu-mps-supervisor", event("n2"), "gpu-mps-supervisor on node " +
			"n1 may only write Events of that node"},
		"of a pod":                   {"gpu-mps-supervisor", ofAPod, "may only write Events of that node"},
		"a template for legacy pods": {"gpu-compat-controller", forLegacy(nil), ""},
		"one that lifts limits": {"gpu-compat-controller", forLegacy(func(c *resourceapi.DeviceClaim) {
			c.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: configuration("gpu.aliyun.com")}}
		}), "that switches off limits or has adminAccess"},
		"one that configures others": {"gpu-compat-controller", forLegacy(func(c *resourceapi.DeviceClaim) {
			c.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: configuration("gpu.nvidia.com")}}
		}), "that switches off limits or has adminAccess"},
		"an administrator's": {"gpu-compat-controller", forLegacy(func(c *resourceapi.DeviceClaim) {
			c.Requests[0] = admin(c.Requests[0])
		}), "that switches off limits or has adminAccess"},
		"a template of a pod's": {"gpu-compat-controller", template,
			"may make and remove no ResourceClaimTemplate but gpushare.*"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, namespace := range []string{metav1.NamespaceSystem, "other"} {
				expect.Error(t, s.validate(account(namespace, test.account, "n1"), test.object, nil), test.refused)
			}
		})
	}
}
