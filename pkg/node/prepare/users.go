// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

const (
	// endedLimit is for how long the kubelet waits for the last process of a pod that
	// it has stopped: there is mostly none. It looks again only after some seconds.
	endedLimit   = time.Second
	endedPolling = 20 * time.Millisecond
)

var (
	// errUsersUnknown says that a record names no pods: an earlier version has written it.
	errUsersUnknown = errors.New("it is not known which pods use the claim")
)

// PodsOf are the pods that the claim is reserved for, in order.
func PodsOf(c *resourceapi.ResourceClaim) []types.UID {
	var uids []types.UID
	pods, _ := claim.Pods(c)
	for _, pod := range pods {
		uids = append(uids, pod.UID)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// podNames are the names of the pods that the claim is reserved for, in order.
func podNames(c *resourceapi.ResourceClaim) []string {
	var names []string
	pods, _ := claim.Pods(c)
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// users are all pods that are known to use what the record holds.
func (p *Preparer) users(r state.Record) []types.UID {
	return slices.Concat(r.Pods, p.Node.UsersOf(r.Namespace, r.Name))
}

// addUsers enters further pods into the record, whose claim the caller has locked.
func (p *Preparer) addUsers(r *state.Record, pods []types.UID) error {
	known := len(r.Pods)
	for _, pod := range pods {
		if !slices.Contains(r.Pods, pod) {
			r.Pods = append(slices.Clip(r.Pods), pod)
		}
	}
	if len(r.Pods) == known {
		return nil
	}
	return p.Store.Put(*r)
}

// inUse returns a pod that uses what the record holds and has processes; empty if there
// is none. An error means that it is not known whether there is one.
func (p *Preparer) inUse(r state.Record) (types.UID, error) {
	// A reboot ends all, and before a claim is prepared no container has it.
	if r.BootID != p.BootID || r.Phase == state.Preparing {
		return "", nil
	}
	pods := p.users(r)
	if len(pods) == 0 {
		return "", errUsersUnknown
	}
	var errs []error
	for _, pod := range pods {
		running, err := p.Node.Running(pod)
		if running {
			return pod, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// waitEnded waits a moment until no process runs of the pods that use what the record
// holds. The error names one that still does.
func (p *Preparer) waitEnded(ctx context.Context, r state.Record) error {
	var user types.UID
	var unknown error
	err := wait.PollUntilContextTimeout(ctx, endedPolling, endedLimit, true, func(context.Context) (bool, error) {
		user, unknown = p.inUse(r)
		return user == "", nil
	})
	if unknown != nil {
		klog.FromContext(ctx).V(4).Info("It is not known whether processes of a claim's pods run: going by what the "+
			"kubelet says",
			"claim", klog.KRef(r.Namespace, r.Name), "claimUID", r.UID, "reason", unknown)
	}
	if err == nil {
		return nil
	}
	p.Listener.ReleaseWanted(r.UID)
	return withReason(ReasonInUse, fmt.Errorf("processes still run of the pod with UID %s, which uses what claim %s/%s "+
		"was allocated: it stays held until they have ended, and the kubelet tries again by itself",
		user, r.Namespace, r.Name))
}

// claimsBeside are those of the claims that were granted some of the grants' GPUs.
func claimsBeside(others []usage.Claim, grants []claim.Grant) []types.UID {
	var uids []types.UID
	for _, other := range others {
		if slices.ContainsFunc(other.Grants, func(granted claim.Grant) bool {
			return slices.ContainsFunc(grants, func(g claim.Grant) bool { return g.Card.UUID == granted.Card.UUID })
		}) {
			uids = append(uids, other.UID)
		}
	}
	return uids
}
