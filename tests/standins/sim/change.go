// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"
)

// Change changes the machine of a driver root that WriteRoot has written, while programs
// may use it: what their NVML tells changes with the next call, and who waits for events
// is told. Files of the driver stay as they are. Two changes at once are one after the
// other.
func Change(root string, change func(*Spec) error) error {
	unlock, err := lock(root)
	if err != nil {
		return err
	}
	defer unlock()
	spec, err := Load(filepath.Join(root, MachineFile))
	if err != nil {
		return err
	}
	before, err := yaml.Marshal(spec.cuts())
	if err != nil {
		return fmt.Errorf("writing the machine file: %w", err)
	}
	if err := change(spec); err != nil {
		return err
	}
	if err := spec.validate(); err != nil {
		return fmt.Errorf("the changed machine: %w", err)
	}
	content, err := yaml.Marshal(spec)
	if err != nil {
		return fmt.Errorf("writing the machine file: %w", err)
	}
	return errors.Join(
		spec.changeCapabilities(root, before),
		replace(filepath.Join(root, MachineFile), content, 0o644),
		replace(filepath.Join(root, ToldFile), spec.told(), 0o644),
	)
}

// changeCapabilities changes what the kernel module shows of MIG instances, if these are others than before.
func (s *Spec) changeCapabilities(root string, before []byte) error {
	after, err := yaml.Marshal(s.cuts())
	if err != nil || bytes.Equal(before, after) {
		return err
	}
	entries := map[string]entry{}
	s.addCapabilities(entries)
	addParents(entries)
	for _, dir := range []string{capsDir, ProcDir} {
		if err := pruneBelow(root, dir, entries); err != nil {
			return err
		}
	}
	return writeAll(root, entries)
}

// cuts are all that capabilities follow from.
func (s *Spec) cuts() []MIG {
	cuts := make([]MIG, 0, len(s.GPUs))
	for _, c := range s.GPUs {
		cuts = append(cuts, c.MIG)
	}
	return cuts
}

// UpgradeDriver installs another version of the driver of a simulated node in the place
// of the one that is there. What its programs do stays, and what the driver was told is
// forgotten.
func UpgradeDriver(root, version string) error {
	unlock, err := lock(root)
	if err != nil {
		return err
	}
	defer unlock()
	spec, err := Load(filepath.Join(root, MachineFile))
	if err != nil {
		return err
	}
	before := spec.Driver
	spec.Driver.Version = version
	for i := range spec.GPUs {
		// They do not outlive the kernel module.
		spec.GPUs[i].MIG.Instances = nil
	}
	if err := spec.validate(); err != nil {
		return fmt.Errorf("the new driver: %w", err)
	}
	if spec.Driver.limitsMemory() && !before.limitsMemory() {
		return fmt.Errorf("the new driver: the library of %s is all that there is, and lacks what is new since release %d",
			before.Version, firstWithMemoryLimits)
	}
	library, err := os.ReadFile(filepath.Join(root, LibraryDir, NVMLLibrary+".so.1"))
	if err != nil {
		return fmt.Errorf("reading the driver: %w", err)
	}
	kept := []Part{{Name: NVMLLibrary, Content: library}}
	paths, err := filepath.Glob(filepath.Join(root, programDir, "*"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("reading the driver: %w", err)
		}
		kept = append(kept, Part{Name: filepath.Base(path), Content: content})
	}
	if err := forget(root); err != nil {
		return err
	}
	return spec.writeRoot(root, kept)
}

// WriteNVML writes nothing of a driver root but NVML, for programs whose driver is
// elsewhere, and returns the library's path. dir has to be empty.
func (s *Spec) WriteNVML(dir string, library []byte) (path string, err error) {
	path = filepath.Join(dir, NVMLLibrary+".so.1")
	library, err = s.Driver.library(library)
	if err != nil {
		return "", err
	}
	return path, errors.Join(
		os.Mkdir(filepath.Join(dir, StateDir), 0o755),
		replace(filepath.Join(dir, ToldFile), s.told(), 0o644),
		replace(path, library, 0o755),
	)
}

// lock keeps others from changing the machine until it is unlocked.
func lock(root string) (unlock func(), err error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, fmt.Errorf("opening the driver root: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("locking the driver root: %w", err), dir.Close())
	}
	// Closing it unlocks it.
	return func() { _ = dir.Close() }, nil
}

// replace puts a file in the place of another one at once.
func replace(path string, content []byte, perm os.FileMode) error {
	made := path + ".new"
	err := os.WriteFile(made, content, perm)
	if err == nil {
		// What was made is subject to the umask.
		err = os.Chmod(made, perm)
	}
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		return fmt.Errorf("replacing a file of the driver root: %w", err)
	}
	return nil
}
