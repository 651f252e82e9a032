// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// SetTimeSlice sets the time slice of what is prepared from now on, where nothing else is said of it.
func (p *Preparer) SetTimeSlice(slice v1alpha1.TimeSlice) { p.timeSlice.Store(&slice) }

// setTimeSlices gives the record's GPUs what the claims on them ask for. It does so also if another claim has asked for
// the same: that one may be giving it back. It is the one program that Prepare runs, for claims that ask for it.
func (p *Preparer) setTimeSlices(ctx context.Context, r state.Record) error {
	unlock, err := p.lockTimeSlices(ctx, r)
	if err == nil {
		defer unlock()
		err = p.changeTimeSlices(ctx, r, "")
	}
	if err != nil {
		return withReason(ReasonNotStartable, fmt.Errorf("the claim, its DeviceClass or the node's label %s asks for a time "+
			"slice: %w", v1alpha1.LabelTimeSlice, err))
	}
	return nil
}

// giveTimeSlicesBack gives the record's GPUs what is right without it. They are to stay locked until the record is
// gone.
func (p *Preparer) giveTimeSlicesBack(ctx context.Context, r state.Record) error {
	if err := p.changeTimeSlices(ctx, r, r.UID); err != nil {
		return fmt.Errorf("give the GPU's time slice back: %w", err)
	}
	return nil
}

// lockTimeSlices keeps everybody else from setting those of the record's GPUs.
func (p *Preparer) lockTimeSlices(ctx context.Context, r state.Record) (unlock func(), err error) {
	var locks []func()
	unlock = func() {
		for _, one := range slices.Backward(locks) {
			one()
		}
	}
	for _, uuid := range slicedGPUs(r, nil) {
		lock, err := p.options.Store.LockTimeSlice(ctx, uuid)
		if err != nil {
			unlock()
			return nil, err
		}
		locks = append(locks, lock)
	}
	return unlock, nil
}

// changeTimeSlices sets what all claims but one ask for of the record's GPUs, with these locked.
func (p *Preparer) changeTimeSlices(ctx context.Context, r state.Record, but types.UID) error {
	uuids := slicedGPUs(r, p.Machine())
	if len(uuids) == 0 {
		return nil
	}
	records, err := p.Prepared(ctx)
	if err != nil {
		return err
	}
	var grants []claim.Grant
	for _, other := range records {
		if other.UID != but {
			grants = append(grants, other.Grants...)
		}
	}
	asked := claim.TimeSlices(grants)
	for _, uuid := range uuids {
		err := p.options.TimeSlices.Set(ctx, uuid, cmp.Or(asked[uuid], v1alpha1.TimeSliceDefault))
		if but != "" && errors.Is(err, gpu.ErrNoTimeSlices) {
			// A claim must not stay for ever, whose pod would not end either: mostly nothing was set.
			klog.FromContext(ctx).Error(err, "The GPU's time slice is not given back", "uuid", uuid)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// slicedGPUs are the GPUs, in order, for which the record asks for a time slice, but for those that the machine lost,
// if it is known.
func slicedGPUs(r state.Record, m *gpu.Machine) []string {
	var uuids []string
	for _, g := range r.Grants {
		lost := m != nil && !slices.ContainsFunc(m.All(), func(there gpu.GPU) bool { return there.UUID == g.GPU.UUID })
		if g.TimeSlice != "" && !lost {
			uuids = append(uuids, g.GPU.UUID)
		}
	}
	slices.Sort(uuids)
	return slices.Compact(uuids)
}
