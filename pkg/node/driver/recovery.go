// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
)

// adopt puts what is found of the node's GPUs in force as soon as it is known what the kernel can limit on them: before
// anything is prepared on them, or they are published. The driver may take long to answer that, and whoever looks at
// the GPUs' health does not wait for it. Adopt closes first when the first is in force, or they cannot be read.
func (a *agent) adopt(ctx context.Context, found <-chan *prepare.Inventory, usable *usability, first chan<- struct{}) {
	for begun := false; ; begun = true {
		select {
		case <-ctx.Done():
			return
		case inv := <-found:
			if inv != nil {
				a.limited.Look(ctx, inv.Machine)
				a.preparer.SetInventory(inv)
				usable.SetMachine(inv.Machine)
				a.found.Send()
			}
		}
		if begun {
			// A claim that is being prepared may wait for the next inventory, and Recover waits for that claim.
			signal.Send(a.recoverAgain)
			continue
		}
		a.recover(ctx)
		close(first)
	}
}

// recoverOn recovers what is prepared each time that it is asked for, until the context ends.
func (a *agent) recoverOn(ctx context.Context) {
	for {
		select {
		case <-a.recoverAgain:
			a.recover(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// recover brings what is prepared in line with the node's GPUs and driver files.
func (a *agent) recover(ctx context.Context) {
	if err := a.preparer.Recover(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Some claims could not be recovered")
		a.events.Warn(v1alpha1.ReasonStateNotRecovered, err.Error())
		return
	}
	a.events.Clear(v1alpha1.ReasonStateNotRecovered)
}
