// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the configuration that a ResourceClaim or a DeviceClass
// passes to the driver as opaque parameters.
package v1alpha1

import (
	"bytes"
	"errors"
	"fmt"

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
	var config GpuConfig
	strict, err := json.UnmarshalStrict(bytes.TrimSpace(raw), &config)
	if err != nil {
		return GpuConfig{}, fmt.Errorf("decode %s: %w", Kind, err)
	}
	if len(strict) > 0 {
		return GpuConfig{}, fmt.Errorf("decode %s: %w", Kind, errors.Join(strict...))
	}
	return config, config.validate()
}

func (c GpuConfig) validate() error {
	if c.Env != nil && *c.Env != EnvLegacy && *c.Env != EnvNone {
		return fmt.Errorf("%s: env is %q: use %q or %q", Kind, *c.Env, EnvLegacy, EnvNone)
	}
	if c.Container != nil && *c.Container == "" {
		return fmt.Errorf("%s: container is empty: name one, or leave the field out", Kind)
	}
	return nil
}
