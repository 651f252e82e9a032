// SPDX-License-Identifier: Apache-2.0

// Package isolation knows how the users of one GPU are kept apart: what a
// container gets so that it keeps to what it was granted, and whether that can
// be relied on at the moment.
package isolation

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// Group is what one request of a claim was granted, or all those that are for one
// container.
type Group struct {
	// Grants are one for each GPU, with all that was granted of it, in the order
	// of allocation; see claim.PerGPU.
	Grants []claim.Grant
	// Order lists the UUIDs of the request's GPUs in the order in which
	// containers are to see them; empty leaves it to CUDA.
	Order []string
	// ClaimUnits is the memory that the whole claim was granted, in GiB units.
	ClaimUnits int64
	// Claim is the claim's UID, Only whether the group is all of it that has shares.
	Claim types.UID
	Only  bool
}

// Backend makes containers keep to their grants. Its methods may be called
// concurrently.
type Backend interface {
	// Name is the value of the device attribute "isolation": mode.IsolationNamed has the level, and how many shares of
	// one GPU it keeps apart.
	Name() string
	// EnforcedByDriver reports whether the GPU's driver lets no program use the GPU but through what limits it.
	EnforcedByDriver(uuid string) bool
	// Unlimited is why it limits nothing on such a GPU, whatever is done about it; empty if it does, or if that is
	// not known.
	Unlimited(g gpu.GPU) string
	// Check reports why a container that starts now would not be held to its
	// share of the GPU, nil if it would be.
	Check(uuid string) error
	// KernelMemory reports whether the kernel limits the memory of shares of the GPU in a mode that the back end
	// serves, or has to, and who counts it; empty where it cannot now.
	KernelMemory(m mode.Mode, uuid string) (held bool, kind memlimit.Kind)
	// CheckMemory reports why the kernel would not limit memory beside it, for a grant that is to have that.
	CheckMemory(uuid string) error
	// MPSLimits are the limits that a client of MPS has by the grant; none without MPS.
	MPSLimits(g claim.Grant) mps.Limits
	// NodeDaemon returns the back end with one MPS daemon for all of the node's GPUs instead of one for each; false if
	// there is none.
	NodeDaemon() (Backend, bool)
	// Adjust changes what the back end counts differently in a grant.
	Adjust(g *claim.Grant)
	// Alone returns why a container with the grant can be given no GPUs but those of the grant's group; empty if it can
	// be given others.
	Alone(g claim.Grant) string
	// Counted returns what a container with the grants is told of each GPU, in the order in which programs count the
	// GPUs; none if it is told nothing of that kind.
	Counted(grants []claim.Grant) []string
	// Validate reports why the grants that a claim has for one container, or one
	// request, cannot be enforced together.
	Validate(grants []claim.Grant) error
	// Edits returns what makes a container keep to the request's grants. It has
	// no effects and does not block.
	Edits(r Group) (*specs.ContainerEdits, error)
	// Effects are what SetUp changes on the host that is not a file of the plugin's own: each
	// is recorded before SetUp is called, and undone by Registry.Undo.
	Effects(r Group) []Effect
	// SetUp makes, on the host, what the edits of the claim refer to. It is idempotent, and
	// may wait as long as ctx lasts.
	SetUp(ctx context.Context, r Group) error
}

// notMPS has what back ends without MPS share: they count grants as they are, and each container by itself, they change
// nothing on the host that must be undone, and they are the same on every GPU.
type notMPS struct{}

func (notMPS) Adjust(*claim.Grant)              {}
func (notMPS) Alone(claim.Grant) string         { return "" }
func (notMPS) Counted([]claim.Grant) []string   { return nil }
func (notMPS) Effects(Group) []Effect           { return nil }
func (notMPS) EnforcedByDriver(string) bool     { return false }
func (notMPS) Unlimited(gpu.GPU) string         { return "" }
func (notMPS) CheckMemory(string) error         { return nil }
func (notMPS) MPSLimits(claim.Grant) mps.Limits { return mps.Limits{} }
func (notMPS) NodeDaemon() (Backend, bool)      { return nil, false }

func (notMPS) KernelMemory(mode.Mode, string) (held bool, kind memlimit.Kind) { return false, "" }

// noSetUp is for back ends whose edits refer to nothing on the host.
type noSetUp struct{ notMPS }

func (noSetUp) SetUp(context.Context, Group) error { return nil }

// noLimits is a back end that enforces nothing. It serves under three names: none, which only counts grants; whole
// GPUs, which have one user; and MIG instances, which the GPU keeps apart. The NVIDIA driver's kernel module lets a
// process use only the instances whose capabilities it can open, and a container gets those of its own (source:
// NVIDIA's MIG user guide; not tried on a GPU).
type noLimits struct {
	noSetUp
	name string
}

func (b noLimits) Name() string               { return b.name }
func (noLimits) Check(string) error           { return nil }
func (noLimits) Validate([]claim.Grant) error { return nil }
func (noLimits) Edits(Group) (*specs.ContainerEdits, error) {
	return &specs.ContainerEdits{}, nil
}

// LevelOn is the value of the device attribute "isolationLevel" of a GPU that the back end
// serves.
func LevelOn(b Backend, uuid string) mode.Level {
	if b.EnforcedByDriver(uuid) {
		return mode.LevelDriver
	}
	return mode.IsolationNamed(b.Name()).Level
}

// limited reports whether a grant's limits are to be enforced.
func limited(g claim.Grant) bool {
	return !g.Admin && !g.Config.IsolationDisabled()
}

// Limited reports whether a back end holds containers to the grant.
func Limited(g claim.Grant) bool { return HasLimits(g) && limited(g) }

// HasLimits reports whether a back end holds containers to the grant unless its limits are
// switched off.
func HasLimits(g claim.Grant) bool { return Capped(g.Mode) || g.Isolation == mode.IsolationKernel }

// Capped reports whether claims in the mode have limits that a back end enforces.
func Capped(m mode.Mode) bool {
	return m == mode.CGPU || m == mode.CoreMem || m == mode.MPS
}
