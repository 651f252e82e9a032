// SPDX-License-Identifier: Apache-2.0

// Package nvidia has what claims say that were written for NVIDIA's DRA driver (kubernetes-sigs/dra-driver-nvidia-gpu,
// as of v0.5.0): its names, once, and its parameters, as this driver has them.
package nvidia

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	strictjson "sigs.k8s.io/json"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// DriverName is the name of NVIDIA's DRA driver, and the domain of its attributes and capacities.
const DriverName = "gpu.nvidia.com"

// Values of its attribute "type".
const (
	TypeGPU = "gpu"
	TypeMIG = "mig"
)

// AttrType is its attribute that this driver has not; others have the same names.
const AttrType resourceapi.QualifiedName = "type"

// Named is a name in the domain of NVIDIA's driver.
func Named(name resourceapi.QualifiedName) resourceapi.QualifiedName { return DriverName + "/" + name }

// apiVersion and the kinds are what its parameters' type header says.
const (
	apiVersion = "resource.nvidia.com/v1beta1"
	kindGPU    = "GpuConfig"
	kindMIG    = "MigDeviceConfig"
)

// Strategies of sharing.
const (
	timeSlicing = "TimeSlicing"
	mps         = "MPS"
)

type config struct {
	metav1.TypeMeta `json:",inline"`
	Sharing         *sharing `json:"sharing,omitempty"`
}

type sharing struct {
	Strategy          string             `json:"strategy"`
	TimeSlicingConfig *timeSlicingConfig `json:"timeSlicingConfig,omitempty"`
	MPSConfig         *mpsConfig         `json:"mpsConfig,omitempty"`
}

type timeSlicingConfig struct {
	Interval *v1alpha1.TimeSlice `json:"interval,omitempty"`
}

type mpsConfig struct {
	ThreadPercentage *int64                     `json:"defaultActiveThreadPercentage,omitempty"`
	MemoryLimit      *v1alpha1.Amount           `json:"defaultPinnedDeviceMemoryLimit,omitempty"`
	PerDevice        map[string]v1alpha1.Amount `json:"defaultPerDevicePinnedMemoryLimit,omitempty"`
	// MultiUser changes nothing: MPS serves all users here.
	MultiUser *bool `json:"multiUser,omitempty"`
}

// Translate returns the claim with the parameters of its allocation that are addressed to NVIDIA's driver written as
// this one's, in their place, so that the later of two still wins. An error says what has no meaning here.
func Translate(c *resourceapi.ResourceClaim) (*resourceapi.ResourceClaim, error) {
	addressed := func(d resourceapi.DeviceAllocationConfiguration) bool {
		return d.Opaque != nil && d.Opaque.Driver == DriverName
	}
	if c.Status.Allocation == nil || !slices.ContainsFunc(c.Status.Allocation.Devices.Config, addressed) {
		return c, nil
	}
	c = c.DeepCopy()
	for i, d := range c.Status.Allocation.Devices.Config {
		if !addressed(d) {
			continue
		}
		ours, err := Decode(d.Opaque.Parameters.Raw)
		if err != nil {
			return nil, fmt.Errorf("parameters for NVIDIA's driver %s, of requests %q: %w", DriverName, d.Requests, err)
		}
		raw, err := json.Marshal(ours)
		if err != nil {
			return nil, fmt.Errorf("write parameters for NVIDIA's driver as %s: %w", v1alpha1.APIVersion, err)
		}
		c.Status.Allocation.Devices.Config[i].Opaque = &resourceapi.OpaqueDeviceConfiguration{
			Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: raw}}
	}
	return c, nil
}

// AsksForMPS reports whether a claim has parameters for NVIDIA's driver by which GPUs are shared by MPS.
func AsksForMPS(all []resourceapi.DeviceClaimConfiguration) bool {
	return slices.ContainsFunc(all, func(c resourceapi.DeviceClaimConfiguration) bool {
		if c.Opaque == nil || c.Opaque.Driver != DriverName {
			return false
		}
		ours, err := Decode(c.Opaque.Parameters.Raw)
		return err == nil && ours.ThreadPercentage != nil
	})
}

// Decode reads the parameters strictly, and returns what they mean here.
func Decode(raw []byte) (v1alpha1.GpuConfig, error) {
	ours := v1alpha1.GpuConfig{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.Kind}}
	var header metav1.TypeMeta
	if err := strictjson.UnmarshalCaseSensitivePreserveInts(raw, &header); err != nil {
		return ours, fmt.Errorf("they are not a JSON object: %w", err)
	}
	if header.APIVersion != apiVersion || header.Kind != kindGPU && header.Kind != kindMIG {
		return ours, fmt.Errorf("they have apiVersion %q, kind %q: this driver understands NVIDIA's %s, kinds %s and %s",
			header.APIVersion, header.Kind, apiVersion, kindGPU, kindMIG)
	}
	var theirs config
	strict, err := strictjson.UnmarshalStrict(bytes.TrimSpace(raw), &theirs)
	if err = errors.Join(append(strict, err)...); err != nil {
		return ours, fmt.Errorf("decode NVIDIA's %s: %w", header.Kind, err)
	}
	if theirs.Sharing == nil {
		return ours, nil
	}
	if err := theirs.Sharing.check(header.Kind); err != nil {
		return ours, fmt.Errorf("NVIDIA's %s: %w", header.Kind, err)
	}
	if t := theirs.Sharing.TimeSlicingConfig; t != nil {
		ours.TimeSlice = t.Interval
	}
	if theirs.Sharing.Strategy == mps {
		ours.ThreadPercentage = ptr.To[int64](100) // a limit, so that it is refused where there is no MPS
	}
	if m := theirs.Sharing.MPSConfig; m != nil {
		ours.ThreadPercentage = cmp.Or(m.ThreadPercentage, ours.ThreadPercentage)
		ours.ProcessMemory = (*resource.Quantity)(m.MemoryLimit)
		if limit, is := m.PerDevice["0"]; is {
			ours.ProcessMemory = (*resource.Quantity)(&limit)
		}
	}
	return ours, ours.Validate()
}

// check reports what of it has no meaning here, or none at all.
func (s sharing) check(kind string) error {
	switch {
	case s.Strategy != timeSlicing && s.Strategy != mps:
		return fmt.Errorf("sharing.strategy is %q: use %s or %s", s.Strategy, timeSlicing, mps)
	case s.Strategy == timeSlicing && s.MPSConfig != nil:
		return errors.New("sharing has the strategy TimeSlicing and an mpsConfig: leave mpsConfig out")
	case s.Strategy == mps && s.TimeSlicingConfig != nil:
		return errors.New("sharing has the strategy MPS and a timeSlicingConfig: leave timeSlicingConfig out")
	case kind == kindMIG && s.Strategy == mps:
		return errors.New("MPS on MIG instances is not offered here: ask for a smaller profile, or for a share of a GPU")
	case kind == kindMIG && s.TimeSlicingConfig != nil:
		return errors.New("MIG instances have no time slices of their own: leave timeSlicingConfig out")
	}
	if s.MPSConfig == nil {
		return nil
	}
	for device := range s.MPSConfig.PerDevice {
		if device != "0" {
			return fmt.Errorf("defaultPerDevicePinnedMemoryLimit names device %q, and a share is of one GPU, which is \"0\": "+
				"use a request, with its own parameters, for each GPU", device)
		}
	}
	return nil
}
