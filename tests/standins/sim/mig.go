// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MIG is a GPU's MIG mode, and what it is cut into.
type MIG struct {
	Enabled bool `yaml:"enabled,omitempty"`
	// Pending is the mode after the next reset, where that is another one.
	Pending   *bool         `yaml:"pending,omitempty"`
	Instances []MIGInstance `yaml:"instances,omitempty"`
	// NoCapabilities says that the kernel module shows no capabilities of the instances.
	NoCapabilities bool `yaml:"noCapabilities,omitempty"`
}

// MIGInstance is a GPU instance, with its compute instances.
type MIGInstance struct {
	Profile string `yaml:"profile"`
	Start   int    `yaml:"start"`
	// Compute are the slices of each of its compute instances; by default it has one as large as itself.
	Compute []int `yaml:"compute,omitempty,flow"`
	// NoCompute says that it has none.
	NoCompute bool `yaml:"noCompute,omitempty"`
	// ID is the id that the driver gave it; by default that of its place.
	ID *int `yaml:"id,omitempty"`
	// Number tells it from another one that was in its place before: no two have one UUID.
	Number int64 `yaml:"number,omitempty"`
}

func (m MIG) pending() bool {
	if m.Pending == nil {
		return m.Enabled
	}
	return *m.Pending
}

// profile finds the profile of that name which the GPU has.
func (s *Spec) profile(g int, name string) (migProfile, bool) {
	table := migTables[s.Models[s.GPUs[g].Model].MIGProfiles]
	at := slices.IndexFunc(table, func(p migProfile) bool { return p.name == name })
	if at < 0 {
		return migProfile{}, false
	}
	return table[at], true
}

// compute are the slices of an instance's compute instances.
func (i MIGInstance) compute(p migProfile) []int {
	switch {
	case i.NoCompute:
		return nil
	case len(i.Compute) == 0:
		return []int{p.slices}
	}
	return i.Compute
}

// gpuInstanceIDs are the ids of the GPU's instances. What would have that of an instance that was there before has
// the other one of its size, as 3g beside 4g: how NVIDIA's driver does that is not documented.
func (s *Spec) gpuInstanceIDs(g int) []int {
	table := migTables[s.Models[s.GPUs[g].Model].MIGProfiles]
	var ids []int
	for _, i := range s.GPUs[g].MIG.Instances {
		p, _ := s.profile(g, i.Profile)
		id := p.gpuInstanceID(table, i.Start)
		switch {
		case i.ID != nil:
			id = *i.ID
		case slices.Contains(ids, id):
			id = 3 - id
		}
		ids = append(ids, id)
	}
	return ids
}

// migDevice is a compute instance, as NVML shows it.
type migDevice struct {
	profile        migProfile
	gi, ci         int
	start, slices  int
	uuid           string
	gpuInstanceNth int
}

// migDevices are the GPU's compute instances, ordered as NVML lists them here.
func (s *Spec) migDevices(g int) []migDevice {
	var out []migDevice
	ids := s.gpuInstanceIDs(g)
	for nth, i := range s.GPUs[g].MIG.Instances {
		p, _ := s.profile(g, i.Profile)
		start := 0
		for ci, n := range i.compute(p) {
			seed := fmt.Sprintf("%s/%s/%d/%s/%d/%d/%d", s.Name, s.Node, g, i.Profile, i.Start, i.Number, ci)
			out = append(out, migDevice{profile: p, gi: ids[nth], ci: ci, start: start, slices: n,
				uuid: "MIG-" + uuid.NewSHA1(uuid.NameSpaceOID, []byte(seed)).String(), gpuInstanceNth: nth})
			start += n
		}
	}
	return out
}

func (s *Spec) validateMIG(path *field.Path, g int) field.ErrorList {
	var errs field.ErrorList
	c, model := s.GPUs[g], s.Models[s.GPUs[g].Model]
	if (c.MIG.Enabled || c.MIG.pending()) && !model.MIG {
		errs = append(errs, field.Invalid(path.Child("enabled"), true, "the model has no MIG mode"))
	}
	if len(c.MIG.Instances) > 0 && !c.MIG.Enabled {
		errs = append(errs, field.Invalid(path.Child("instances"), len(c.MIG.Instances), "the GPU is not in MIG mode"))
	}
	var before []MIGInstance
	for n, i := range c.MIG.Instances {
		if err := s.fits(g, before, i); err != nil {
			errs = append(errs, field.Invalid(path.Child("instances").Index(n), i.Profile, err.Error()))
		}
		before = append(before, i)
	}
	return errs
}

// fits says why an instance cannot stand beside others, by the driver's rule: memory slices are no two
// instances', and of a profile there are only so many.
func (s *Spec) fits(g int, others []MIGInstance, i MIGInstance) error {
	p, ok := s.profile(g, i.Profile)
	if !ok {
		return fmt.Errorf("the model has no profile %q", i.Profile)
	}
	if !slices.Contains(p.starts, i.Start) {
		return fmt.Errorf("%s cannot begin at slice %d, only at %v", i.Profile, i.Start, p.starts)
	}
	same, compute := 1, 0
	for _, other := range others {
		q, _ := s.profile(g, other.Profile)
		if i.Start < other.Start+q.size && other.Start < i.Start+p.size {
			return fmt.Errorf("%s at slice %d is in the way", other.Profile, other.Start)
		}
		if other.Profile == i.Profile {
			same++
		}
		if allMedia(p) && !noMedia(q) || allMedia(q) && !noMedia(p) {
			return fmt.Errorf("%s has all engines", other.Profile)
		}
	}
	if same > p.most {
		return fmt.Errorf("there can be %d of %s at most", p.most, i.Profile)
	}
	for _, n := range i.compute(p) {
		compute += n
		if !slices.ContainsFunc(p.ciProfiles(), func(c ciProfile) bool { return c.slices == n }) {
			return fmt.Errorf("there are no compute instances of %d slices", n)
		}
	}
	if compute > p.slices {
		return fmt.Errorf("its compute instances have %d slices, it has %d", compute, p.slices)
	}
	return nil
}

func allMedia(p migProfile) bool { return strings.HasSuffix(p.name, "+me.all") }
func noMedia(p migProfile) bool  { return strings.HasSuffix(p.name, "-me") }

// MIGFaults describes what Inject takes of MIG.
const MIGFaults = `mig=on | mig=off | mig=reset | mig=clear | mig=nocaps | mig=caps | ` +
	`mig=+PROFILE@START[/COMPUTE,…|/none] | mig=-PROFILE@START`

// errInUse is what the driver's tools say of what a process uses.
var errInUse = errors.New("in use by another client")

// injectMIG does what an administrator does with nvidia-smi:
//
//	on, off    switches the mode: at once where the GPU can, otherwise with the next reset
//	reset      resets the GPU, which wipes all instances; as a reboot does
//	clear      destroys all instances
//	+P@S       makes an instance of profile P at slice S, with one compute instance;
//	           with "/1,2" with two of 1 and 2 slices, with "/none" with none
//	-P@S       destroys it
//	nocaps     the kernel module shows no capabilities; caps: it shows them again
func (s *Spec) injectMIG(g int, what string) error {
	m := &s.GPUs[g].MIG
	var err error
	switch {
	case what == "on", what == "off":
		err = s.switchMIG(g, what == "on")
	case what == "reset":
		m.Enabled, m.Pending, m.Instances = m.pending(), nil, nil
	case what == "clear":
		if slices.ContainsFunc(s.GPUs[g].State.Processes, func(p Process) bool { return p.Instance != nil }) {
			return errInUse
		}
		m.Instances = nil
	case what == "nocaps", what == "caps":
		m.NoCapabilities = what == "nocaps"
	case strings.HasPrefix(what, "+"), strings.HasPrefix(what, "-"):
		err = s.cut(g, what)
	default:
		return fmt.Errorf("unknown change %q: want %s", what, MIGFaults)
	}
	if err == nil {
		s.tell(g, "migConfigChange", 0)
	}
	return err
}

// switchMIG needs a reset on Ampere, which has all instances gone; later GPUs switch at once.
func (s *Spec) switchMIG(g int, on bool) error {
	m, model := &s.GPUs[g].MIG, s.Models[s.GPUs[g].Model]
	if !model.MIG {
		return errors.New("not supported")
	}
	if len(s.GPUs[g].State.Processes) > 0 {
		return errInUse
	}
	if model.Architecture == "Ampere" {
		m.Pending = &on
		return nil
	}
	if m.Enabled != on {
		m.Instances = nil
	}
	m.Enabled, m.Pending = on, nil
	return nil
}

// cut makes or destroys an instance.
func (s *Spec) cut(g int, what string) error {
	m := &s.GPUs[g].MIG
	s.keepIDs(g)
	place, compute, given := strings.Cut(what[1:], "/")
	profile, at, _ := strings.Cut(place, "@")
	start, err := strconv.Atoi(at)
	if err != nil {
		return fmt.Errorf("%q: want PROFILE@START: %w", what, err)
	}
	is := func(i MIGInstance) bool { return i.Profile == profile && i.Start == start }
	if what[0] == '-' {
		n := slices.IndexFunc(m.Instances, is)
		if n < 0 {
			return fmt.Errorf("there is no %s at slice %d", profile, start)
		}
		if slices.ContainsFunc(s.GPUs[g].State.Processes, func(p Process) bool { return p.isOf(m.Instances[n]) }) {
			return errInUse
		}
		m.Instances = slices.Delete(slices.Clone(m.Instances), n, n+1)
		return nil
	}
	if !m.Enabled {
		return errors.New("not supported: the GPU is not in MIG mode")
	}
	made := MIGInstance{Profile: profile, Start: start, NoCompute: compute == "none", Number: time.Now().UnixNano()}
	if given && !made.NoCompute {
		for number := range strings.SplitSeq(compute, ",") {
			n, err := strconv.Atoi(number)
			if err != nil {
				return fmt.Errorf("%q: %w", what, err)
			}
			made.Compute = append(made.Compute, n)
		}
	}
	if err := s.fits(g, m.Instances, made); err != nil {
		return fmt.Errorf("insufficient resources: %w", err)
	}
	m.Instances = append(slices.Clone(m.Instances), made)
	return nil
}

// isOf reports whether the process runs in the instance.
func (p Process) isOf(i MIGInstance) bool { return p.Instance != nil && *p.Instance == i.Start }
