// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

type sliceSpec = resourceapi.ResourceSliceSpec

func text(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }

func number(n int64) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{IntValue: &n} }

// slice is a slice as the plugin of node n1 writes it, with a change.
func slice(change func(*sliceSpec)) *resourceapi.ResourceSlice {
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
	if s.Spec.Driver == "gpu.aliyun.com" && s.Spec.NodeName != nil {
		s.Name = "00000-gpu.aliyun.com-" + *s.Spec.NodeName
	}
	return s
}

func withoutAttribute(name resourceapi.QualifiedName) *resourceapi.ResourceSlice {
	return slice(func(s *sliceSpec) { delete(s.Devices[0].Attributes, name) })
}

func withAttribute(name resourceapi.QualifiedName, value resourceapi.DeviceAttribute) *resourceapi.ResourceSlice {
	return slice(func(s *sliceSpec) { s.Devices[0].Attributes[name] = value })
}

// manyDevices is a slice with so many of one device, which differ in their names, each with as many attributes as the
// API takes: what the policy costs must not refuse it.
func manyDevices(n int) *resourceapi.ResourceSlice {
	return slice(func(s *sliceSpec) {
		for i := len(s.Devices[0].Attributes); i < resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice-1; i++ {
			s.Devices[0].Attributes[resourceapi.QualifiedName(fmt.Sprintf("more%d", i))] = text("")
		}
		for i := int64(1); i < int64(n); i++ {
			d := *s.Devices[0].DeepCopy()
			d.Name, d.Attributes["index"] = fmt.Sprintf("gpu-%d-topology", i), number(i)
			s.Devices = append(s.Devices, d)
		}
	})
}

// linkedSet has the device be of two GPUs, with what such devices have.
func linkedSet(s *sliceSpec) {
	a := s.Devices[0].Attributes
	for _, name := range []resourceapi.QualifiedName{"uuid", "index", "minor"} {
		delete(a, name)
	}
	a["gpuCount"], a["members"] = number(2), text("0,1")
	s.Devices[0].Name = "gpus-0-1"
}

func consumes(s *sliceSpec) {
	s.Devices[0].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "none",
		Counters: map[string]resourceapi.Counter{"x": {Value: resource.MustParse("1")}}}}
}

func withMemory(value string) *resourceapi.ResourceSlice {
	return slice(func(s *sliceSpec) {
		s.Devices[0].Capacity["memory"] = resourceapi.DeviceCapacity{Value: resource.MustParse(value)}
	})
}

// documented are the attributes of devices, and their types, as the page for users has them.
func documented(t *testing.T) map[resourceapi.QualifiedName]string {
	t.Helper()
	page, err := os.ReadFile("testdata/docs/reference.md")
	expect.NoError(t, err)
	types := map[resourceapi.QualifiedName]string{"resource.kubernetes.io/pciBusID": "string",
		"resource.kubernetes.io/pcieRoot": "string", "resource.kubernetes.io/numaNode": "int"}
	row := regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\| (string|int|version|bool) \\|")
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
			if (name == "mode" || name == "index") && kind == want {
				object = slice(nil)
			}
			if name == "profile" && kind == want {
				object = withAttribute(name, text("1g.10gb"))
			}
			err := s.validate(plugin, object, nil)
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
		incomplete = " needs the attributes mode, model"
		mistyped   = "device gpu-0-topology has an attribute of another type"
		profile    = "the profile of device gpu-0-mig-1g-10gb-0 is none of NVIDIA's, such as 1g.10gb+me: '"
	)
	elsewhere := slice(func(s *sliceSpec) { s.NodeName, s.Pool.Name = ptr.To("n2"), "n2/gpu" })
	inOtherPool := slice(func(s *sliceSpec) { s.Pool.Name = "n2/gpu" })
	ofProfile := func(name string) *resourceapi.ResourceSlice {
		return slice(func(s *sliceSpec) {
			s.Devices[0].Name = "gpu-0-mig-1g-10gb-0"
			maps.Copy(s.Devices[0].Attributes, map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"mode": text("mig"),
				"profile": text(name), "profileID": number(9), "parentUUID": text("GPU-0"), "placementStart": number(0),
				"placementSize": number(1)})
		})
	}
	withdrawn := func(gpus int64) *resourceapi.ResourceSlice {
		return slice(func(s *sliceSpec) {
			s.Devices[0].Attributes = map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"mode": text("withdrawn"),
				"gpuCount": number(gpus)}
			s.Devices[0].Name = "gpus-0-1"
			s.Devices[0].Capacity = nil
		})
	}
	for name, test := range map[string]struct {
		object, old *resourceapi.ResourceSlice
		refused     string
	}{
		"a slice":                     {slice(nil), nil, ""},
		"without devices":             {slice(func(s *sliceSpec) { s.Devices = nil }), nil, ""},
		"a change":                    {slice(func(s *sliceSpec) { s.Pool.Generation = 2 }), slice(nil), ""},
		"a change of an earlier one":  {slice(nil), withoutAttribute("isolation"), ""},
		"a removal":                   {nil, slice(nil), ""},
		"a removal from another pool": {nil, inOtherPool, ""},
		"another node's":              {elsewhere, nil, node},
		"a change of another node's":  {elsewhere, elsewhere, node},
		"a removal of another node's": {nil, elsewhere, node},
		"another driver's":            {slice(func(s *sliceSpec) { s.Driver = "gpu.example.com" }), nil, node},
		"in another node's pool":      {inOtherPool, nil, pool + "n2/gpu"},
		"in a pool of its own":        {slice(func(s *sliceSpec) { s.Pool.Name = "n1" }), nil, pool + "n1"},
		"for all nodes": {
			slice(func(s *sliceSpec) { s.NodeName, s.AllNodes = nil, ptr.To(true) }), nil, node},
		"for selected nodes": {
			slice(func(s *sliceSpec) { s.NodeName, s.NodeSelector = nil, &corev1.NodeSelector{} }), nil,
			node},
		"for a node per device": {
			slice(func(s *sliceSpec) { s.NodeName, s.PerDeviceNodeSelection = nil, ptr.To(true) }), nil,
			node},
		"no mode":                      {withoutAttribute("mode"), nil, incomplete},
		"no model":                     {withoutAttribute("model"), nil, incomplete},
		"no isolation":                 {withoutAttribute("isolation"), nil, incomplete},
		"no memory":                    {withoutAttribute("memoryMiB"), nil, incomplete},
		"no number of GPUs":            {withoutAttribute("gpuCount"), nil, incomplete},
		"no index":                     {withoutAttribute("index"), nil, incomplete},
		"no UUID":                      {withoutAttribute("uuid"), nil, incomplete},
		"no bandwidth":                 {withoutAttribute("nvlinkGBps"), nil, incomplete},
		"no capacity":                  {slice(func(s *sliceSpec) { s.Devices[0].Capacity = nil }), nil, incomplete},
		"no attributes":                {slice(func(s *sliceSpec) { s.Devices[0].Attributes = nil }), nil, incomplete},
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
		"the most slices":              {slice(func(s *sliceSpec) { s.Pool.ResourceSliceCount = 40 }), nil, ""},
		"more slices": {slice(func(s *sliceSpec) { s.Pool.ResourceSliceCount = 41 }), nil,
			"gpu-kubelet-plugin may publish 40 ResourceSlices at most, not 41"},
		"the most devices": {manyDevices(64), nil, ""},
		"more devices": {manyDevices(65), nil,
			"gpu-kubelet-plugin may publish 64 devices in a ResourceSlice at most, not 65"},
		"a linked set": {slice(linkedSet), nil, ""},
		"a linked set without members": {slice(func(s *sliceSpec) {
			linkedSet(s)
			delete(s.Devices[0].Attributes, "members")
		}), nil, incomplete},
		"counters that nobody has": {slice(consumes), nil, "consumes counters, and its pool has no ResourceSlice for them"},
		"counters in another slice": {slice(func(s *sliceSpec) {
			consumes(s)
			s.Pool.ResourceSliceCount = 2
		}), nil, ""},
		"less memory than nothing":     {withMemory("-1"), nil, "less than nothing of a capacity"},
		"memory beyond counting":       {withMemory("8Ei"), nil, "more than any has"},
		"a withdrawn set":              {withdrawn(2), nil, ""},
		"a GPU that says it withdrawn": {withdrawn(1), nil, incomplete},
	} {
		t.Run(name, func(t *testing.T) {
			for _, namespace := range []string{metav1.NamespaceSystem, "other"} {
				plugin := account(namespace, "gpu-kubelet-plugin", "n1")
				expect.Error(t, s.validate(plugin, test.object, test.old), test.refused)
			}
		})
	}
	t.Run("a token of no pod", func(t *testing.T) {
		err := s.validate(account("other", "gpu-kubelet-plugin", ""), slice(nil), nil)
		expect.Error(t, err, "names no node")
	})
	t.Run("another driver's plugin", func(t *testing.T) {
		err := s.validate(account("other", "nvidia-gpu-kubelet-plugin", "n1"), elsewhere, nil)
		expect.Error(t, err, "")
	})
}

// stored is how the API server would store a slice that somebody creates, by the name that the policies give it or, in
// their absence, by one that it finds itself.
func (s *server) stored(who user.Info, slice *resourceapi.ResourceSlice, dryRun bool) (*resourceapi.ResourceSlice,
	error) {
	attributes := func(of *resourceapi.ResourceSlice) admission.Attributes {
		return admission.NewAttributesRecord(of, nil, resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), "", of.Name,
			resourceapi.SchemeGroupVersion.WithResource("resourceslices"), "", admission.Create, nil, dryRun, who)
	}
	objects := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	asked := attributes(slice.DeepCopy())
	if err := s.Mutating.Admit(context.Background(), asked, objects); err != nil {
		return nil, err
	}
	mutated, ok := asked.GetObject().(*resourceapi.ResourceSlice)
	if !ok {
		return nil, fmt.Errorf("a slice became a %T", asked.GetObject())
	}
	if mutated.Name == "" {
		mutated.Name = mutated.GenerateName + "x7f2q"
	}
	return mutated, s.Validate(context.Background(), attributes(mutated))
}

// A node has no more slices than its pool says, however many its token creates: each has one of so many names, which
// the API server takes once.
func TestSlicesOfANodeAreNumbered(t *testing.T) {
	s := newServer(t)
	plugin := account("other", "gpu-kubelet-plugin", "n1")
	const refused = "ResourceSlices, as the pool says, numbered from 00000-gpu.aliyun.com-n1 on: not "
	for name, test := range map[string]struct {
		generate, name string
		of             int64
		dryRun         bool
		want, refused  string
	}{
		"as the helper library asks": {"00000-gpu.aliyun.com-n1-", "", 1, false, "00000-gpu.aliyun.com-n1", ""},
		"the last of several":        {"00011-gpu.aliyun.com-n1-", "", 18, false, "00011-gpu.aliyun.com-n1", ""},
		"the last of the most":       {"00027-gpu.aliyun.com-n1-", "", 40, false, "00027-gpu.aliyun.com-n1", ""},
		"one more than the pool has": {"00001-gpu.aliyun.com-n1-", "", 1, false, "", refused + "00001-gpu.aliyun.com-n1"},
		"more than ten": {"00010-gpu.aliyun.com-n1-", "", 16, false, "",
			"may have 16 " + refused + "00010-gpu.aliyun.com-n1"},
		"more than the most": {"00028-gpu.aliyun.com-n1-", "", 40, false, "",
			"may have 40 " + refused + "00028-gpu.aliyun.com-n1"},
		"of another node":          {"00000-gpu.aliyun.com-n2-", "", 1, false, "", "00000-gpu.aliyun.com-n2"},
		"of a node of like name":   {"00000-gpu.aliyun.com-n1-x-", "", 1, false, "", "00000-gpu.aliyun.com-n1-x"},
		"any name":                 {"sec-", "", 1, false, "", refused + "sec-x7f2q"},
		"the own name with an end": {"", "00000-gpu.aliyun.com-n1-x", 1, false, "", "00000-gpu.aliyun.com-n1-x"},
		"the own name":             {"", "00000-gpu.aliyun.com-n1", 1, false, "00000-gpu.aliyun.com-n1", ""},
		"both names":               {"00000-gpu.aliyun.com-n1-", "mine", 1, false, "", refused},
		"a dry run":                {"preflight-", "", 1, true, "preflight-x7f2q", ""},
	} {
		t.Run(name, func(t *testing.T) {
			created := slice(func(s *sliceSpec) { s.Pool.ResourceSliceCount = test.of })
			created.Name, created.GenerateName = test.name, test.generate
			stored, err := s.stored(plugin, created, test.dryRun)
			expect.Error(t, err, test.refused)
			if err == nil && stored.Name != test.want {
				t.Errorf("it is stored as %s, want %s", stored.Name, test.want)
			}
		})
	}
	// One that an earlier version made is changed until it is removed; a numbered one stays within its pool.
	earlier, fewer := slice(nil), slice(nil)
	earlier.Name, fewer.Name = "00003-gpu.aliyun.com-n1-x7f2q", "00001-gpu.aliyun.com-n1"
	for refused, of := range map[string]*resourceapi.ResourceSlice{"": earlier, refused: fewer} {
		expect.Error(t, s.validate(plugin, of, of), refused)
	}
}

// A node of any name that a kubelet can register has its slices, however many, and so has one of any name for which
// the API server takes what the helper library asks for.
func TestSlicesOfNodesWithLongNames(t *testing.T) {
	s := newServer(t)
	for _, length := range []int{63, 232} {
		node := strings.Repeat("n", length)
		for number, count := range map[string]int64{"00000": 1, "00027": 40} {
			created := slice(func(s *sliceSpec) {
				s.NodeName, s.Pool.Name, s.Pool.ResourceSliceCount = &node, node+"/gpu", count
			})
			created.Name, created.GenerateName = "", number+"-gpu.aliyun.com-"+node+"-"
			if refused := apivalidation.NameIsDNSSubdomain(created.GenerateName, true); len(refused) > 0 {
				t.Fatalf("the API server refuses %s: %v", created.GenerateName, refused)
			}
			stored, err := s.stored(account("other", "gpu-kubelet-plugin", node), created, false)
			if err != nil {
				t.Fatalf("a node's name of %d characters: %v", length, err)
			}
			if refused := apivalidation.NameIsDNSSubdomain(stored.Name, false); len(refused) > 0 {
				t.Errorf("the API server refuses %s: %v", stored.Name, refused)
			}
		}
	}
	longer := "00000-gpu.aliyun.com-" + strings.Repeat("n", 233) + "-"
	if len(apivalidation.NameIsDNSSubdomain(longer, true)) == 0 {
		t.Error("there are longer names of nodes for which the API server takes what the helper library asks for")
	}
}

// Nor does another account take a node's names, so that its plugin could create no slices.
func TestNobodyTakesTheNamesOfANodesSlices(t *testing.T) {
	s := newServer(t)
	const refused = "ResourceSlice 00000-gpu.aliyun.com-n1 has the name of a slice that gpu-kubelet-plugin creates"
	kubelet := &user.DefaultInfo{Name: "system:node:n2", Groups: []string{user.NodesGroup, user.AllAuthenticated}}
	of := func(driver, node string) *resourceapi.ResourceSlice {
		made := slice(func(s *sliceSpec) { s.Driver, s.NodeName = driver, ptr.To(node) })
		made.Name = "00000-gpu.aliyun.com-n1"
		return made
	}
	others := slice(func(s *sliceSpec) { s.Driver = "gpu.example.com" })
	for name, test := range map[string]struct {
		who     user.Info
		object  *resourceapi.ResourceSlice
		refused string
	}{
		"a kubelet":                   {kubelet, of("gpu.example.com", "n2"), refused},
		"another driver's plugin":     {account("other", "gpu-example", "n2"), of("gpu.example.com", "n2"), refused},
		"another driver's as ours":    {account("other", "gpu-example", "n2"), of("gpu.aliyun.com", "n2"), refused},
		"an administrator for n1":     {&user.DefaultInfo{Name: "admin"}, of("gpu.aliyun.com", "n1"), ""},
		"another name of a kubelet's": {kubelet, others, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.stored(test.who, test.object, false)
			expect.Error(t, err, test.refused)
		})
	}
}
