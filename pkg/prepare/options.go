package prepare

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/state"
)

// Store keeps the records; *state.Store implements it.
type Store interface {
	LockClaim(ctx context.Context, uid types.UID) (unlock func(), err error)
	LockNode(ctx context.Context) (unlock func(), err error)
	Get(uid types.UID) (state.Record, bool, error)
	Put(r state.Record) error
	Delete(uid types.UID) error
	List() ([]state.Record, error)
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
	// Devices are the names of a spec's devices; none if there is no such spec, or it
	// cannot be read.
	Devices(name string) ([]string, error)
}

// BaseEdits are the edits that do not depend on the claim; *cdi.Base
// implements it.
type BaseEdits interface {
	// Common is what every container with a card needs.
	Common() specs.ContainerEdits
	// Card is what gives a container the card.
	Card(uuid string) (specs.ContainerEdits, error)
	// Check reports whether everything that the card's edits refer to exists.
	Check(uuid string) error
}

// Isolation finds back ends; *isolation.Registry implements it.
type Isolation interface {
	// For is the back end that serves the mode.
	For(m mode.Mode) (isolation.Backend, error)
	// ByName is the back end of that name.
	ByName(name string) (isolation.Backend, error)
}

// Inventory is what the node has to hand out, read before the first claim.
type Inventory struct {
	Machine *gpu.Machine
	Base    BaseEdits
}

// Options are what a Preparer works with.
type Options struct {
	// Pool is the name of the pool this node publishes.
	Pool  string
	Store Store
	Specs Specs
	// BootID identifies the boot of the node.
	BootID string
	// Isolation finds the back ends.
	Isolation Isolation
	// Pods are the pods that use the claim and still exist. It is asked once, when
	// a claim with limits is prepared.
	Pods func(ctx context.Context, c *resourceapi.ResourceClaim) ([]*corev1.Pod, error)
	// Claim is another claim of these pods. It is asked for those that a container
	// uses beside a claim with limits.
	Claim func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// Published is what the node's devices are published as, the zero Offer if
	// none are or it is not known. A claim that is not prepared yet is refused if
	// the mode does not serve it, and isolated as offered. It is also asked with the
	// node locked, so that what changes it under WithNodeLocked changes it for all
	// claims at once.
	Published func(ctx context.Context) mode.Offer
	// Allocated are the claims of the cluster that are allocated devices of the pool.
	// It is asked when what was prepared is not known (see Repair).
	Allocated func(ctx context.Context) ([]*resourceapi.ResourceClaim, error)
	// OfferedIsolation is by what the users of a card that was offered in the mode were
	// kept apart. It is asked for claims that are prepared already.
	OfferedIsolation func(ctx context.Context, m mode.Mode) (string, error)
	// Closed says that the node waits to change what its devices are published as, and has
	// for long enough that claims which were allocated before are prepared: one that is
	// not is refused if it tolerates that the devices are closed, for it may have been
	// allocated since. It may be left out.
	Closed func(ctx context.Context) bool
	// SetsOrder says whether a container of the claim's pods gets its cards from
	// this claim alone and leaves their order to the driver. It is asked once,
	// when a claim for several linked cards is prepared.
	SetsOrder func(ctx context.Context, c *resourceapi.ResourceClaim) (bool, error)
	// Unclaimed is what pods without a claim hold of the machine's cards. It is asked
	// before a claim is prepared that is not yet.
	Unclaimed func(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error)
	// Running says whether a pod has processes on this node. What it does not know is
	// an error: then the kubelet is believed, and the Sweeper releases nothing.
	Running func(pod types.UID) (bool, error)
	// Users are pods that use a claim beside those that it was reserved for when it was
	// prepared.
	Users func(namespace, name string) []types.UID
	// OnContended is told claims that somebody wants released: others were allocated
	// what they hold, or the kubelet asked for it while their pods still run.
	OnContended func(uids ...types.UID)
	// OnLifted is told the requests of a claim that was prepared without its
	// limits.
	OnLifted func(c *resourceapi.ResourceClaim, requests []string)
	// Lifters is what can lift limits; the zero value is whoever writes a claim.
	Lifters claim.Lifters
	// OnKept is told the requests of a claim that is being prepared whose limits stay
	// because of Lifters, though the claim or a container says otherwise.
	OnKept func(c *resourceapi.ResourceClaim, requests []string)
	// OnChange is called after each change of what is prepared.
	OnChange func()
	// OnDamaged is told of every record that had to be set aside.
	OnDamaged func(ctx context.Context, err state.Damaged)
}
