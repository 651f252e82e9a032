// SPDX-License-Identifier: Apache-2.0

// Package legacy is what a pod asks for in the manner of ACK's GPU scheduling, as
// data, and the ResourceClaimTemplate that stands for it. It is pure.
//
// A pod asks by the limits aliyun.com/gpu-mem, aliyun.com/gpu-core.percentage and
// aliyun.com/gpu of its containers and by two labels. The admission policy
// gpushare-legacy-convert takes the limits away and lets the pod refer to a template
// whose name says all of it, as Request.Name does; ParseName reads such a name, and
// Request.Template is the template. So whoever makes templates needs nothing of a
// pod but the name. Where a pod asks for CPUs of its own by the annotation
// cpuset-scheduler, gpushare-legacy-cpuset adds them in the same way. The option
// deployments/options/nvidia-gpu-claims does it for the limit nvidia.com/gpu, and
// deployments/options/other-manifests for the limits of HAMi, Volcano and vgpu-manager.
package legacy

import (
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// ClaimName is what a converted pod calls its claim.
const ClaimName = "gpushare"

// ClaimNVIDIA is what a pod calls the claim that its limits of nvidia.com/gpu became.
const ClaimNVIDIA = ClaimName + "-" + string(NVIDIA)

// Kind is which resources the containers of a pod ask for; it is the same for all
// of them.
type Kind string

// The kinds, as template names write them.
const (
	// Memory is a share of the memory, in a mode that grants no compute.
	Memory Kind = "mem"
	// CoreMemory is a share of memory and compute, in mode core_mem.
	CoreMemory Kind = "core"
	// GPUs are whole GPUs in mode topology.
	GPUs Kind = "gpu"
	// CPUs are CPUs of a container's own, and no GPU.
	CPUs Kind = "cpu"
	// NVIDIA are whole GPUs by the limit nvidia.com/gpu, which mode topology does not serve.
	NVIDIA Kind = "nvidia"
)

// Request is what a pod asks for. All its shares are of the same GPUs.
type Request struct {
	Kind Kind
	// Count is the number of GPUs that each share is spread over, at least 1; the
	// amounts are totals, of which each GPU gives an equal part.
	Count int64
	// Whole is whether nobody else may use the GPUs: together the containers ask
	// for all of the memory.
	Whole bool
	// On are words that narrow the GPUs that will do.
	On []string
	// Containers are those that ask, in the pod's order.
	Containers []Container
}

// Container is what one container asks for; of the amounts those are above 0 that
// the kind has.
type Container struct {
	Name         string
	MemoryGiB    int64
	CoresPercent int64
	GPUs         int64
	// CPUs are, beside GPUs, only the first container's.
	CPUs int64
}

// Limits of a request. More devices than a claim can hold can never be had, more
// memory no GPU has.
const (
	mostGPUs   = resourceapi.AllocationResultsMaxSize
	mostMemory = 999 // of one GPU
	mostCores  = 100 // of one GPU
	coresStep  = 5
)

// mostNameByGPU is how long the name of a container may be that requests are named
// after, each with a GPU.
const mostNameByGPU = 56

// validate finds what cannot be had. Its texts, where ACK's scheduler has some, are
// those, misspellings included, since people search for them.
func (r Request) validate() error {
	if r.Count < 1 || r.Count > mostGPUs {
		return fmt.Errorf("a claim is for 1 to %d GPUs, not %d", mostGPUs, r.Count)
	}
	if len(r.Containers) == 0 || len(r.Containers) > resourceapi.DeviceRequestsMaxSize {
		return fmt.Errorf("a claim is for 1 to %d containers, not %d", resourceapi.DeviceRequestsMaxSize,
			len(r.Containers))
	}
	if r.Count > 1 && r.wholeGPUs() {
		return errors.New("whole GPUs are not spread over GPUs")
	}
	if shares := r.Count * int64(len(r.Containers)); shares > mostGPUs {
		return fmt.Errorf("a claim is for 1 to %d shares, not %d", mostGPUs, shares)
	}
	if r.Whole && r.wholeGPUs() {
		return errors.New("whole GPUs are whole")
	}
	if err := errors.Join(r.validateCPUs(), r.validateOn()); err != nil {
		return err
	}
	var gpus int64
	for _, c := range r.Containers {
		if err := c.validate(r.Kind, r.Count); err != nil {
			return fmt.Errorf("container %q: %w", c.Name, err)
		}
		if r.byGPU() && len(c.Name) > mostNameByGPU {
			return fmt.Errorf("container %q: its name has %d characters, and may have %d where several containers are spread "+
				"over GPUs: it becomes part of the names of requests", c.Name, len(c.Name), mostNameByGPU)
		}
		gpus += c.GPUs
	}
	if gpus > mostGPUs {
		return fmt.Errorf("a claim is for 1 to %d GPUs, not %d", mostGPUs, gpus)
	}
	return nil
}

// wholeGPUs reports whether the request is for GPUs, and not for shares of them.
func (r Request) wholeGPUs() bool { return r.Kind == GPUs || r.Kind == NVIDIA }

// nvidiaGPU is the limit of that kind.
const nvidiaGPU = "nvidia.com/gpu"

// limitOf is the limit by which a container asks for GPUs.
func limitOf(kind Kind) string {
	if kind == NVIDIA {
		return nvidiaGPU
	}
	return ack.ResourceGPUs
}

func (c Container) validate(kind Kind, count int64) error {
	for _, amount := range []struct {
		name        string
		value, most int64
		asked       bool
	}{
		{ack.ResourceMemory, c.MemoryGiB, mostMemory * count, kind == Memory || kind == CoreMemory},
		{ack.ResourceCores, c.CoresPercent, mostCores * count, kind == CoreMemory},
		{limitOf(kind), c.GPUs, mostGPUs, kind == GPUs || kind == NVIDIA},
	} {
		switch {
		case amount.asked && (amount.value < 1 || amount.value > amount.most):
			return fmt.Errorf("%s must be from 1 to %d, not %d", amount.name, amount.most, amount.value)
		case !amount.asked && amount.value != 0:
			return fmt.Errorf("%s does not go with a request of kind %q", amount.name, kind)
		case amount.value%count != 0:
			return fmt.Errorf("invalid replica for resource %s,because %d / %d = %v", amount.name, amount.value,
				count,
				float64(amount.value)/float64(count))
		}
	}
	if perGPU := c.CoresPercent / count; perGPU%coresStep != 0 {
		return fmt.Errorf("%s must be a multiple of %d on each GPU, not %d", ack.ResourceCores, coresStep, perGPU)
	}
	return nil
}

// Searchable returns an error for whoever writes the pod if the scheduler cannot look for so many GPUs while all pods
// wait. The policy gpushare-legacy-convert says the same, except in namespaces with v1alpha1.LabelCostlyClaims.
func (r Request) Searchable() error {
	var gpus, most int64
	for _, c := range r.Containers {
		gpus, most = gpus+c.GPUs, max(most, c.GPUs)
	}
	searchable, may := gpus <= 8 || len(r.Containers) > 1 && gpus >= 15 || len(r.Containers) <= 3 && most <= 16,
		"a container may ask for 16, and more than three containers for up to 8 or from 15 on together"
	if !r.wholeGPUs() {
		n := len(r.Containers)
		searchable = n <= 16 && (r.Count <= 3 || n <= 4 && r.Count <= 4 || n == 1 && r.Count <= 13)
		may = "aliyun.com/gpu-count may be 13, 4 where up to four containers share the GPUs and 3 where more do, and 16 " +
			"containers may share one"
	}
	if searchable {
		return nil
	}
	return fmt.Errorf("the pod asks for more GPUs than the scheduler can look for while all pods wait: %s. An "+
		"administrator allows more by the label %s=%s of the namespace: docs/security.md", may, v1alpha1.LabelCostlyClaims,
		v1alpha1.CostlyClaimsAllowed)
}
