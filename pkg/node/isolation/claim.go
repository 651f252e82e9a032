// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Backends finds back ends; *Registry implements it.
type Backends interface {
	// For is the back end that serves the mode.
	For(m mode.Mode) (Backend, error)
	// ByName is the back end of that name.
	ByName(name string) (Backend, error)
	// Undo takes back an effect of a claim that is no longer prepared, or never was. It is
	// idempotent, and nothing where the effect has not happened.
	Undo(e Effect) error
}

// Find is the back end of that name or, where it is empty, as in records of older
// versions, the one that serves the mode.
func Find(b Backends, name string, m mode.Mode) (Backend, error) {
	if name == "" {
		return b.For(m)
	}
	return b.ByName(name)
}

// Claim is a claim whose containers are to be held to what it was granted: its container
// groups, in the order of the allocation.
type Claim []Container

// Container is a container group with the back end that holds it to its grants.
type Container struct {
	// Results are the group's grants, by allocation result.
	Results [][]claim.Grant

	group   Group
	backend Backend
}

// ForClaim finds what isolates the grants of the claim with that UID. order lists the UUIDs of its GPUs in the
// order in which containers are to see them, if any.
func ForClaim(b Backends, uid types.UID, grants []claim.Grant, order []string) (Claim, error) {
	var units int64
	for _, g := range grants {
		if !g.Admin {
			units += g.Units
		}
	}
	var out Claim
	groups := claim.ContainerGroups(grants)
	for _, own := range groups {
		backend, err := Find(b, own[0].Isolation, own[0].Mode)
		if err != nil {
			return nil, err
		}
		group := Group{Grants: claim.PerGPU(own), Order: order, ClaimUnits: units, Claim: uid, Only: len(groups) == 1}
		out = append(out, Container{Results: claim.Results(own), group: group, backend: backend})
	}
	return out, nil
}

// Check reports whom of the claim's containers its back ends would not hold to what it
// was granted, if they started now. Administrators are held to nothing.
func (c Claim) Check() error {
	for _, container := range c {
		for _, g := range slices.Concat(container.Results...) {
			if !limited(g) {
				continue
			}
			err := container.backend.Check(g.GPU.UUID)
			if err == nil && g.KernelMemory {
				err = container.backend.CheckMemory(g.GPU.UUID)
			}
			if err != nil {
				return fmt.Errorf("GPU %d: its share could not be limited by %s: %w", g.GPU.Index, container.backend.Name(), err)
			}
		}
	}
	for _, container := range c {
		if container.group.Grants[0].Admin {
			continue
		}
		for _, g := range slices.Concat(container.Results...) {
			if err := processLimits(g); err != nil {
				return fmt.Errorf("request %q: %w", container.request(), err)
			}
		}
		if err := container.backend.Validate(slices.Concat(container.Results...)); err != nil {
			return fmt.Errorf("request %q: %w", container.request(), err)
		}
	}
	return nil
}

// setUpLimit is how long a claim's containers may take together to be set up: some
// milliseconds, and less than a second where a GPU's MPS server is started. The kubelet
// waits longer.
const setUpLimit = 8 * time.Second

// Effects are what SetUp changes on the host beside the plugin's own files, in the order in
// which it does.
func (c Claim) Effects() []Effect {
	var out []Effect
	for _, container := range c {
		for _, e := range container.backend.Effects(container.group) {
			if !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	return out
}

// SetUp makes, on the host, what the containers' edits refer to. It is idempotent.
func (c Claim) SetUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, setUpLimit, fmt.Errorf("waited for %s", setUpLimit))
	defer cancel()
	for _, container := range c {
		if err := container.backend.SetUp(ctx, container.group); err != nil {
			return container.explain(err)
		}
	}
	return nil
}

// Edits are the environment of a container of the group and what holds it to its grants.
// An administrator sees the GPU as it is.
func (c Container) Edits() (env []string, enforcement *specs.ContainerEdits, err error) {
	env = Env(c.group)
	if c.group.Grants[0].Admin {
		return env, &specs.ContainerEdits{}, nil
	}
	if enforcement, err = c.backend.Edits(c.group); err != nil {
		return nil, nil, c.explain(err)
	}
	return env, enforcement, nil
}

func (c Container) request() string { return c.Results[0][0].Request }

func (c Container) explain(err error) error {
	return fmt.Errorf("request %q: isolation %s: %w", c.request(), c.backend.Name(), err)
}
