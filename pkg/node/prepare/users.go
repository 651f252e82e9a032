// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

const (
	// endedLimit is for how long the kubelet waits for the last process of a pod that
	// it has stopped: there is mostly none. It looks again only after some seconds.
	endedLimit   = time.Second
	endedPolling = 20 * time.Millisecond
	// usersMost is how many pods a record names, the last that came: more than use a claim at a time. Others are there
	// only where it is not known which pods run, and there they count for nothing.
	usersMost = 2 * resourceapi.ResourceClaimReservedForMaxSize
)

// errUsersUnknown says that a record names no pods: an earlier version has written it.
var errUsersUnknown = errors.New("it is not known which pods use the claim")

// users are the pods that use the claim, in its order. Those that have ended use nothing, also where Kubernetes
// reserves the claim for them again, as it does whenever that changes (kubernetes/kubernetes issue 141274).
func (p *Preparer) users(ctx context.Context, c *resourceapi.ResourceClaim) ([]*corev1.Pod, error) {
	pods, err := p.options.Cluster.Pods(ctx, c)
	return slices.DeleteFunc(pods, claim.Ended), err
}

// seenUsers are the pods that are seen to use a claim of the record's name, but for some.
func (p *Preparer) seenUsers(r state.Record, but []types.UID) []types.UID {
	return slices.DeleteFunc(slices.Clone(p.options.Node.UsersOf(r.Namespace, r.Name)),
		func(pod types.UID) bool { return slices.Contains(but, pod) })
}

// noteUsers enters further pods into the record, whose claim the caller has locked, and the boot in which it is used.
// What it knows already it does not write. Those that have ended leave the record with the next one that comes.
func (p *Preparer) noteUsers(r *state.Record, boot string, pods []types.UID) error {
	more := slices.DeleteFunc(slices.Clone(pods), func(pod types.UID) bool { return slices.Contains(r.Pods, pod) })
	if len(more) == 0 && r.BootID == boot {
		return nil
	}
	known := len(r.Pods)
	r.Pods = slices.DeleteFunc(slices.Clone(r.Pods), func(pod types.UID) bool {
		return !slices.Contains(pods, pod) && p.hasEnded(*r, pod)
	})
	if len(r.Pods) < known {
		r.PodNames = nil // nobody knows whose they are
	}
	r.Pods, r.BootID = append(r.Pods, more...), boot
	r.Pods = r.Pods[max(0, len(r.Pods)-usersMost):]
	return p.options.Store.Put(*r)
}

// hasEnded reports whether it is known that a pod runs nothing, and nobody sees it on the node.
func (p *Preparer) hasEnded(r state.Record, pod types.UID) bool {
	running, err := p.options.Node.Running(pod)
	return err == nil && !running && !slices.Contains(p.options.Node.UsersOf(r.Namespace, r.Name), pod)
}

// InUse returns a pod that uses what the record holds and has processes; empty if there
// is none. ofAnother are pods that use another claim of its name: see EnterUsers. An error means that it is not known
// whether there is one.
func (p *Preparer) InUse(r state.Record, ofAnother ...types.UID) (types.UID, error) {
	// A reboot ends all, and before a claim is prepared no container has it.
	if r.BootID != p.options.BootID || r.Phase == state.Preparing {
		return "", nil
	}
	pods := slices.Concat(r.Pods, p.seenUsers(r, ofAnother))
	if len(pods) == 0 {
		return "", errUsersUnknown
	}
	var errs []error
	for _, pod := range pods {
		running, err := p.options.Node.Running(pod)
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
		user, unknown = p.InUse(r)
		return user == "", nil
	})
	if unknown != nil {
		klog.FromContext(ctx).V(4).Info("It is not known whether processes of a claim's pods run: using what the "+
			"kubelet says",
			"claim", klog.KRef(r.Namespace, r.Name), "claimUID", r.UID, "reason", unknown)
	}
	if err == nil {
		return nil
	}
	still := fmt.Errorf("processes still run of the pod with UID %s, which uses what claim %s/%s was allocated: it stays "+
		"held until they have ended, and the kubelet tries again by itself", user, r.Namespace, r.Name)
	return withReason(ReasonInUse, heldBy{[]types.UID{r.UID}, still})
}

// EnterUsers enters pods that have come to use the claim into its record, if that is still there and stands for the
// same. c is the claim that has its name now, nil if none has. If that is the record's, they are those that it is
// reserved for, and that are seen to use it; else only those that have processes, for others may wait for the next
// claim of the name. ofAnother are pods that are seen, but use another claim of the name.
func (p *Preparer) EnterUsers(
	ctx context.Context, r state.Record, c *resourceapi.ResourceClaim,
) (_ state.Record, ofAnother []types.UID, err error) {
	var pods []types.UID
	same := c != nil && c.UID == r.UID
	if same {
		pods = podsOf(c)
	}
	seen := slices.DeleteFunc(p.seenUsers(r, r.Pods), func(pod types.UID) bool { return !same && !p.runs(pod) })
	if len(seen) > 0 {
		// After it was asked who runs: who does by another claim has that claim's record by then.
		if ofAnother, err = p.ofAnother(ctx, r, c); err == nil {
			users := slices.DeleteFunc(seen, func(pod types.UID) bool { return slices.Contains(ofAnother, pod) })
			pods = slices.Concat(pods, users)
		}
	}
	r, unnoted := p.enterUsers(ctx, r, pods)
	return r, ofAnother, errors.Join(err, unnoted)
}

func (p *Preparer) runs(pod types.UID) bool {
	runs, _ := p.options.Node.Running(pod)
	return runs
}

// ofAnother are the pods of the other claims of the record's name that are prepared here: it was created again. c is
// the one that has the name now. That a claim is reserved for a pod does not make it the pod's as long as it is not
// prepared: kube-controller-manager reserves it for running pods that name it, whichever it was when they started.
func (p *Preparer) ofAnother(ctx context.Context, r state.Record, c *resourceapi.ResourceClaim) ([]types.UID, error) {
	records, err := p.Prepared(ctx)
	if err != nil {
		return nil, fmt.Errorf("find out which pods use another claim of the name of %s/%s: %w", r.Namespace, r.Name, err)
	}
	var pods []types.UID
	for _, other := range records {
		if other.UID == r.UID || other.Namespace != r.Namespace || other.Name != r.Name || other.Phase != state.Prepared {
			continue
		}
		pods = append(pods, other.Pods...)
		if c != nil && c.UID == other.UID {
			pods = append(pods, podsOf(c)...)
		}
	}
	return pods, nil
}

func (p *Preparer) enterUsers(ctx context.Context, r state.Record, pods []types.UID) (state.Record, error) {
	if !slices.ContainsFunc(pods, func(pod types.UID) bool { return !slices.Contains(r.Pods, pod) }) {
		return r, nil
	}
	err := p.locked(ctx, r.UID, func(now state.Record, found bool) error {
		if !found || now.Phase != r.Phase {
			return nil
		}
		if err := p.noteUsers(&now, now.BootID, pods); err != nil {
			return fmt.Errorf("note which pods use claim %s/%s: %w", r.Namespace, r.Name, err)
		}
		r = now
		return nil
	})
	return r, err
}

// EnterReserved enters the pods that the claim is reserved for into its record, if there is one: nobody else tells of a
// pod that joins a prepared claim before the next sweep.
func (p *Preparer) EnterReserved(ctx context.Context, c *resourceapi.ResourceClaim) error {
	r, found, err := p.get(ctx, c.UID)
	if err != nil || !found {
		return err
	}
	_, _, err = p.EnterUsers(ctx, r, c)
	return err
}
