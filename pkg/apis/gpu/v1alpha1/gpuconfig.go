// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the configuration that a ResourceClaim or a DeviceClass
// passes to the driver as opaque parameters.
package v1alpha1

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
)

// What the parameters' type header has to say.
const (
	APIVersion = "gpu.aliyun.com/v1alpha1"
	Kind       = "GpuConfig"
)

// EnvPolicy says which environment variables a container gets besides what the
// GPU needs.
type EnvPolicy string

// The environment policies.
const (
	// EnvLegacy adds the ALIYUN_COM_GPU_MEM_* variables in the shared modes,
	// with the meaning they have on ACK, and in mode topology
	// CUDA_VISIBLE_DEVICES, which puts several GPUs into an order. It is the
	// default.
	EnvLegacy EnvPolicy = "Legacy"
	// EnvNone adds none of them.
	EnvNone EnvPolicy = "None"
)

// TimeSlice is how long a process computes on a GPU before the next one has its turn, in the words of nvidia-smi.
type TimeSlice string

// The time slices.
const (
	// TimeSliceDefault asks for nothing: the NVIDIA driver decides.
	TimeSliceDefault TimeSlice = "Default"
	TimeSliceShort   TimeSlice = "Short"
	TimeSliceMedium  TimeSlice = "Medium"
	TimeSliceLong    TimeSlice = "Long"
)

// TimeSlices are all that there are, in the order of their numbers: the shorter of two comes first.
func TimeSlices() []TimeSlice {
	return []TimeSlice{TimeSliceDefault, TimeSliceShort, TimeSliceMedium, TimeSliceLong}
}

// useTimeSlice is what a message about another value advises.
const useTimeSlice = "use Default, Short, Medium or Long"

// ParseTimeSlice reads a time slice; empty is TimeSliceDefault.
func ParseTimeSlice(s string) (TimeSlice, error) {
	if s == "" {
		return TimeSliceDefault, nil
	}
	if !slices.Contains(TimeSlices(), TimeSlice(s)) {
		return "", fmt.Errorf("%q is no time slice: %s", s, useTimeSlice)
	}
	return TimeSlice(s), nil
}

// GpuConfig is what a user can set per request. A field that is not set is
// taken from the DeviceClass, and failing that from the defaults.
type GpuConfig struct {
	metav1.TypeMeta `json:",inline"`

	// DisableIsolation switches the limits off for this request, if that is allowed
	// (docs/isolation.md#lifting-the-limits). The container sees `CGPU_DISABLE=true`, as on
	// ACK.
	DisableIsolation *bool `json:"disableIsolation,omitempty"`

	// Env chooses variables: `Legacy` sets those that programs on ACK read, `None` none.
	Env *EnvPolicy `json:"env,omitempty"`

	// Container names the container that this request is for. Its variables are those
	// of all requests of the claim that name it.
	Container *string `json:"container,omitempty"`

	// TimeSlice chooses how long a process computes before the next one has its turn: `Short`, `Medium` or `Long`
	// (docs/modes.md#time-slices).
	TimeSlice *TimeSlice `json:"timeSlice,omitempty"`

	// ProcessMemory limits, with MPS, the memory of each process, if that is less than the share.
	ProcessMemory *resource.Quantity `json:"processMemory,omitempty"`

	// ThreadPercentage limits, with MPS, the compute of each process, in percent of the GPU's.
	ThreadPercentage *int64 `json:"threadPercentage,omitempty"`
}

// Default returns the configuration of a request that sets nothing.
func Default() GpuConfig {
	isolationDisabled, env := false, EnvLegacy
	return GpuConfig{
		TypeMeta:         metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind},
		DisableIsolation: &isolationDisabled,
		Env:              &env,
	}
}

// WithoutIsolation returns a configuration that sets nothing but
// DisableIsolation.
func WithoutIsolation() GpuConfig {
	disabled := true
	return GpuConfig{DisableIsolation: &disabled}
}

// Merge returns c with every field that over sets taken from over.
func (c GpuConfig) Merge(over GpuConfig) GpuConfig {
	if over.DisableIsolation != nil {
		c.DisableIsolation = over.DisableIsolation
	}
	if over.Env != nil {
		c.Env = over.Env
	}
	if over.Container != nil {
		c.Container = over.Container
	}
	if over.TimeSlice != nil {
		c.TimeSlice = over.TimeSlice
	}
	if over.ProcessMemory != nil {
		c.ProcessMemory = over.ProcessMemory
	}
	if over.ThreadPercentage != nil {
		c.ThreadPercentage = over.ThreadPercentage
	}
	return c
}

// IsolationDisabled reports whether limits are lifted for the request.
func (c GpuConfig) IsolationDisabled() bool {
	return c.DisableIsolation != nil && *c.DisableIsolation
}

// LegacyEnv reports whether the container gets the variables of EnvLegacy.
func (c GpuConfig) LegacyEnv() bool {
	return c.Env == nil || *c.Env == EnvLegacy
}

// Decode reads opaque parameters strictly: a header of another kind, a field
// that does not exist, is misspelt in its case or stands twice, and a value
// that is not allowed are errors that name it.
func Decode(raw []byte) (GpuConfig, error) {
	var header metav1.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &header); err != nil {
		return GpuConfig{}, fmt.Errorf("parameters are not a JSON object: %w", err)
	}
	if header.APIVersion != APIVersion || header.Kind != Kind {
		return GpuConfig{}, fmt.Errorf("parameters are of apiVersion %q, kind %q: this driver understands apiVersion %q, "+
			"kind %q",
			header.APIVersion, header.Kind, APIVersion, Kind)
	}
	var config struct {
		GpuConfig     `json:",inline"`
		ProcessMemory *Amount `json:"processMemory,omitempty"`
	}
	strict, err := json.UnmarshalStrict(bytes.TrimSpace(raw), &config)
	if err = errors.Join(append(strict, err)...); err != nil {
		return GpuConfig{}, fmt.Errorf("decode %s: %w (docs/reference.md#gpuconfig lists its fields)", Kind, err)
	}
	config.GpuConfig.ProcessMemory = (*resource.Quantity)(config.ProcessMemory)
	return config.GpuConfig, config.Validate()
}

// Amount is a Quantity that is decoded without a long exponent. A tenant writes parameters, and to decode one such as
// 1e-999999999 takes the node minutes and gigabytes.
type Amount resource.Quantity

var longExponent = regexp.MustCompile(`[eE][+-]?[0-9]{3}`)

// UnmarshalJSON implements json.Unmarshaler.
func (a *Amount) UnmarshalJSON(text []byte) error {
	if longExponent.Match(text) {
		return fmt.Errorf("amount %.40s has an exponent of three digits or more: write it with a unit, such as 16Gi", text)
	}
	return (*resource.Quantity)(a).UnmarshalJSON(text)
}

// LimitsProcesses reports whether it has limits of single processes, which only MPS knows.
func (c GpuConfig) LimitsProcesses() bool { return c.ProcessMemory != nil || c.ThreadPercentage != nil }

// Validate reports a value that is not allowed.
func (c GpuConfig) Validate() error {
	if c.Env != nil && *c.Env != EnvLegacy && *c.Env != EnvNone {
		return fmt.Errorf("%s: env is %q: use %q or %q", Kind, *c.Env, EnvLegacy, EnvNone)
	}
	if c.Container != nil && *c.Container == "" {
		return fmt.Errorf("%s: container is empty: name one, or leave the field out", Kind)
	}
	if c.TimeSlice != nil {
		if _, err := ParseTimeSlice(string(*c.TimeSlice)); err != nil || *c.TimeSlice == "" {
			return fmt.Errorf("%s: timeSlice is %q: %s", Kind, *c.TimeSlice, useTimeSlice)
		}
	}
	if p := c.ThreadPercentage; p != nil && (*p < 1 || *p > 100) {
		return fmt.Errorf("%s: threadPercentage is %d: use 1 to 100", Kind, *p)
	}
	if m := c.ProcessMemory; m != nil && m.Value() < 1<<20 {
		return fmt.Errorf("%s: processMemory is %s: use 1Mi or more", Kind, m)
	}
	return nil
}
