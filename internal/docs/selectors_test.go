// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

const root = "../.."

// A selector that cannot be evaluated for one device keeps the pod from every node. So none that the driver is
// installed with, that it makes, or that the documents tell to write fails for whatever somebody publishes.
func TestNoDeviceFailsASelector(t *testing.T) {
	compiler := stockallocator.Expressions(1000)
	// Admission refuses devices of the driver whose attributes are of other types (tests/policies). What compares by
	// order rests on that.
	typed := documentedTypes(t)
	for where, expressions := range selectors(t) {
		for _, expression := range expressions {
			compiled := compiler.GetOrCompile(expression)
			if compiled.Error != nil {
				t.Errorf("%s: %s does not compile: %v", where, expression, compiled.Error)
				continue
			}
			fails := func(driver string, d resourceapi.Device) error {
				_, _, err := compiled.DeviceMatches(t.Context(), cel.Device{Driver: driver, Attributes: d.Attributes,
					AllowMultipleAllocations: d.AllowMultipleAllocations, Capacity: d.Capacity})
				return err
			}
			foreign := resourceapi.Device{Name: "eth0",
				Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"index": {StringValue: ptr.To("first")}}}
			if err := fails("nic.example.com", foreign); err != nil {
				t.Errorf("%s: %s fails for a device of another driver: %v", where, expression, err)
			}
			for _, d := range published() {
				expect.NoErrorf(t, fails(v1alpha1.DriverName, d), "%s: %s fails for %s", where, expression, d.Name)
				for name, value := range d.Attributes {
					less := *d.DeepCopy()
					delete(less.Attributes, name)
					if err := fails(v1alpha1.DriverName, less); err != nil {
						t.Errorf("%s: %s fails for %s without %s: %v", where, expression, d.Name, name, err)
					}
					less.Attributes[name] = ofAnotherType(value)
					rests := typed[name] && !strings.HasPrefix(where, "DeviceClass ")
					if err := fails(v1alpha1.DriverName, less); err != nil && !rests {
						t.Errorf("%s: %s fails for %s whose %s is of another type: %v", where, expression, d.Name, name, err)
					}
				}
				for name := range d.Capacity {
					less := *d.DeepCopy()
					delete(less.Capacity, name)
					if err := fails(v1alpha1.DriverName, less); err != nil {
						t.Errorf("%s: %s fails for %s without capacity %s: %v", where, expression, d.Name, name, err)
					}
				}
			}
		}
	}
}

func ofAnotherType(a resourceapi.DeviceAttribute) resourceapi.DeviceAttribute {
	if a.StringValue != nil {
		return resourceapi.DeviceAttribute{IntValue: ptr.To[int64](1)}
	}
	return resourceapi.DeviceAttribute{StringValue: ptr.To("1")}
}

// published are devices of each kind.
func published() []resourceapi.Device {
	m := &gpu.Machine{
		GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0", Model: "NVIDIA-A10", MemoryMiB: 23028}},
		Partitioned: []gpu.Partitioned{{GPU: gpu.GPU{Index: 1, UUID: "GPU-1", Model: "NVIDIA-A100", MemoryMiB: 40960},
			Instances: []gpu.Instance{{UUID: "MIG-0", Profile: "3g.20gb", Size: 4, MemoryMiB: 20096}}}},
	}
	var all []resourceapi.Device
	for _, m2 := range []mode.Mode{mode.Exclusive, mode.Share, mode.CoreMem, mode.Topology} {
		pool := devices.Build(m, devices.Options{Pool: "n/gpu", Mode: m2, Slots: 20, Isolation: "none",
			Retained: [][]int{{0, 1}}, MIG: devices.MIGOptions{Isolation: "mig"}}).Pools["n/gpu"]
		for _, slice := range pool.Slices {
			all = append(all, slice.Devices...)
		}
	}
	return append(all, resourceapi.Device{Name: "nothing"})
}

// selectors are all CEL expressions about devices, by where they are.
func selectors(t *testing.T) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	installed, err := deviceclasses.All()
	expect.NoError(t, err)
	modes, err := deviceclasses.ModesWithClass()
	expect.NoError(t, err)
	made, err := deviceclasses.Model("NVIDIA-A10", modes)
	expect.NoError(t, err)
	for _, class := range append(append(installed, made...), deviceclasses.Profile("1g.10gb+me")) {
		for _, s := range class.Spec.Selectors {
			found["DeviceClass "+class.Name] = append(found["DeviceClass "+class.Name], s.CEL.Expression)
		}
	}
	for _, name := range []string{"gpushare.mem-x2.a.4.b.6", "gpushare.mem-x2-whole.main.30", "gpushare.gpu-cpu4.main.1",
		"gpushare.core-x2.main.4-20"} {
		request, err := legacy.ParseName(name)
		expect.NoError(t, err)
		spec := request.Template("ns").Spec.Spec.Devices
		for _, r := range spec.Requests {
			if r.Exactly != nil {
				found[name] = append(found[name], expressions(r.Exactly.Selectors)...)
			}
			for _, sub := range r.FirstAvailable {
				found[name] = append(found[name], expressions(sub.Selectors)...)
			}
		}
	}
	for _, dir := range []string{"README.md", "docs", "demo", "deployments"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".md") && !strings.HasSuffix(path, ".yaml") {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			in := inText
			if strings.HasSuffix(path, ".yaml") && !strings.Contains(path, "/templates/") {
				in = inYAML
			}
			all := in(t, path, string(content))
			if said, got := len(names.FindAllString(string(content), -1)),
				len(names.FindAllString(strings.Join(all, "\n"), -1)); got != said {
				t.Errorf("%s names attributes and capacities %d times, this test sees %d", path, said, got)
			}
			found[path] = all
			return nil
		})
		expect.NoError(t, err)
	}
	if len(found) < 50 {
		t.Fatalf("selectors of %d places only", len(found))
	}
	maps.DeleteFunc(found, func(_ string, all []string) bool { return len(all) == 0 })
	return found
}

func expressions(selectors []resourceapi.DeviceSelector) (all []string) {
	for _, s := range selectors {
		all = append(all, s.CEL.Expression)
	}
	return all
}

var (
	names = regexp.MustCompile(`device\.(attributes|capacity)\[`)
	// block is a quoted block of a page, code what it quotes in a line or two.
	block = regexp.MustCompile("(?ms)^```[a-z]*\n(.*?)^```")
	code  = regexp.MustCompile("`[^`]*`")
	// documented is a row of the table of attributes.
	documented = regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\| (string|int|version) \\|")
	// placeholders are what a page writes for whatever the reader means.
	placeholders = strings.NewReplacer("NAME", "index", "orValue(DEFAULT)", "orValue(0) == 0")
)

// inText finds what a page says in blocks of YAML, and in its sentences.
func inText(t *testing.T, path, content string) (all []string) {
	for _, found := range block.FindAllStringSubmatch(content, -1) {
		if names.MatchString(found[1]) {
			all = append(all, inYAML(t, path, found[1])...)
		}
	}
	for _, found := range code.FindAllString(block.ReplaceAllString(content, ""), -1) {
		if names.MatchString(found) {
			all = append(all, placeholders.Replace(strings.Join(strings.Fields(strings.Trim(found, "`")), " ")))
		}
	}
	return all
}

func inYAML(t *testing.T, path, content string) (all []string) {
	t.Helper()
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(content), 4096); ; {
		var object any
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			if names.MatchString(content) {
				t.Errorf("%s: %v", path, err)
			}
			return all
		}
		all = append(all, below(object)...)
	}
}

// below are the expressions of selectors in an object.
func below(object any) (all []string) {
	switch o := object.(type) {
	case map[string]any:
		for key, value := range o {
			if text, is := value.(string); is && key == "expression" && names.MatchString(text) {
				all = append(all, text)
				continue
			}
			all = append(all, below(value)...)
		}
	case []any:
		for _, value := range o {
			all = append(all, below(value)...)
		}
	}
	return all
}

// documentedTypes are the attributes whose type docs/reference.md says.
func documentedTypes(t *testing.T) map[resourceapi.QualifiedName]bool {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/reference.md"))
	expect.NoError(t, err)
	typed := map[resourceapi.QualifiedName]bool{}
	for _, row := range documented.FindAllStringSubmatch(string(page), -1) {
		typed[resourceapi.QualifiedName(row[1])] = true
	}
	if len(typed) < 20 {
		t.Fatalf("docs/reference.md has types of %d attributes only", len(typed))
	}
	return typed
}

// What a selector costs that a device cannot fail, beside one that it can.
func BenchmarkSelectors(b *testing.B) {
	compiler := stockallocator.Expressions(10)
	d := published()[0]
	device := cel.Device{Driver: v1alpha1.DriverName, Attributes: d.Attributes, Capacity: d.Capacity}
	for _, expression := range []string{
		`device.driver == "gpu.aliyun.com" && device.attributes["gpu.aliyun.com"].mode == "share"`,
		`device.driver == "gpu.aliyun.com" && device.attributes["gpu.aliyun.com"].?mode.orValue("") == "share"`,
	} {
		b.Run(fmt.Sprintf("%t", strings.Contains(expression, "?")), func(b *testing.B) {
			compiled := compiler.GetOrCompile(expression)
			for b.Loop() {
				if _, _, err := compiled.DeviceMatches(b.Context(), device); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
