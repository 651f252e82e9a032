// SPDX-License-Identifier: Apache-2.0

package claimstatus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	applyresourcev1 "k8s.io/client-go/applyconfigurations/resource/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/internal/beat"
	"github.com/gpushare/dra-driver-gpushare/internal/news"
	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

const (
	// collect is how long changes are collected: a claim that was prepared is written when
	// its container is about to run, and a burst of claims in one go.
	collect = time.Second
	// look is how often the facts are looked at, of which no change is told, lookForNew where no
	// claim is prepared: another process may have prepared one.
	look       = 5 * time.Second
	lookForNew = 30 * time.Second
	// releaseAfter is how long a claim stays that is not prepared any more: mostly it is
	// deleted or deallocated by then, which takes its status away.
	releaseAfter = 5 * time.Second
	// retryAfter doubles with each error of a claim, up to retryMost.
	retryAfter = 5 * time.Second
	retryMost  = 5 * time.Minute
	// releaseTries is how often it is tried to take away what a claim shows that is not
	// prepared any more: its deallocation does, too.
	releaseTries = 5
	// changeAfter is how long what is written stays at least: a GPU that comes and goes
	// must not cost a write each time for each of its claims.
	changeAfter = 10 * time.Second
)

// Claim is a prepared claim, and what its status is to be.
type Claim struct {
	Namespace, Name string
	UID             types.UID
	Devices         []resourceapi.AllocatedDeviceStatus
}

// Options are what a Keeper works with.
type Options struct {
	// Client is for nothing else: what it waits for keeps nobody waiting.
	Client typedresourcev1.ResourceClaimsGetter
	// Prepared lists the prepared claims.
	Prepared func(ctx context.Context) ([]Claim, error)
	// Changed is sent when claims were prepared or unprepared.
	Changed *signal.Broadcast
	// Releases are the claims that were unprepared.
	Releases *Releases
	Clock    clock.Clock
	// Written is told of each write and of its error.
	Written func(err error)
}

// Keeper keeps the entries of the driver in line with what is prepared.
type Keeper struct {
	Options
	// claims are those that are prepared, or were, by UID.
	claims map[types.UID]*kept
	// begun says that the claims are known that were prepared when the process began.
	begun bool
	news  news.Teller
}

// Releases are the claims that were unprepared since the last look. The zero value has none.
type Releases struct {
	mu     sync.Mutex
	claims []types.UID
}

// Released says that a claim was unprepared. Its deallocation takes away what it shows, also where it is prepared again
// before anybody looks.
func (r *Releases) Released(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claims = append(r.claims, uid)
}

// take returns them, and has none from then on.
func (r *Releases) take() []types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	claims := r.claims
	r.claims = nil
	return claims
}

// kept is what is known of a claim's status.
type kept struct {
	Claim
	// written is what the API server was told last, nil if that is not known.
	written []resourceapi.AllocatedDeviceStatus
	// next is when it may be written again, failures how often in a row it could not be.
	next     time.Time
	failures int
	// gone is when it was first seen not to be prepared any more.
	gone time.Time
}

// New returns a Keeper, which has to Run.
func New(o Options) *Keeper {
	return &Keeper{Options: o, claims: map[types.UID]*kept{}}
}

// Run works until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	for {
		// What changes from here on is looked at again.
		changed := k.Changed.Next()
		if err := k.sync(ctx); k.news.IsError(err) && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "What claims have cannot be shown in their status, will try again")
		}
		select {
		case <-ctx.Done():
			return
		case <-beat.After(k.Clock, k.interval()):
		case <-changed:
			select {
			case <-ctx.Done():
				return
			case <-k.Clock.After(collect):
			}
		}
	}
}

func (k *Keeper) interval() time.Duration {
	if len(k.claims) == 0 {
		return lookForNew
	}
	return look
}

// sync writes what is to be written now. Errors concern single claims.
func (k *Keeper) sync(ctx context.Context) error {
	now := k.Clock.Now()
	// Before the list: what is released after it is for the next look.
	k.noteReleased(now)
	prepared, err := k.Prepared(ctx)
	if err != nil {
		return fmt.Errorf("list what is prepared: %w", err)
	}
	seen := map[types.UID]bool{}
	for _, c := range prepared {
		seen[c.UID] = true
		if k.claims[c.UID] == nil {
			k.claims[c.UID] = &kept{}
			if k.begun {
				// Nobody but this process has prepared it, and so written anything.
				k.claims[c.UID].written = []resourceapi.AllocatedDeviceStatus{}
			}
		} else if !k.claims[c.UID].gone.IsZero() {
			// It may have been deallocated meanwhile, which takes away what it showed.
			k.claims[c.UID].written, k.claims[c.UID].next = nil, time.Time{}
		}
		k.claims[c.UID].Claim, k.claims[c.UID].gone = c, time.Time{}
	}
	k.begun = true
	var errs []error
	for _, uid := range slices.Sorted(maps.Keys(k.claims)) {
		c := k.claims[uid]
		switch {
		case seen[uid]:
			errs = append(errs, k.keep(ctx, c))
		case c.gone.IsZero():
			c.end(now)
		default:
			errs = append(errs, k.release(ctx, c))
		}
	}
	return errors.Join(errs...)
}

// noteReleased has the claims that were released count as gone until they are seen to be prepared.
func (k *Keeper) noteReleased(now time.Time) {
	for _, uid := range k.Releases.take() {
		if c := k.claims[uid]; c != nil && c.gone.IsZero() {
			c.end(now)
		}
	}
}

// end notes that the claim is not prepared any more.
func (c *kept) end(now time.Time) { c.gone, c.next, c.failures = now, now.Add(releaseAfter), 0 }

// keep writes the entries of a prepared claim if they are others than before.
func (k *Keeper) keep(ctx context.Context, c *kept) error {
	now := k.Clock.Now()
	if c.written != nil && alike(c.written, c.Devices) || now.Before(c.next) {
		return nil
	}
	if c.written == nil {
		// Another process may have written them, whose times stay.
		there, err := k.Client.ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
		if err != nil || there.UID != c.UID {
			return k.failed(c, err)
		}
		c.written = append([]resourceapi.AllocatedDeviceStatus{}, ours(there.Status.Devices)...)
		if alike(c.written, c.Devices) {
			return nil
		}
	}
	entries := withTimes(c.Devices, c.written, metav1.NewTime(now))
	if err := k.apply(ctx, c, entries); err != nil {
		return k.failed(c, err)
	}
	c.written, c.failures, c.next = entries, 0, now.Add(changeAfter)
	return nil
}

// release takes the entries of a claim away that is not prepared any more.
func (k *Keeper) release(ctx context.Context, c *kept) error {
	if k.Clock.Now().Before(c.next) {
		return nil
	}
	if len(c.written) > 0 {
		if err := k.failed(c, k.apply(ctx, c, nil)); err != nil && c.failures < releaseTries {
			return err
		}
	}
	delete(k.claims, c.UID)
	return nil
}

// failed notes an error: it is tried again later, unless there is nothing to be written to.
func (k *Keeper) failed(c *kept, err error) error {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		// The claim is gone, or deallocated, or somebody else has taken over the entries.
		c.written, c.failures, c.next = c.Devices, 0, k.Clock.Now().Add(changeAfter)
		return nil
	}
	c.failures++
	c.next = k.Clock.Now().Add(backoff.Doubling{Least: retryAfter, Most: retryMost}.After(c.failures))
	return fmt.Errorf("write status.devices of claim %s/%s: %w", c.Namespace, c.Name, err)
}

// apply has the claim's status have these entries of the driver, and no others of it. Those
// of other drivers have other owners, and stay.
func (k *Keeper) apply(ctx context.Context, c *kept, entries []resourceapi.AllocatedDeviceStatus) error {
	status := applyresourcev1.ResourceClaimStatus()
	for _, e := range entries {
		status.WithDevices(configuration(e))
	}
	_, err := k.Client.ResourceClaims(c.Namespace).ApplyStatus(ctx,
		applyresourcev1.ResourceClaim(c.Name, c.Namespace).WithUID(c.UID).WithStatus(status),
		metav1.ApplyOptions{FieldManager: v1alpha1.DriverName})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) {
		k.Written(nil)
	} else {
		k.Written(err)
	}
	return err
}

func configuration(e resourceapi.AllocatedDeviceStatus) *applyresourcev1.AllocatedDeviceStatusApplyConfiguration {
	out := applyresourcev1.AllocatedDeviceStatus().WithDriver(e.Driver).WithPool(e.Pool).WithDevice(e.Device)
	if e.ShareID != nil {
		out.WithShareID(*e.ShareID)
	}
	if e.Data != nil {
		out.WithData(*e.Data)
	}
	for _, c := range e.Conditions {
		out.WithConditions(applymetav1.Condition().WithType(c.Type).WithStatus(c.Status).WithReason(c.Reason).
			WithMessage(c.Message).WithLastTransitionTime(c.LastTransitionTime))
	}
	return out
}

// alike reports whether entries mean the same, whenever they came to.
func alike(a, b []resourceapi.AllocatedDeviceStatus) bool {
	if len(a) != len(b) {
		return false
	}
	for _, e := range a {
		if !slices.ContainsFunc(b, func(o resourceapi.AllocatedDeviceStatus) bool {
			return sameDevice(e, o) && sameContent(e, o)
		}) {
			return false
		}
	}
	return true
}

func sameContent(a, b resourceapi.AllocatedDeviceStatus) bool {
	return slices.EqualFunc(a.Conditions, b.Conditions, func(x, y metav1.Condition) bool {
		x.LastTransitionTime = y.LastTransitionTime
		return x == y
	}) && sameData(a.Data, b.Data)
}

// sameData reports whether the data of both say the same, in whatever order.
func sameData(a, b *runtime.RawExtension) bool {
	if a == nil || b == nil {
		return a == b
	}
	if bytes.Equal(a.Raw, b.Raw) {
		return true
	}
	var x, y any
	if json.Unmarshal(a.Raw, &x) != nil || json.Unmarshal(b.Raw, &y) != nil {
		return false
	}
	return reflect.DeepEqual(x, y)
}
