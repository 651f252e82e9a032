// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Bounds that keep a machine within what NVML and PCI can express.
const (
	maxGPUs  = 64
	maxMinor = 253 // 254 and 255 are nvidia-modeset and nvidiactl
	// maxMemoryMiB is far beyond any GPU and keeps MiB × 2²⁰ in range.
	maxMemoryMiB = 1 << 30
	// maxName is how many bytes NVML's callers have room for.
	maxName = 95
	// maxLanes is NVML_NVLINK_MAX_LINKS of the oldest driver that is served.
	maxLanes = 18
)

var (
	busIDFormat   = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.0$`)
	bridgeFormat  = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	rootFormat    = regexp.MustCompile(`^pci[0-9a-f]{4}:[0-9a-f]{2}$`)
	versionFormat = regexp.MustCompile(`^[0-9]{1,4}(\.[0-9]{1,4}){1,3}$`)
	pairFormat    = regexp.MustCompile(`^[0-9]{1,3}\.[0-9]$`)
	nameFormat    = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$`)
	// What begins with "!" is an error in ToldFile, which has a line for each property.
	productFormat  = regexp.MustCompile(`^[^!\x00-\x1f\x7f][^\x00-\x1f\x7f]*$`)
	functionFormat = regexp.MustCompile(`^nvml[A-Za-z0-9_]+$`)
	uuidFormat     = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// validate reports every field that is wrong, each under its path.
func (s *Spec) validate() error {
	var errs field.ErrorList
	if s.Kind != Kind {
		errs = append(errs, field.NotSupported(field.NewPath("kind"), s.Kind, []string{Kind}))
	}
	if s.Version != Version {
		errs = append(errs, field.Invalid(field.NewPath("version"), s.Version, fmt.Sprintf("must be %d", Version)))
	}
	errs = append(errs, match(field.NewPath("name"), s.Name, nameFormat)...)
	errs = append(errs, s.Driver.validate(field.NewPath("driver"))...)
	for _, name := range slices.Sorted(maps.Keys(s.Models)) {
		errs = append(errs, s.Models[name].validate(field.NewPath("models").Key(name))...)
	}
	errs = append(errs, s.validateGPUs()...)
	errs = append(errs, s.validateLinks()...)
	errs = append(errs, s.validateEvents()...)
	return errs.ToAggregate()
}

// driverErrors are what Driver.Errors can have.
var driverErrors = []string{"count", "cuda", "init", "version"}

func (d Driver) validate(path *field.Path) field.ErrorList {
	errs := match(path.Child("version"), d.Version, versionFormat)
	errs = append(errs, match(path.Child("cuda"), d.CUDA, pairFormat)...)
	errs = append(errs, d.validateMemoryLimits(path.Child("memoryLimits"), d.MemoryLimits)...)
	for i, name := range d.Lacks {
		errs = append(errs, match(path.Child("lacks").Index(i), name, functionFormat)...)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Errors)) {
		if !slices.Contains(driverErrors, name) {
			errs = append(errs, field.NotSupported(path.Child("errors"), name, driverErrors))
		}
		if _, ok := returns[d.Errors[name]]; !ok {
			errs = append(errs, field.NotSupported(path.Child("errors").Key(name), d.Errors[name], Returns()))
		}
	}
	return errs
}

func (m Model) validate(path *field.Path) field.ErrorList {
	errs := match(path.Child("productName"), m.ProductName, productFormat)
	if len(m.ProductName) > maxName {
		errs = append(errs, field.TooLong(path.Child("productName"), m.ProductName, maxName))
	}
	if _, ok := brands[m.Brand]; !ok {
		errs = append(errs, field.NotSupported(path.Child("brand"), m.Brand, Brands()))
	}
	if _, ok := architectures[m.Architecture]; !ok {
		errs = append(errs, field.NotSupported(path.Child("architecture"), m.Architecture, Architectures()))
	}
	errs = append(errs, match(path.Child("computeCapability"), m.ComputeCapability, pairFormat)...)
	errs = append(errs, inRange(path.Child("memoryMiB"), m.MemoryMiB, 1, maxMemoryMiB)...)
	errs = append(errs, inRange(path.Child("reservedMiB"), m.ReservedMiB, 0, max(0, m.MemoryMiB-1))...)
	errs = append(errs, inRange(path.Child("cudaCores"), int64(m.CUDACores), 0, 1<<20)...)
	if _, ok := migTables[m.MIGProfiles]; m.MIGProfiles != "" && (!ok || !m.MIG) {
		errs = append(errs, field.NotSupported(path.Child("migProfiles"), m.MIGProfiles, MIGTables()))
	}
	return errs
}

func (s *Spec) validateGPUs() field.ErrorList {
	path := field.NewPath("cards")
	if len(s.GPUs) > maxGPUs {
		return field.ErrorList{field.TooMany(path, len(s.GPUs), maxGPUs)}
	}
	var errs field.ErrorList
	busIDs, minors, uuids := map[string]bool{}, map[int]bool{}, map[string]bool{}
	for i, c := range s.GPUs {
		p := path.Index(i)
		errs = append(errs, s.validateGPU(p, i)...)
		if busIDs[c.BusID] {
			errs = append(errs, field.Duplicate(p.Child("busID"), c.BusID))
		}
		if minors[s.minor(i)] {
			errs = append(errs, field.Duplicate(p.Child("minor"), s.minor(i)))
		}
		if uuids[s.uuid(i)] {
			errs = append(errs, field.Duplicate(p.Child("uuid"), c.UUID))
		}
		busIDs[c.BusID], minors[s.minor(i)], uuids[s.uuid(i)] = true, true, true
	}
	return errs
}

func (s *Spec) validateGPU(p *field.Path, i int) field.ErrorList {
	var errs field.ErrorList
	c := s.GPUs[i]
	if _, ok := s.Models[c.Model]; !ok {
		errs = append(errs, field.NotFound(p.Child("model"), c.Model))
	}
	errs = append(errs, match(p.Child("busID"), c.BusID, busIDFormat)...)
	errs = append(errs, match(p.Child("root"), c.Root, rootFormat)...)
	for j, b := range c.Bridges {
		errs = append(errs, match(p.Child("bridges").Index(j), b, bridgeFormat)...)
	}
	if c.NUMANode != nil {
		errs = append(errs, inRange(p.Child("numaNode"), int64(*c.NUMANode), 0, 1023)...)
	}
	errs = append(errs, inRange(p.Child("minor"), int64(s.minor(i)), 0, maxMinor)...)
	errs = append(errs, inRange(p.Child("nvswitchLanes"), int64(s.switchLanes(i)), 0, int64(max(s.NVSwitchLanes, 0)))...)
	if c.UUID != "" {
		errs = append(errs, match(p.Child("uuid"), c.UUID, uuidFormat)...)
	}
	errs = append(errs, s.Driver.validateMemoryLimits(p.Child("memoryLimits"), c.MemoryLimits)...)
	errs = append(errs, c.State.validate(p.Child("state"))...)
	errs = append(errs, s.validateMIG(p.Child("mig"), i)...)
	for _, property := range slices.Sorted(maps.Keys(c.Fault.Errors)) {
		ret := c.Fault.Errors[property]
		ep := p.Child("fault", "errors").Key(string(property))
		if !knownProperty(property) {
			errs = append(errs, field.NotSupported(ep, property, Properties()))
		}
		if _, ok := returns[ret]; !ok {
			errs = append(errs, field.NotSupported(ep, ret, Returns()))
		}
	}
	return errs
}

func (s *Spec) validateLinks() field.ErrorList {
	path := field.NewPath("nvlinks")
	if len(s.NVLinks) > maxGPUs*maxLanes {
		return field.ErrorList{field.TooMany(path, len(s.NVLinks), maxGPUs*maxLanes)}
	}
	errs := inRange(field.NewPath("nvswitchLanes"), int64(s.NVSwitchLanes), 0, maxLanes)
	lanes := make([]int, len(s.GPUs))
	for i, l := range s.NVLinks {
		p := path.Index(i)
		errs = append(errs, inRange(p.Child("lanes"), int64(l.Lanes), 1, maxLanes)...)
		errs = append(errs, inRange(p.Child("lanesBack"), int64(l.back()), 0, int64(max(l.Lanes, 1)))...)
		if len(l.GPUs) != 2 {
			errs = append(errs, field.Invalid(p.Child("cards"), l.GPUs, "must be two GPUs"))
			continue
		}
		if l.GPUs[0] == l.GPUs[1] {
			errs = append(errs, field.Invalid(p.Child("cards"), l.GPUs, "a GPU cannot be linked to itself"))
		}
		for _, c := range l.GPUs {
			if c < 0 || c >= len(s.GPUs) {
				errs = append(errs, field.Invalid(p.Child("cards"), c, "no such GPU"))
				continue
			}
			lanes[c] += min(max(l.Lanes, 0), maxLanes)
		}
	}
	for i, n := range lanes {
		if n+s.NVSwitchLanes > maxLanes {
			errs = append(errs, field.Invalid(field.NewPath("cards").Index(i), n+s.NVSwitchLanes,
				"more NVLink lanes than a GPU has"))
		}
	}
	return errs
}

func match(path *field.Path, value string, format *regexp.Regexp) field.ErrorList {
	if format.MatchString(value) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, "must match "+format.String())}
}

func inRange(path *field.Path, value, low, high int64) field.ErrorList {
	if value >= low && value <= high {
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be between %d and %d", low, high))}
}
