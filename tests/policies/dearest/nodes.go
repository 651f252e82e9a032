// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// target is a node on which pods are to be dear.
type target struct {
	machine, mode, state string
	slices               []*resourceapi.ResourceSlice
	allocated            structured.AllocatedState
	classes              stockallocator.Classes
	// shareable are the devices that can be shared, counters the number of the GPUs' counters.
	shareable map[structured.DeviceID]bool
	counters  int
	// words are what pods for it are made of.
	words words
}

func (t *target) String() string { return t.machine + " " + t.mode + " " + t.state }

// words are the values of a node's devices that a pod can name.
type words struct {
	classes, uuids, models, profiles []string
}

// States of nodes. Each is also had with shares that are on other nodes.
const (
	empty      = "empty"
	half       = "half taken"
	fragmented = "fragmented"
	// All but so many are nearly full. Where one GPU is missing, what is taken in an order is looked for the longest.
	seven     = "seven free"
	four      = "four free"
	elsewhere = ", 2000 shares elsewhere"
)

const (
	nodeName   = "node"
	shareCount = 2000
	sixteen    = "a100x16"
	onDemand   = "a100x8-mig"
)

// modes are those of nodes.
func modes() []mode.Mode {
	return []mode.Mode{mode.Exclusive, mode.Share, mode.CGPU, mode.CoreMem, mode.MPS, mode.Topology, mode.Dynamic}
}

// states are those of nodes.
func states() []string {
	var all []string
	for _, state := range []string{empty, half, fragmented, seven, four} {
		all = append(all, state, state+elsewhere)
	}
	return all
}

// targets are the nodes that are wanted: each machine file, one of sixteen GPUs and one whose GPUs are cut on
// demand, in each mode and state.
func targets(ctx context.Context, machinesDir string, wanted func(name string) bool) ([]*target, error) {
	files, err := filepath.Glob(filepath.Join(machinesDir, "*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no machine files in %s (%w)", machinesDir, err)
	}
	specs := map[string]*sim.Spec{}
	for _, file := range files {
		spec, err := sim.Load(file)
		if err != nil {
			return nil, err
		}
		specs[strings.TrimSuffix(filepath.Base(file), ".yaml")] = spec
	}
	eight, ok := specs["a100x8"]
	if !ok {
		return nil, fmt.Errorf("%s has no a100x8.yaml", machinesDir)
	}
	specs[sixteen], specs[onDemand] = doubled(eight), cutOnDemand(eight)
	var all []*target
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		if !slices.ContainsFunc(modes(), func(m mode.Mode) bool {
			return slices.ContainsFunc(states(), func(state string) bool {
				return wanted((&target{machine: name, mode: string(m), state: state}).String())
			})
		}) {
			continue
		}
		machine, err := read(ctx, specs[name])
		if err != nil {
			return nil, fmt.Errorf("machine %s: %w", name, err)
		}
		addInstances(machine, specs[name])
		ofMachine, err := ofMachine(name, machine, wanted)
		if err != nil {
			return nil, fmt.Errorf("machine %s: %w", name, err)
		}
		all = append(all, ofMachine...)
	}
	return all, nil
}

// doubled is the machine with each GPU twice.
func doubled(of *sim.Spec) *sim.Spec {
	spec := *of
	spec.Name = sixteen
	spec.GPUs = slices.Clone(of.GPUs)
	for _, g := range of.GPUs {
		g.BusID = "0001" + strings.TrimPrefix(g.BusID, "0000")
		g.Root = "pci0001" + strings.TrimPrefix(g.Root, "pci0000")
		g.Bridges = slices.Clone(g.Bridges)
		for i, b := range g.Bridges {
			g.Bridges[i] = "0001" + strings.TrimPrefix(b, "0000")
		}
		spec.GPUs = append(spec.GPUs, g)
	}
	return &spec
}

// cutOnDemand is the machine with all GPUs in MIG mode.
func cutOnDemand(of *sim.Spec) *sim.Spec {
	spec := *of
	spec.Name = onDemand
	spec.Models = map[string]sim.Model{}
	for name, m := range of.Models {
		m.MIGProfiles = "a100-80"
		spec.Models[name] = m
	}
	spec.GPUs = slices.Clone(of.GPUs)
	for i := range spec.GPUs {
		spec.GPUs[i].MIG.Enabled = true
	}
	return &spec
}

func read(ctx context.Context, spec *sim.Spec) (*gpu.Machine, error) {
	root, err := os.MkdirTemp("", "dearest-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for sysfs: %w", err)
	}
	// It is read before this returns.
	defer os.RemoveAll(root) //nolint:errcheck // a directory of the system's for temporary files
	if err := spec.WriteRoot(root); err != nil {
		return nil, err
	}
	return nvml.Read(ctx, spec.ForNode(nodeName).NVML(), nvml.Options{SysFS: filepath.Join(root, sim.SysDir),
		ProcFS: filepath.Join(root, sim.ProcDir), Profiles: true,
		CallTimeout: time.Second})
}

// addInstances gives GPUs in MIG mode what the library's stand-in within a process does not tell: their
// instances or, where there are none, what they can be cut into on demand.
func addInstances(machine *gpu.Machine, spec *sim.Spec) {
	for i := range machine.Partitioned {
		p := &machine.Partitioned[i]
		card := spec.GPUs[p.Index]
		for _, profile := range sim.MIGTable(spec.Models[card.Model].MIGProfiles) {
			if len(card.MIG.Instances) == 0 {
				p.Profiles = append(p.Profiles, profile.Profile)
			}
			for j, made := range card.MIG.Instances {
				if made.Profile == profile.Kind.Profile {
					instance := profile.At(made.Start)
					instance.UUID = fmt.Sprintf("MIG-%d-%d", p.Index, j)
					p.Instances = append(p.Instances, instance)
				}
			}
		}
	}
}

func ofMachine(name string, machine *gpu.Machine, wanted func(string) bool) ([]*target, error) {
	backends := isolation.NewRegistry(isolation.Config{})
	var all []*target
	for _, m := range modes() {
		if len(machine.GPUs) == 0 && m != mode.Exclusive {
			continue // the instances are the same in each
		}
		var options []devices.Options
		for _, served := range m.ServedModes() {
			backend, err := backends.For(served)
			if err != nil {
				return nil, err
			}
			by := mode.IsolationNamed(backend.Name())
			slots := by.Shares
			if slots == 0 {
				slots = mode.DefaultSlots
			}
			options = append(options, devices.Options{Pool: v1alpha1.PoolName(nodeName), Mode: served, Slots: slots,
				Isolation: by.Name, IsolationLevel: string(by.Level)})
		}
		resources := devices.Build(machine, options[0])
		if m == mode.Dynamic {
			resources = devices.BuildDynamic(machine, options)
		}
		pool := resources.Pools[v1alpha1.PoolName(nodeName)]
		var published []*resourceapi.ResourceSlice
		for i, s := range pool.Slices {
			published = append(published, &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s", i, nodeName)},
				Spec: resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, NodeName: ptr.To(nodeName),
					Devices:        s.Devices,
					SharedCounters: s.SharedCounters, Pool: resourceapi.ResourcePool{Name: v1alpha1.PoolName(nodeName),
						Generation:         1,
						ResourceSliceCount: int64(len(pool.Slices))}},
			})
		}
		shareable, counters := map[structured.DeviceID]bool{}, 0
		for _, s := range published {
			for _, d := range s.Spec.Devices {
				if ptr.Deref(d.AllowMultipleAllocations, false) {
					shareable[structured.MakeDeviceID(v1alpha1.DriverName, s.Spec.Pool.Name, d.Name)] = true
				}
			}
			for _, set := range s.Spec.SharedCounters {
				counters += len(set.Counters)
			}
		}
		w := wordsOf(published)
		classes, err := classesFor(w)
		if err != nil {
			return nil, err
		}
		for _, c := range classes {
			w.classes = append(w.classes, c.Name)
		}
		for _, state := range states() {
			t := &target{machine: name, mode: string(m), state: state, slices: published, classes: classes, words: w,
				shareable: shareable, counters: counters}
			if wanted(t.String()) {
				t.allocated = stateOf(published, strings.TrimSuffix(state, elsewhere), strings.HasSuffix(state, elsewhere))
				all = append(all, t)
			}
		}
	}
	return all, nil
}

func wordsOf(published []*resourceapi.ResourceSlice) words {
	var w words
	add := func(to *[]string, a resourceapi.DeviceAttribute) {
		if a.StringValue != nil && !slices.Contains(*to, *a.StringValue) {
			*to = append(*to, *a.StringValue)
		}
	}
	for _, s := range published {
		for _, d := range s.Spec.Devices {
			add(&w.uuids, d.Attributes[v1alpha1.AttrUUID])
			add(&w.models, d.Attributes[v1alpha1.AttrModel])
			add(&w.profiles, d.Attributes[v1alpha1.AttrProfile])
		}
	}
	return w
}

// classesFor are the classes that the driver is installed with, those that its controller makes for what a
// node has, and some of an administrator's.
func classesFor(w words) (stockallocator.Classes, error) {
	classes, err := deviceclasses.With(w.models)
	if err != nil {
		return nil, err
	}
	for _, profile := range w.profiles {
		classes = append(classes, deviceclasses.Profile(profile))
	}
	// A copy of a class loses the driver's label (policy gpushare-own-class-labels).
	mode := map[string]string{v1alpha1.LabelMode: deviceclasses.AnyMode}
	const ofDriver = `device.driver == "` + v1alpha1.DriverName + `"`
	for _, c := range []struct {
		name, selector, extended string
		labels                   map[string]string
	}{
		{"gold.example.com", ofDriver, "", nil},
		{"labelled.gpu.example.com", ofDriver, "example.com/gpu", mode},
		{"everything.example.com", "", "", nil},
		{classOfOthers, `device.driver == "nic.example.com"`, "", nil},
	} {
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: c.name, Labels: c.labels}}
		if c.selector != "" {
			class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: c.selector}}}
		}
		if c.extended != "" {
			class.Spec.ExtendedResourceName = &c.extended
		}
		classes = append(classes, class)
	}
	return classes, nil
}

// classesOf are the classes of all nodes.
func classesOf(all []*target) []*resourceapi.DeviceClass {
	byName := map[string]*resourceapi.DeviceClass{}
	for _, t := range all {
		for _, c := range t.classes {
			byName[c.Name] = c
		}
	}
	return slices.Collect(maps.Values(byName))
}

// stateOf is what is allocated on the node, and on others.
func stateOf(published []*resourceapi.ResourceSlice, state string, others bool) structured.AllocatedState {
	allocated := stockallocator.Nothing()
	byGPU := map[int64][]resourceapi.Device{}
	for _, s := range published {
		for _, d := range s.Spec.Devices {
			if index := d.Attributes[v1alpha1.AttrIndex].IntValue; index != nil {
				byGPU[*index] = append(byGPU[*index], d)
			}
		}
	}
	take := func(d resourceapi.Device, leave int64) {
		id := structured.MakeDeviceID(v1alpha1.DriverName, v1alpha1.PoolName(nodeName), d.Name)
		if !ptr.Deref(d.AllowMultipleAllocations, false) {
			allocated.AllocatedDevices.Insert(id)
			return
		}
		consumed := map[resourceapi.QualifiedName]resource.Quantity{}
		for name, c := range d.Capacity {
			switch {
			case leave == 0 || name == v1alpha1.CapCores && c.Value.IsZero():
				consumed[name] = c.Value
			case name == v1alpha1.CapMemory:
				consumed[name] = *resource.NewQuantity(c.Value.Value()-leave*devices.GiB, resource.BinarySI)
			default:
				consumed[name] = *resource.NewQuantity(1, resource.DecimalSI)
			}
		}
		addShare(&allocated, id, consumed)
	}
	for i, index := range slices.Sorted(maps.Keys(byGPU)) {
		of, after := byGPU[index], len(byGPU)-i
		switch {
		case state == seven && after > 7 || state == four && after > 4:
			take(of[min(1, len(of)-1)], 1)
		case state == half && i < len(byGPU)/2:
			take(of[len(of)-1], 0)
		case state == fragmented && len(of) > 5: // places of instances
			take(of[1], 0)
		case state == fragmented && len(of) > 1 && i%2 == 0: // of a dynamic node
			take(of[1], 2)
		case state == fragmented && len(of) == 1 && (ptr.Deref(of[0].AllowMultipleAllocations, false) || i%2 == 0):
			take(of[0], int64(2+i))
		}
	}
	if others {
		for i := range shareCount {
			pool := v1alpha1.PoolName(fmt.Sprintf("other-%04d", i/80))
			addShare(&allocated, structured.MakeDeviceID(v1alpha1.DriverName, pool, devices.DeviceName(i%80/10,
				mode.Share)),
				map[resourceapi.QualifiedName]resource.Quantity{v1alpha1.CapMemory: resource.MustParse("1Gi"),
					v1alpha1.CapSlots: resource.MustParse("1")})
		}
	}
	return allocated
}

func addShare(to *structured.AllocatedState, id structured.DeviceID,
	consumed map[resourceapi.QualifiedName]resource.Quantity) {
	to.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, ptr.To(types.UID(uuid.NewString()))))
	to.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, consumed))
}
