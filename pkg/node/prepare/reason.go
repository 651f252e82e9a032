// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// Reason is the kind of reason for which a claim could not be prepared or unprepared:
// there are few, so that they can be counted by it. What is wrong is in the error's text.
type Reason string

// The reasons.
const (
	// ReasonNoGPUs: the node's GPUs have not been read, or there are none.
	ReasonNoGPUs Reason = "no-gpus"
	// ReasonNotServed: the node offers other devices than the claim was allocated, or waits
	// to change its mode.
	ReasonNotServed Reason = "not-served"
	// ReasonInUse: others have the GPU, or processes of the claim's pods run.
	ReasonInUse Reason = "in-use"
	// ReasonInvalid: the claim cannot mean what it says, or its pods cannot be held to it.
	ReasonInvalid Reason = "invalid"
	// ReasonNotStartable: a container would lack a device node, or what limits it.
	ReasonNotStartable Reason = "not-startable"
	// ReasonAPIServer: the API server did not answer, or refused.
	ReasonAPIServer Reason = "api-server"
	// ReasonTimeout: the time that the kubelet gives was over.
	ReasonTimeout Reason = "timeout"
	// ReasonNode: the node's disk, or its state.
	ReasonNode Reason = "node"
)

// because is an error with its reason.
type because struct {
	reason Reason
	error
}

// heldBy is an error because of what others hold.
type heldBy struct {
	by []types.UID
	error
}

// Unwrap is for errors.Is.
func (h heldBy) Unwrap() error { return h.error }

// HeldBy are the claims whose release an error of Prepare or Unprepare waits for: others
// were allocated what they have, or the kubelet asked for it while their pods still run.
func HeldBy(err error) []types.UID {
	var h heldBy
	_ = errors.As(err, &h)
	return h.by
}

// Unwrap is for errors.Is.
func (b because) Unwrap() error { return b.error }

// withReason gives an error a reason, unless it has one.
func withReason(reason Reason, err error) error {
	var known because
	if err == nil || errors.As(err, &known) {
		return err
	}
	return because{reason, err}
}

// ReasonOf is the reason for an error of Prepare or Unprepare; empty for nil.
func ReasonOf(err error) Reason {
	var known because
	var answer apierrors.APIStatus
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return ReasonTimeout
	case errors.As(err, &answer):
		return ReasonAPIServer
	case usage.IsInUse(err):
		return ReasonInUse
	case errors.As(err, &known):
		return known.reason
	default:
		return ReasonNode
	}
}
