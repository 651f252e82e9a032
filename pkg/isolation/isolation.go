// Package isolation knows how the users of one card are kept apart: what a
// container gets so that it keeps to what it was granted.
package isolation

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Names of isolation, as the device attribute "isolation" shows them.
const (
	// NameWholeCard: nobody else is given the card.
	NameWholeCard = "whole-card"
	// NameNone: several claims are given the card and nothing keeps a
	// container from taking more than its share.
	NameNone = "none"
)

// Request is what one request of a claim was granted: one grant per device.
type Request struct {
	ClaimUID types.UID
	// Grants all belong to the same request, in the order of allocation.
	Grants []claim.Grant
	// ClaimUnits is the memory that the whole claim was granted, in GiB units.
	ClaimUnits int64
}

// Backend makes a container keep to its grants. Edits is called during the
// preparation of a claim and must neither block nor have effects; a container
// that uses the request gets what it returns.
type Backend interface {
	// Name is the value of the device attribute "isolation".
	Name() string
	// Edits returns what enforces the request's grants.
	Edits(r Request) (*specs.ContainerEdits, error)
}

// None isolates nothing: grants are counted, and that is all.
type None struct{}

// Name implements Backend.
func (None) Name() string { return NameNone }

// Edits implements Backend.
func (None) Edits(Request) (*specs.ContainerEdits, error) { return &specs.ContainerEdits{}, nil }

// For returns the back end that serves a mode on this node, or an error that
// says what is missing.
func For(m mode.Mode) (Backend, error) {
	switch m {
	case mode.Exclusive:
		return wholeCard{}, nil
	case mode.Share:
		return None{}, nil
	default:
		return nil, fmt.Errorf("mode %q is not served by this version of the driver: it serves %q and %q", m, mode.Exclusive, mode.Share)
	}
}

// wholeCard needs no enforcement: the card has one user.
type wholeCard struct{}

func (wholeCard) Name() string { return NameWholeCard }

func (wholeCard) Edits(Request) (*specs.ContainerEdits, error) { return &specs.ContainerEdits{}, nil }

// Environment variables that every mode sets.
const (
	// envVisibleDevices tells NVIDIA's own runtime hook, where a node still has
	// it, to add no cards: they come by CDI.
	envVisibleDevices = "NVIDIA_VISIBLE_DEVICES=void"
	envDisabled       = "CGPU_DISABLE=true"
)

// Env returns the environment of a container that uses the request,
// independently of the back end. In the shared modes that is what ACK's device
// plugin sets (facts: legacy env of the gpushare plugin), so that programs
// which size themselves by it keep working:
//
//	ALIYUN_COM_GPU_MEM_CONTAINER  the request's units per card
//	ALIYUN_COM_GPU_MEM_DEV        the card's units
//	ALIYUN_COM_GPU_MEM_UNIT       GiB
//	ALIYUN_COM_GPU_MEM_IDX        the cards' indices, comma-separated
//	ALIYUN_COM_GPU_MEM_POD        the claim's units, over all requests and cards
//
// A request that spans unlike cards states the first card's units.
func Env(r Request) []string {
	env := []string{envVisibleDevices}
	first := r.Grants[0]
	if !first.Mode.Shared() || first.Admin {
		return env
	}
	if first.Config.IsolationDisabled() {
		env = append(env, envDisabled)
	}
	if !first.Config.LegacyEnv() {
		return env
	}
	indices := make([]string, 0, len(r.Grants))
	for _, g := range r.Grants {
		indices = append(indices, strconv.Itoa(g.Card.Index))
	}
	return append(env,
		fmt.Sprintf("ALIYUN_COM_GPU_MEM_CONTAINER=%d", first.Units),
		fmt.Sprintf("ALIYUN_COM_GPU_MEM_DEV=%d", first.Card.Units()),
		"ALIYUN_COM_GPU_MEM_UNIT=GiB",
		"ALIYUN_COM_GPU_MEM_IDX="+strings.Join(indices, ","),
		fmt.Sprintf("ALIYUN_COM_GPU_MEM_POD=%d", r.ClaimUnits),
	)
}
