// SPDX-License-Identifier: Apache-2.0

// Package cdi makes the CDI specs through which a container gets its GPUs:
// what every container with a GPU needs (Base), and one short-lived spec per
// claim.
package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
)

// The kind of the claims' CDI devices is Vendor/Class.
const (
	Vendor = "gpu.aliyun.com"
	Class  = "claim"
	Kind   = Vendor + "/" + Class
)

const specSuffix = ".json"

// DeviceName names the CDI device of one allocation result. It is unique over
// time – a container runtime may keep what it once read under a name – since
// it holds the claim's UID and, where a device is shared, the share's.
// Subrequests ("request/subrequest") lose their slash, which CDI does not allow.
func DeviceName(claimUID types.UID, request, device string, shareID types.UID) string {
	name := fmt.Sprintf("%s-%s-%s", claimUID, strings.ReplaceAll(request, "/", "."), device)
	if shareID != "" {
		name += "-" + string(shareID)
	}
	return name
}

// QualifiedName is the CDI device ID of a device name.
func QualifiedName(device string) string {
	return parser.QualifiedName(Vendor, Class, device)
}

// SpecName is the name of a claim's spec, without directory and suffix.
func SpecName(claimUID types.UID) string {
	return cdi.GenerateTransientSpecName(Vendor, Class, string(claimUID))
}

// Spec puts together the spec of a claim: common edits for every container
// that uses any of the devices, and the devices. A container that uses one of several
// devices gets that device's hooks and no other's; of a single device they are joined
// with the common ones.
func Spec(common specs.ContainerEdits, devices []specs.Device) (*specs.Spec, error) {
	devices = slices.Clone(devices)
	for i := range devices {
		devices[i].ContainerEdits.Hooks = joinHooks(devices[i].ContainerEdits.Hooks)
	}
	if len(devices) == 1 {
		own, others := splitHooks(devices[0].ContainerEdits.Hooks)
		common.Hooks = slices.Concat(common.Hooks, own)
		devices[0].ContainerEdits.Hooks = others
	}
	common.Hooks = joinHooks(common.Hooks)
	s := &specs.Spec{Kind: Kind, Devices: devices, ContainerEdits: common}
	version, err := specs.MinimumRequiredVersion(s)
	if err != nil {
		return nil, fmt.Errorf("determine the CDI version that the spec needs: %w", err)
	}
	s.Version = version
	return s, nil
}

// Dir is the directory in which container runtimes look for CDI specs. Calls
// for one spec name are the caller's to order.
type Dir string

// Write makes the spec visible to container runtimes. What it replaces, it
// replaces as a whole.
func (d Dir) Write(name string, s *specs.Spec) error {
	if err := validate(s); err != nil {
		return fmt.Errorf("CDI spec %s is not valid: %w", name, err)
	}
	data, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode CDI spec %s: %w", name, err)
	}
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return fmt.Errorf("make the CDI directory: %w", err)
	}
	// Not synced: the directory does not survive a reboot, and the claim's
	// record is enough to write the spec again.
	if err := atomicfile.Write(d.path(name), data, 0o644, false); err != nil {
		return fmt.Errorf("write CDI spec %s to %s, where the container runtime reads it: %w", name, d, err)
	}
	return nil
}

// validate applies the library's own checks piece by piece: its check of a
// whole spec takes a file and parses it as YAML, which costs more than the
// rest of a preparation.
func validate(s *specs.Spec) error {
	if len(s.Devices) == 0 {
		return errors.New("it has no devices")
	}
	if err := validateEdits(&s.ContainerEdits); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, d := range s.Devices {
		if err := parser.ValidateDeviceName(d.Name); err != nil {
			return err
		}
		if seen[d.Name] {
			return fmt.Errorf("device %s stands in it twice", d.Name)
		}
		seen[d.Name] = true
		if err := validateEdits(&d.ContainerEdits); err != nil {
			return fmt.Errorf("device %s: %w", d.Name, err)
		}
	}
	return nil
}

func validateEdits(e *specs.ContainerEdits) error {
	return (&cdi.ContainerEdits{ContainerEdits: e}).Validate()
}

// Exists reports whether a spec is there.
func (d Dir) Exists(name string) (bool, error) {
	_, err := os.Stat(d.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for CDI spec %s: %w", name, err)
	}
	return true, nil
}

// Remove removes a spec and what a cut-off Write may have left; that there is
// none is not an error.
func (d Dir) Remove(name string) error {
	if err := errors.Join(atomicfile.Remove(d.path(name)),
		atomicfile.Remove(d.path(name)+atomicfile.TempSuffix)); err != nil {
		return fmt.Errorf("remove CDI spec %s: %w", name, err)
	}
	return nil
}

// AnnotationMade is the annotation of a device whose MIG instance was made for the claim. Its value is the instance's
// UUID.
const AnnotationMade = "gpu.aliyun.com/mig-instance-made"

// Devices returns the names of a spec's devices, in its order, and the UUIDs of the MIG instances that were made for
// them; none if there is no such spec, or it cannot be read as one.
func (d Dir) Devices(name string) (names, made []string, err error) {
	devices, err := d.devices(name)
	for _, device := range devices {
		names = append(names, device.Name)
		if uuid := device.Annotations[AnnotationMade]; uuid != "" {
			made = append(made, uuid)
		}
	}
	return names, made, err
}

// Nodes returns the paths of the device nodes that a spec's devices bring into containers, without those that all
// containers with a GPU have; none if there is no such spec, or it cannot be read as one.
func (d Dir) Nodes(name string) (paths []string, err error) {
	devices, err := d.devices(name)
	for _, device := range devices {
		for _, node := range device.ContainerEdits.DeviceNodes {
			paths = append(paths, node.Path)
		}
	}
	return paths, err
}

func (d Dir) devices(name string) ([]specs.Device, error) {
	data, err := os.ReadFile(d.path(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read CDI spec %s: %w", name, err)
	}
	var s specs.Spec
	if json.Unmarshal(data, &s) != nil {
		return nil, nil
	}
	return s.Devices, nil
}

// Claims returns the UIDs of the claims for which a spec, or the temporary
// file of one, is there.
func (d Dir) Claims() ([]types.UID, error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the CDI directory: %w", err)
	}
	prefix := SpecName("")
	var uids []types.UID
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		uid, isSpec := strings.CutSuffix(strings.TrimSuffix(rest, atomicfile.TempSuffix), specSuffix)
		if ok && isSpec && uid != "" {
			uids = append(uids, types.UID(uid))
		}
	}
	return uids, nil
}

func (d Dir) path(name string) string {
	return filepath.Join(string(d), name+specSuffix)
}
