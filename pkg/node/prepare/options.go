// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metafile"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// Store keeps the records, and what the node published; *state.Store implements it.
type Store interface {
	// Node is what the node's devices are published as. A claim that is not
	// prepared yet is refused if the mode does not serve it, and isolated as offered. It
	// is also read with the node locked, so that what changes it under LockNode
	// changes it for all claims at once.
	Node() (state.Node, bool, error)
	LockClaim(ctx context.Context, uid types.UID) (unlock func(), err error)
	LockNode(ctx context.Context) (unlock func(), err error)
	LockTimeSlice(ctx context.Context, uuid string) (unlock func(), err error)
	Get(uid types.UID) (state.Record, bool, error)
	Put(r state.Record) error
	Delete(uid types.UID) error
	List() ([]state.Record, error)
	Recent() ([]state.Record, error)
	Unfinished() ([]types.UID, error)
	CleanUp(uid types.UID) error
	// EnsureDir puts up again what was removed; it is not Complete then, until
	// SetComplete says that every prepared claim has its record.
	EnsureDir() error
	Complete() (bool, error)
	SetComplete() error
}

// Specs keeps the CDI specs; cdi.Dir implements it.
type Specs interface {
	Write(name string, s *specs.Spec) error
	Exists(name string) (bool, error)
	Remove(name string) error
	// Claims are those that have a spec, or the temporary file of one.
	Claims() ([]types.UID, error)
	// Devices are the names of a spec's devices, and the UUIDs of the MIG instances that were made for them; none if
	// there is no such spec, or it cannot be read.
	Devices(name string) (names, made []string, err error)
	// Nodes are the paths in containers of the device nodes that a spec's devices bring; none likewise.
	Nodes(name string) (paths []string, err error)
}

// MPS is how GPUs are had back that MPS has to itself; mps.Dir implements it.
type MPS interface {
	// GiveBack says that nothing uses the GPUs by MPS, and waits until other programs can.
	GiveBack(ctx context.Context, uuids ...string) error
}

// TimeSlices sets for how long a process computes before the next one has its turn; *timeslice.SMI implements it.
type TimeSlices interface {
	// Set fails with gpu.ErrNoTimeSlices where asking again would not help.
	Set(ctx context.Context, uuid string, slice v1alpha1.TimeSlice) error
}

// Partitions makes and destroys instances of GPUs in MIG mode; *nvml.Partitions implements it.
type Partitions interface {
	// Instances are those that the GPU with the UUID is cut into now; none of a GPU that is not there.
	Instances(ctx context.Context, uuid string) ([]gpu.Instance, error)
	// MakeGPUInstance returns the id. After gpu.ErrPlaceTaken nothing was made.
	MakeGPUInstance(ctx context.Context, uuid string, at gpu.Place) (gi int, err error)
	MakeComputeInstance(ctx context.Context, uuid string, gi int) (gpu.Instance, error)
	// Destroy destroys a GPU instance and what is in it.
	Destroy(ctx context.Context, uuid string, gi int) error
}

// noMPS has no GPUs.
type noMPS struct{}

func (noMPS) GiveBack(context.Context, ...string) error { return nil }

// BaseEdits are the edits that do not depend on the claim; *cdi.Base
// implements it.
type BaseEdits interface {
	// Common is what every container with a GPU needs.
	Common() specs.ContainerEdits
	// GPU is what gives a container the GPU.
	GPU(uuid string) (specs.ContainerEdits, error)
	// Check reports whether everything that the GPU's edits refer to exists.
	Check(uuid string) error
}

// Inventory is what the node has to hand out, read before the first claim.
type Inventory struct {
	Machine *gpu.Machine
	Base    BaseEdits
}

// Cluster is what the API server is asked. It is asked with the claim locked, and for
// most claims it is not asked at all.
type Cluster interface {
	// Pods are the pods that use the claim and still exist, in the claim's order. They
	// are read when a claim is prepared that has limits, or several linked GPUs.
	Pods(ctx context.Context, c *resourceapi.ResourceClaim) ([]*corev1.Pod, error)
	// Claim is the claim of that name, as it is now. That there is none is the API
	// server's NotFound.
	Claim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// PublishedIsolation is by what the users of the node's GPUs are kept apart, by mode, as the API server shows it. It
	// is asked when what was prepared is not known, and what was published neither.
	PublishedIsolation(ctx context.Context) (map[mode.Mode]string, error)
	// AllocatedClaims are the claims of the cluster that are allocated devices of the
	// pool. They are listed when what was prepared is not known (see Repairer).
	AllocatedClaims(ctx context.Context) ([]*resourceapi.ResourceClaim, error)
}

// Node is what runs on the node.
type Node interface {
	// Reserved is what pods without a claim have of the machine's GPUs. It is asked
	// before a claim is reserved.
	Reserved(ctx context.Context, m *gpu.Machine) (held.Reserved, error)
	// Running reports whether a pod has processes on this node. What it does not know is
	// an error: then the kubelet is believed, and no orphan is released.
	Running(pod types.UID) (bool, error)
	// UsersOf are pods that use a claim beside those that it was reserved for when it was
	// prepared.
	UsersOf(namespace, name string) []types.UID
}

// Listener is told what happens to claims. Its methods must not block.
type Listener interface {
	// Released is called when a claim's devices were taken back, before it can be prepared again.
	Released(uid types.UID)
	// RecordDamaged is told of every record that had to be set aside.
	RecordDamaged(ctx context.Context, err state.Damaged)
}

// Options are what a Preparer works with.
type Options struct {
	// Pool is the name of the pool this node publishes.
	Pool  string
	Store Store
	Specs Specs
	// Metadata is where the files are by which containers learn what they were given; empty
	// where they are told nothing.
	Metadata metafile.Dir
	// BootID identifies the boot of the node.
	BootID string
	// Isolation finds the back ends.
	Isolation isolation.Backends
	// MPS is nil on a node without.
	MPS MPS
	// TimeSlices may be nil where nobody asks for one.
	TimeSlices TimeSlices
	// Partitions may be nil where no claim is allocated an instance that is to be made. Rescan has the GPUs read
	// again, soon: what was made, or destroyed, has to be seen.
	Partitions Partitions
	Rescan     func()
	Cluster    Cluster
	Node       Node
	Listener   Listener
	// Changed is sent after each change of what is prepared, or of whether that is Known; nil for nobody.
	Changed *signal.Broadcast
	// NVIDIA has the parameters of claims count that are addressed to NVIDIA's DRA driver.
	NVIDIA bool
	// LimitsOffBy is what can switch limits off; the zero value is whoever writes a claim.
	LimitsOffBy claim.LimitsOffBy
	// ContainersPerShare is how many containers may have the limits of one share at the same
	// time; 0 for any number.
	ContainersPerShare int
}
