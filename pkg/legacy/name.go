// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Parts of a name.
const (
	prefix      = "gpushare"
	countMark   = "x"
	wholeSuffix = "whole"
	cpusMark    = "cpu"
)

// IsName reports whether a template's name is one that Name might make.
func IsName(name string) bool { return strings.HasPrefix(name, prefix+".") }

// Name is the name of the request's template: equal requests have equal names,
// others have others.
//
//	gpushare.mem.main.3              3 GiB for the container main
//	gpushare.mem.a.1.b.7             1 and 7 GiB of one GPU
//	gpushare.mem-x4.main.8           8 GiB, 2 of each of four GPUs
//	gpushare.mem-x2-whole.main.30    all of the memory of two GPUs
//	gpushare.core.main.3-20          3 GiB and 20 percent
//	gpushare.gpu.main.2              two GPUs
//	gpushare.mem-cpu8.main.3         3 GiB, and 8 CPUs near the GPU
//	gpushare.cpu.main.8              8 CPUs
//	gpushare.nvidia.main.1           one GPU, by nvidia.com/gpu
//	gpushare.mem.0.1.1.7             1 and 7 GiB for containers with long names
//	gpushare.mem-on--cgpu--model-a10.main.3
//	                                 3 GiB in mode cgpu, of a GPU whose model has A10 in it
func (r Request) Name() string {
	kind := string(r.Kind)
	if r.Count > 1 {
		kind += "-" + countMark + strconv.FormatInt(r.Count, 10)
	}
	if r.Whole {
		kind += "-" + wholeSuffix
	}
	if cpus := r.nearby(); cpus > 0 {
		kind += "-" + cpusMark + strconv.FormatInt(cpus, 10)
	}
	if len(r.On) > 0 {
		kind += onStart + strings.Join(r.On, gap)
	}
	parts := []string{prefix, kind}
	for _, c := range r.Containers {
		parts = append(parts, c.Name, c.amounts(r.Kind))
	}
	return strings.Join(parts, ".")
}

// called is the request with containers that are called by their place, from 0, where their names do not fit into the
// template's or into those of requests. A place is a name like any other: requests of the same amounts are the same,
// and which container uses which is said in the pod.
func (r Request) called() Request {
	long := slices.ContainsFunc(r.Containers, func(c Container) bool { return len(c.Name) > mostNameByGPU })
	if len(r.Name()) <= mostName && !(r.byGPU() && long) {
		return r
	}
	r.Containers = slices.Clone(r.Containers)
	for i := range r.Containers {
		r.Containers[i].Name = strconv.Itoa(i)
	}
	return r
}

func (c Container) amounts(kind Kind) string {
	switch kind {
	case CoreMemory:
		return fmt.Sprintf("%d-%d", c.MemoryGiB, c.CoresPercent)
	case GPUs, NVIDIA:
		return strconv.FormatInt(c.GPUs, 10)
	case CPUs:
		return strconv.FormatInt(c.CPUs, 10)
	default:
		return strconv.FormatInt(c.MemoryGiB, 10)
	}
}

// ParseName is the reverse of Name. A name that Name would not make, or one of a
// request that cannot be had, is an error.
func ParseName(name string) (Request, error) {
	parts := strings.Split(name, ".")
	if len(parts) < 4 || len(parts)%2 != 0 || parts[0] != prefix {
		return Request{}, fmt.Errorf("template name %q is not of the form %s.KIND.CONTAINER.AMOUNT", name, prefix)
	}
	r, cpus, err := parseKind(parts[1])
	if err != nil {
		return Request{}, fmt.Errorf("template name %q: %w", name, err)
	}
	for i := 2; i < len(parts); i += 2 {
		c, err := parseContainer(r.Kind, parts[i], parts[i+1])
		if err != nil {
			return Request{}, fmt.Errorf("template name %q: %w", name, err)
		}
		r.Containers = append(r.Containers, c)
	}
	if cpus > 0 {
		r.Containers[0].CPUs = cpus
	}
	if err := r.validate(); err != nil {
		return Request{}, fmt.Errorf("template name %q: %w", name, err)
	}
	// "03" and the like would be a second name of the same request.
	if r.Name() != name {
		return Request{}, fmt.Errorf("template name %q would have to be %q", name, r.Name())
	}
	return r, nil
}

// parseKind reads what a name says of all containers, and the CPUs near the GPUs.
func parseKind(text string) (r Request, cpus int64, err error) {
	text, on, chooses := strings.Cut(text, onStart)
	words := strings.Split(text, "-")
	r = Request{Kind: Kind(words[0]), Count: 1}
	if chooses {
		r.On = strings.Split(on, gap)
	}
	if !slices.Contains([]Kind{Memory, CoreMemory, GPUs, CPUs, NVIDIA}, r.Kind) {
		return Request{}, 0, fmt.Errorf("kind %q is none of %s, %s, %s, %s, %s", words[0], Memory, CoreMemory, GPUs, CPUs,
			NVIDIA)
	}
	words = words[1:]
	if len(words) > 0 && strings.HasPrefix(words[0], countMark) {
		if r.Count, err = strconv.ParseInt(strings.TrimPrefix(words[0], countMark), 10, 64); err != nil {
			return Request{}, 0, fmt.Errorf("number of GPUs: %w", err)
		}
		words = words[1:]
	}
	if len(words) > 0 && words[0] == wholeSuffix {
		r.Whole, words = true, words[1:]
	}
	if len(words) > 0 && strings.HasPrefix(words[0], cpusMark) && r.Kind != CPUs && r.Kind != NVIDIA {
		if cpus, err = strconv.ParseInt(strings.TrimPrefix(words[0], cpusMark), 10, 64); err != nil {
			return Request{}, 0, fmt.Errorf("number of CPUs: %w", err)
		}
		words = words[1:]
	}
	if len(words) > 0 {
		return Request{}, 0, fmt.Errorf("kind %q has a part %q that means nothing", text, words[0])
	}
	return r, cpus, nil
}

func parseContainer(kind Kind, name, amounts string) (Container, error) {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return Container{}, fmt.Errorf("container name %q: %s", name, strings.Join(problems, ", "))
	}
	c := Container{Name: name}
	fields := []*int64{&c.MemoryGiB}
	switch kind {
	case CoreMemory:
		fields = append(fields, &c.CoresPercent)
	case GPUs, NVIDIA:
		fields = []*int64{&c.GPUs}
	case CPUs:
		fields = []*int64{&c.CPUs}
	}
	texts := strings.Split(amounts, "-")
	if len(texts) != len(fields) {
		return Container{}, fmt.Errorf("container %q has %d amounts, a request of kind %q has %d", name, len(texts), kind,
			len(fields))
	}
	for i, text := range texts {
		amount, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return Container{}, fmt.Errorf("container %q: amount %q is not a whole number", name, text)
		}
		*fields[i] = amount
	}
	return c, nil
}
