// SPDX-License-Identifier: Apache-2.0

// Package deviceclasses holds the DeviceClasses that the driver is installed
// with. The YAML files are the ones that deployments/manifests applies.
package deviceclasses

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"
)

//go:embed *.gpu.aliyun.com.yaml any/*gpu.aliyun.com.yaml topology/*.gpu.aliyun.com.yaml legacy/*.gpu.aliyun.com.yaml
//go:embed quota/*.gpu.aliyun.com.yaml mig/*.gpu.aliyun.com.yaml
var files embed.FS

// Modes returns the class of each mode, ordered by name.
func Modes() ([]*resourceapi.DeviceClass, error) { return load("*.gpu.aliyun.com.yaml") }

// Counts returns the classes of mode topology for devices of one number of GPUs,
// ordered by name. They say in one expression what a request would say in a
// second one: the scheduler evaluates each for each device, which is most of what
// such a claim costs.
func Counts() ([]*resourceapi.DeviceClass, error) { return load("topology/*.gpu.aliyun.com.yaml") }

// Legacy returns the classes for what pods ask for in the manner of ACK and no class
// of a mode gives. One class for several modes costs the scheduler less than a
// request that lists them as alternatives, and does not prefer nodes by their mode.
func Legacy() ([]*resourceapi.DeviceClass, error) { return load("legacy/*.gpu.aliyun.com.yaml") }

// Any returns the classes for whole GPUs of any mode and model, ordered by name: one
// for users, and one by which an administrator's request sees each GPU once.
func Any() ([]*resourceapi.DeviceClass, error) { return load("any/*gpu.aliyun.com.yaml") }

// Quota returns the classes of no device, by which a ResourceQuota counts amounts of
// shares, ordered by name.
func Quota() ([]*resourceapi.DeviceClass, error) { return load("quota/*.gpu.aliyun.com.yaml") }

// MIG returns the class of MIG instances of any profile. It is no class of a mode: no node is in it.
func MIG() ([]*resourceapi.DeviceClass, error) { return load("mig/*.gpu.aliyun.com.yaml") }

// All returns all classes that the driver is installed with.
func All() ([]*resourceapi.DeviceClass, error) {
	modes, err := Modes()
	if err != nil {
		return nil, err
	}
	counts, err := Counts()
	if err != nil {
		return nil, err
	}
	legacy, err := Legacy()
	if err != nil {
		return nil, err
	}
	whole, err := Any()
	if err != nil {
		return nil, err
	}
	quota, err := Quota()
	if err != nil {
		return nil, err
	}
	mig, err := MIG()
	return slices.Concat(modes, counts, legacy, whole, quota, mig), err
}

func load(pattern string) ([]*resourceapi.DeviceClass, error) {
	names, err := fs.Glob(files, pattern)
	if err != nil {
		return nil, err
	}
	classes := make([]*resourceapi.DeviceClass, 0, len(names))
	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		c := &resourceapi.DeviceClass{}
		if err := yaml.UnmarshalStrict(data, c); err != nil {
			return nil, fmt.Errorf("embedded DeviceClass %s: %w", name, err)
		}
		classes = append(classes, c)
	}
	return classes, nil
}
