// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"slices"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// CheckOvercommit reports whether the wanted grants fit beside those of other claims, and
// beside what pods without a claim have reserved. The scheduler has checked this already;
// the driver checks again because two schedulers, or a changed slice, can promise a GPU
// twice, and nobody after the driver would notice. The error names the GPU and whose it
// is, unless that is in another namespace; InUseBy does.
// A lower number of shares that the node's label sets is left to the scheduler:
// claims that were allocated before it was lowered stay good; what isolates the grant may
// keep fewer apart.
func CheckOvercommit(others []Claim, reserved Reserved, wanted Claim) error {
	used := Of(others, reserved)
	for _, g := range wanted.Grants {
		if g.Admin {
			continue
		}
		err := used.gpu(g.GPU.Key()).fits(wanted.Namespace, g)
		if i := g.GPU.MIG; i != nil && err == nil {
			err = used.gpu(i.ParentUUID).fitsInstance(wanted.Namespace, g)
		}
		if err != nil {
			return fmt.Errorf("request %q: %s (%s): %w", g.Request, g.GPU, g.GPU.Key(), err)
		}
		used.grant(&wanted, g)
	}
	return nil
}

// CheckMade reports whether a MIG instance that was just made for a claim in the namespace fits beside those of other
// claims. The driver alone decides its id, so CheckOvercommit could not use that.
func CheckMade(others []Claim, namespace string, made claim.Grant) error {
	return Of(others, nothing).gpu(made.GPU.MIG.ParentUUID).fitsInstance(namespace, made)
}

// fits reports whether a grant of a claim in the namespace fits.
func (u *GPU) fits(namespace string, g claim.Grant) error {
	reserved, inUse := u.Reserved, u.inUse
	if u.whole != nil {
		return inUse(u.whole, "already held as a whole by %s", u.whole.nameFor(namespace))
	}
	for _, i := range u.instances {
		// Its containers have the GPU's device node, with which they could use all of it now.
		return inUse(i.claim, "it was in MIG mode, and %s still holds an instance of it", i.claim.nameFor(namespace))
	}
	if reserved.Driver != "" {
		return inUse(nil, "driver %s publishes it on this node, too, or has given it to pods: the node's Event %s says "+
			"more", reserved.Driver, v1alpha1.ReasonOtherDriver)
	}
	if reserved.Closes(g.Mode) {
		return inUse(nil, "asked for in mode %s, but pods that a device plugin started hold %s without a claim: %s",
			g.Mode, partOf(reserved), podsFor(namespace, reserved))
	}
	if !g.Mode.Shared() {
		if u.shared != nil {
			return inUse(u.shared, "asked for as a whole, but %s holds a share of it", u.shared.nameFor(namespace))
		}
		return nil
	}
	if u.shared != nil && u.Mode != g.Mode {
		return inUse(u.shared, "asked for in mode %s, but %s holds a share of it in mode %s",
			g.Mode, u.shared.nameFor(namespace), u.Mode)
	}
	without := withoutClaim(namespace, reserved)
	if total := g.GPU.Units(); u.Units+reserved.Units+g.Units > total {
		return inUse(u.shared, "%d GiB asked for, but %d of %d GiB are already granted%s",
			g.Units, u.Units+reserved.Units, total, without)
	}
	if u.Cores+reserved.Cores+g.CoresPercent > 100 {
		return inUse(u.shared, "%d %% of its compute asked for, but %d %% are already granted%s",
			g.CoresPercent, u.Cores+reserved.Cores, without)
	}
	shares, most := u.Shares+reserved.Shares, mode.IsolationNamed(g.Isolation).Shares
	if most > 0 && shares+g.CountsAs() > most {
		return inUse(u.shared, "%d of its shares asked for, but %d of the %d that %s keeps apart are already granted%s",
			g.CountsAs(), shares, most, g.Isolation, without)
	}
	return nil
}

// inUse is the error that something is in use by a claim, or, if it is nil, by the pods without one.
func (u *GPU) inUse(by *Claim, format string, args ...any) error {
	names := slices.Clone(u.Reserved.Pods)
	if by != nil {
		names = []string{by.fullName()}
	}
	return &inUseError{text: fmt.Sprintf(format, args...), by: names}
}

// fitsInstance reports whether a MIG instance of the GPU can be granted to a claim in the namespace. That
// nobody else has the instance is for fits. But an instance that is not there any more may have left
// its id, and with it its device nodes, to this one: containers that held the other could use it.
func (u *GPU) fitsInstance(namespace string, g claim.Grant) error {
	by := u.whole
	if by == nil {
		by = u.shared
	}
	switch {
	case u.Reserved.Driver != "":
		return u.inUse(nil, "driver %s publishes the GPU on this node, too, or has given it to pods: the node's Event %s "+
			"says more", u.Reserved.Driver, v1alpha1.ReasonOtherDriver)
	case u.Reserved.Taken != held.Taken{}:
		return u.inUse(nil, "pods that a device plugin started hold some of the GPU without a claim: %s",
			podsFor(namespace, u.Reserved))
	case by != nil:
		return u.inUse(by, "%s holds the GPU as it was before it was in MIG mode", by.nameFor(namespace))
	}
	for _, other := range u.instances {
		mine, theirs := g.GPU.MIG, other.gpu.MIG
		switch {
		case mine.Made && mine.PlaceOf().Overlaps(theirs.PlaceOf()):
			return u.inUse(other.claim, "%s holds %s, which is in the way", other.claim.nameFor(namespace), other.gpu)
		case !mine.Made && other.gpu.Unmade() && mine.PlaceOf() == theirs.PlaceOf():
			// It may be what was made for that claim, and is destroyed with it.
			return u.inUse(other.claim, "%s has it made, or destroyed, just now", other.claim.nameFor(namespace))
		case mine.GI != gpu.NoCI && mine.GI == theirs.GI && other.gpu.UUID != g.GPU.UUID:
			return u.inUse(other.claim, "%s holds the instance that was there before (%s), whose device nodes are the same",
				other.claim.nameFor(namespace), other.gpu.UUID)
		}
	}
	return nil
}

// partOf says what pods without a claim have of a GPU that they close.
func partOf(reserved held.GPU) string {
	if reserved.Whole {
		return "all of it"
	}
	return "a part of it in another way"
}

// withoutClaim says which of it pods without a claim have.
func withoutClaim(namespace string, reserved held.GPU) string {
	if len(reserved.Pods) == 0 {
		return ""
	}
	return fmt.Sprintf(", of them %d GiB and %d %% without a claim to pods that a device plugin started: %s",
		reserved.Units, reserved.Cores, podsFor(namespace, reserved))
}
