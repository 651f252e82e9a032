// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
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

var (
	slicesResource    = resourceapi.SchemeGroupVersion.WithResource("resourceslices")
	templatesResource = resourceapi.SchemeGroupVersion.WithResource("resourceclaimtemplates")
	eventsResource    = corev1.SchemeGroupVersion.WithResource("events")
)

func text(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }

func number(n int64) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{IntValue: &n} }

// slice is a slice as the plugin of node n1 writes it, with a change.
func slice(change func(*resourceapi.ResourceSliceSpec)) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: "gpu.aliyun.com", NodeName: ptr.To("n1"),
		Pool: resourceapi.ResourcePool{Name: "n1/gpu", Generation: 1, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{{
			Name: "gpu-0-topology",
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"mode": text("topology"), "model": text("NVIDIA-A10"), "isolation": text("whole-card"), "memoryMiB": number(23028),
				"isolationLevel": text("card"), "uuid": text("GPU-0"), "index": number(0), "minor": number(0),
				"nvlinkGBps": number(0), "gpuCount": number(1),
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {}},
		}},
	}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func withoutAttribute(name resourceapi.QualifiedName) *resourceapi.ResourceSlice {
	return slice(func(s *resourceapi.ResourceSliceSpec) { delete(s.Devices[0].Attributes, name) })
}

func withAttribute(name resourceapi.QualifiedName, value resourceapi.DeviceAttribute) *resourceapi.ResourceSlice {
	return slice(func(s *resourceapi.ResourceSliceSpec) { s.Devices[0].Attributes[name] = value })
}

// manyDevices is a slice with so many of one device, which differ in their names, each with as many attributes as the
// API takes: what the policy costs must not refuse it.
func manyDevices(n int) *resourceapi.ResourceSlice {
	return slice(func(s *resourceapi.ResourceSliceSpec) {
		for i := len(s.Devices[0].Attributes); i < resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice-1; i++ {
			s.Devices[0].Attributes[resourceapi.QualifiedName(fmt.Sprintf("more%d", i))] = text("")
		}
		for i := range n - 1 {
			d := *s.Devices[0].DeepCopy()
			d.Name = fmt.Sprintf("more-%d", i)
			s.Devices = append(s.Devices, d)
		}
	})
}

// linkedSet has the device be of two GPUs, with what such devices have.
func linkedSet(s *resourceapi.ResourceSliceSpec) {
	a := s.Devices[0].Attributes
	for _, name := range []resourceapi.QualifiedName{"uuid", "index", "minor"} {
		delete(a, name)
	}
	a["gpuCount"], a["members"] = number(2), text("0,1")
}

func consumes(s *resourceapi.ResourceSliceSpec) {
	s.Devices[0].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "none",
		Counters: map[string]resourceapi.Counter{"x": {Value: resource.MustParse("1")}}}}
}

func withMemory(value string) *resourceapi.ResourceSlice {
	return slice(func(s *resourceapi.ResourceSliceSpec) {
		s.Devices[0].Capacity["memory"] = resourceapi.DeviceCapacity{Value: resource.MustParse(value)}
	})
}

// documented are the attributes of devices, and their types, as the page for users has them.
func documented(t *testing.T) map[resourceapi.QualifiedName]string {
	t.Helper()
	page, err := os.ReadFile("testdata/docs/reference.md")
	if err != nil {
		t.Fatal(err)
	}
	types := map[resourceapi.QualifiedName]string{"resource.kubernetes.io/pciBusID": "string",
		"resource.kubernetes.io/pcieRoot": "string", "resource.kubernetes.io/numaNode": "int"}
	row := regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\| (string|int|version) \\|")
	for _, found := range row.FindAllStringSubmatch(string(page), -1) {
		types[resourceapi.QualifiedName(found[1])] = found[2]
	}
	if len(types) < 25 {
		t.Fatalf("docs/reference.md has %d attributes only", len(types))
	}
	return types
}

// No device has an attribute of another type than its page says: selectors that compare by order would fail
// for it, and with them the pod on every node.
func TestAttributesAreOfTheirTypes(t *testing.T) {
	s := newServer(t)
	plugin := account("other", "gpu-kubelet-plugin", "n1")
	values := map[string]resourceapi.DeviceAttribute{"string": text("1"), "int": number(1),
		"version": {VersionValue: ptr.To("1.0.0")}, "bool": {BoolValue: ptr.To(true)}}
	for name, want := range documented(t) {
		for kind, value := range values {
			object := withAttribute(name, value)
			if name == "mode" && kind == want {
				object = slice(nil)
			}
			if name == "profile" && kind == want {
				object = withAttribute(name, text("1g.10gb"))
			}
			err := s.validate(plugin, object, nil, "ResourceSlice", slicesResource, admission.Create)
			if (err == nil) != (kind == want) || err != nil && !strings.Contains(err.Error(), "of another type") {
				t.Errorf("%s is a %s, and one of type %s: %v", name, want, kind, err)
			}
		}
	}
}

// A token of a node's plugin is good for that node's slices and for no others, whatever
// namespace the driver is installed in.
func TestSlicesOfTheOwnNode(t *testing.T) {
	s := newServer(t)
	const (
		node       = "gpu-kubelet-plugin on node n1 may only write ResourceSlices of driver gpu.aliyun.com for that node"
		pool       = "gpu-kubelet-plugin on node n1 may only write ResourceSlices of pool n1/gpu, not "
		incomplete = "device gpu-0-topology needs the attributes"
		mistyped   = "device gpu-0-topology has an attribute of another type"
		profile    = "the profile of device gpu-0-topology is none of NVIDIA's, such as 1g.10gb+me: '"
	)
	elsewhere := slice(func(s *resourceapi.ResourceSliceSpec) { s.NodeName, s.Pool.Name = ptr.To("n2"), "n2/gpu" })
	inOtherPool := slice(func(s *resourceapi.ResourceSliceSpec) { s.Pool.Name = "n2/gpu" })
	ofProfile := func(name string) *resourceapi.ResourceSlice {
		return slice(func(s *resourceapi.ResourceSliceSpec) {
			maps.Copy(s.Devices[0].Attributes, map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"mode": text("mig"),
				"profile": text(name), "profileID": number(9), "parentUUID": text("GPU-0"), "placementStart": number(0),
				"placementSize": number(1)})
		})
	}
	withdrawn := func(gpus int64) *resourceapi.ResourceSlice {
		return slice(func(s *resourceapi.ResourceSliceSpec) {
			s.Devices[0].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"mode": text("withdrawn"),
				"gpuCount": number(gpus)}
			s.Devices[0].Capacity = nil
		})
	}
	for name, test := range map[string]struct {
		object, old *resourceapi.ResourceSlice
		refused     string
	}{
		"a slice":         {slice(nil), nil, ""},
		"without devices": {slice(func(s *resourceapi.ResourceSliceSpec) { s.Devices = nil }), nil, ""},
		"a change": {slice(func(s *resourceapi.ResourceSliceSpec) { s.Pool.Generation = 2 }), slice(nil),
			""},
		"a change of an earlier one":  {slice(nil), withoutAttribute("isolation"), ""},
		"a removal":                   {nil, slice(nil), ""},
		"a removal from another pool": {nil, inOtherPool, ""},
		"another node's":              {elsewhere, nil, node},
		"a change of another node's":  {elsewhere, elsewhere, node},
		"a removal of another node's": {nil, elsewhere, node},
		"another driver's": {slice(func(s *resourceapi.ResourceSliceSpec) { s.Driver = "gpu.example.com" }), nil,
			node},
		"in another node's pool": {inOtherPool, nil, pool + "n2/gpu"},
		"in a pool of its own": {slice(func(s *resourceapi.ResourceSliceSpec) { s.Pool.Name = "n1" }), nil, pool +
			"n1"},
		"for all nodes": {
			slice(func(s *resourceapi.ResourceSliceSpec) { s.NodeName, s.AllNodes = nil, ptr.To(true) }), nil, node},
		"for selected nodes": {
			slice(func(s *resourceapi.ResourceSliceSpec) { s.NodeName, s.NodeSelector = nil, &corev1.NodeSelector{} }), nil,
			node},
		"for a node per device": {
			slice(func(s *resourceapi.ResourceSliceSpec) { s.NodeName, s.PerDeviceNodeSelection = nil, ptr.To(true) }), nil,
			node},
		"no mode":           {withoutAttribute("mode"), nil, incomplete},
		"no model":          {withoutAttribute("model"), nil, incomplete},
		"no isolation":      {withoutAttribute("isolation"), nil, incomplete},
		"no memory":         {withoutAttribute("memoryMiB"), nil, incomplete},
		"no number of GPUs": {withoutAttribute("gpuCount"), nil, incomplete},
		"no index":          {withoutAttribute("index"), nil, incomplete},
		"no UUID":           {withoutAttribute("uuid"), nil, incomplete},
		"no bandwidth":      {withoutAttribute("nvlinkGBps"), nil, incomplete},
		"no capacity": {slice(func(s *resourceapi.ResourceSliceSpec) { s.Devices[0].Capacity = nil }), nil,
			incomplete},
		"no attributes": {slice(func(s *resourceapi.ResourceSliceSpec) { s.Devices[0].Attributes = nil }), nil,
			incomplete},
		"an attribute twice":           {withAttribute("gpu.aliyun.com/memoryMiB", text("1")), nil, mistyped},
		"an attribute of Kubernetes'":  {withAttribute("resource.kubernetes.io/pciBusID", text("0000:00:08.0")), nil, ""},
		"a profile of NVIDIA's":        {ofProfile("1g.24gb+me.all"), nil, ""},
		"one without engines":          {ofProfile("1g.24gb-me"), nil, ""},
		"one with graphics":            {ofProfile("4g.96gb+gfx"), nil, ""},
		"one that NVML cannot name":    {ofProfile("profile-15"), nil, ""},
		"another's name for a class":   {ofProfile("1g.10gb.me"), nil, profile + "1g.10gb.me"},
		"an earlier profile is left":   {ofProfile("1g.10gb+me"), ofProfile("1g.10gb.me"), ""},
		"a profile for no class":       {ofProfile("1g.10gb+ME"), nil, profile},
		"a profile with an end":        {ofProfile("1g.24gb+me+all"), nil, ""},
		"a profile without one":        {ofProfile("1g.24gb+me+"), nil, profile},
		"a class's name for a profile": {ofProfile("share"), nil, profile},
		"a profile and more":           {ofProfile("1g.10gb\n"), nil, "variables.misnamed"},
		"no profile":                   {ofProfile(""), nil, profile},
		"the most slices": {slice(func(s *resourceapi.ResourceSliceSpec) { s.Pool.ResourceSliceCount = 40 }), nil,
			""},
		"more slices": {slice(func(s *resourceapi.ResourceSliceSpec) { s.Pool.ResourceSliceCount = 41 }), nil,
			"gpu-kubelet-plugin may publish 40 ResourceSlices at most, not 41"},
		"the most devices": {manyDevices(64), nil, ""},
		"more devices": {manyDevices(65), nil,
			"gpu-kubelet-plugin may publish 64 devices in a ResourceSlice at most, not 65"},
		"a linked set": {slice(linkedSet), nil, ""},
		"a linked set without members": {slice(func(s *resourceapi.ResourceSliceSpec) {
			linkedSet(s)
			delete(s.Devices[0].Attributes, "members")
		}), nil, incomplete},
		"counters that nobody has": {slice(consumes), nil, "consumes counters, and its pool has no ResourceSlice for them"},
		"counters in another slice": {slice(func(s *resourceapi.ResourceSliceSpec) {
			consumes(s)
			s.Pool.ResourceSliceCount = 2
		}), nil, ""},
		"less memory than nothing":     {withMemory("-1"), nil, "less than nothing of a capacity"},
		"memory beyond counting":       {withMemory("8Ei"), nil, "more than any has"},
		"a withdrawn set":              {withdrawn(2), nil, ""},
		"a GPU that says it withdrawn": {withdrawn(1), nil, incomplete},
	} {
		t.Run(name, func(t *testing.T) {
			object, old, operation := written(test.object, test.old)
			for _, namespace := range []string{metav1.NamespaceSystem, "other"} {
				plugin := account(namespace, "gpu-kubelet-plugin", "n1")
				checkRefusal(t, test.refused, s.validate(plugin, object, old, "ResourceSlice", slicesResource, operation))
			}
		})
	}
	t.Run("a token of no pod", func(t *testing.T) {
		err := s.validate(account("other", "gpu-kubelet-plugin", ""), slice(nil), nil, "ResourceSlice", slicesResource,
			admission.Create)
		checkRefusal(t, "names no node", err)
	})
	t.Run("another driver's plugin", func(t *testing.T) {
		err := s.validate(account("other", "nvidia-gpu-kubelet-plugin", "n1"), elsewhere, nil, "ResourceSlice",
			slicesResource, admission.Create)
		checkRefusal(t, "", err)
	})
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
			checkRefusal(t, test.refused, s.validate(test.who, nil, on(test.node), "Pod",
				corev1.SchemeGroupVersion.WithResource("pods"), admission.Delete))
		})
	}
}

// written is a request that writes a slice over the old one, or makes or removes it where the other is nil.
func written(object, old *resourceapi.ResourceSlice) (runtime.Object, runtime.Object, admission.Operation) {
	switch {
	case object == nil:
		return nil, old, admission.Delete
	case old == nil:
		return object, nil, admission.Create
	}
	return object, old, admission.Update
}

func checkRefusal(t *testing.T, refused string, err error) {
	t.Helper()
	if (err == nil) != (refused == "") || err != nil && !strings.Contains(err.Error(), refused) {
		t.Errorf("error %v, want %q", err, refused)
	}
}

// configuration lifts the limits of this driver's shares.
func configuration(driver string) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver,
		Parameters: runtime.RawExtension{
			Raw: []byte(`{"apiVersion":"gpu.aliyun.com/v1alpha1","kind":"GpuConfig","disableIsolation":true}`)}}}
}

// The controller's token makes no class that lifts the limits of a GPU model's shares, or that
// stands for a resource of pods: only what the controller itself writes.
func TestDeviceClassesOfTheController(t *testing.T) {
	s := newServer(t)
	modes, err := deviceclasses.ModesWithClass()
	if err != nil {
		t.Fatal(err)
	}
	own, err := deviceclasses.Model("NVIDIA-A10", modes)
	if err != nil {
		t.Fatal(err)
	}
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
			object, old, operation := runtime.Object(nil), runtime.Object(nil), admission.Create
			if test.class != nil {
				object = test.class
			}
			if test.old != nil {
				old, operation = test.old, admission.Update
			}
			if test.class == nil {
				operation = admission.Delete
			}
			for _, namespace := range []string{metav1.NamespaceSystem, "other"} {
				checkRefusal(t, test.refused, s.validate(account(namespace, "gpu-compat-controller", ""), object, old,
					"DeviceClass", resourceapi.SchemeGroupVersion.WithResource("deviceclasses"), operation))
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
	if err != nil {
		t.Fatal(err)
	}
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
		account  string
		object   runtime.Object
		kind     string
		resource schema.GroupVersionResource
		refused  string
	}{
		"an Event of its node": {"gpu-mps-supervisor", event("n1"), "Event", eventsResource, ""},
		"of another node": {"gpu-mps-supervisor", event("n2"), "Event", eventsResource, "gpu-mps-supervisor on node " +
			"n1 may only write Events of that node"},
		"of a pod": {"gpu-mps-supervisor", ofAPod, "Event", eventsResource,
			"may only write Events of that node"},
		"a template for legacy pods": {"gpu-compat-controller", forLegacy(nil), "ResourceClaimTemplate",
			templatesResource, ""},
		"one that lifts limits": {"gpu-compat-controller", forLegacy(func(c *resourceapi.DeviceClaim) {
			c.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: configuration("gpu.aliyun.com")}}
		}), "ResourceClaimTemplate", templatesResource, "that switches off limits or has adminAccess"},
		"one that configures others": {"gpu-compat-controller", forLegacy(func(c *resourceapi.DeviceClaim) {
			c.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: configuration("gpu.nvidia.com")}}
		}), "ResourceClaimTemplate", templatesResource, "that switches off limits or has adminAccess"},
		"an administrator's": {"gpu-compat-controller", forLegacy(func(c *resourceapi.DeviceClaim) {
			c.Requests[0] = admin(c.Requests[0])
		}), "ResourceClaimTemplate", templatesResource, "that switches off limits or has adminAccess"},
		"a template of a pod's": {"gpu-compat-controller", template, "ResourceClaimTemplate", templatesResource,
			"may make and remove no ResourceClaimTemplate but gpushare.*"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, namespace := range []string{metav1.NamespaceSystem, "other"} {
				checkRefusal(t, test.refused, s.validate(account(namespace, test.account, "n1"), test.object, nil, test.kind,
					test.resource, admission.Create))
			}
		})
	}
}
