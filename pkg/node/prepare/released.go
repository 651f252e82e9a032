// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"reflect"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// released is a record that could not be written, as on a full disk, where a claim's devices are taken back: those are
// no one's to miss from then on. To take them back is what may make room, so it does not wait for any.
type released struct{ stored, record state.Record }

// putReleased writes the record in the place of the one that is stored, or has this process use it. One that starts
// before all is taken back reads what is stored, and the kubelet asks it again.
func (p *Preparer) putReleased(ctx context.Context, stored, r state.Record) {
	err := p.options.Store.Put(r)
	if err == nil {
		return
	}
	klog.FromContext(ctx).Error(err, "Taking a claim's devices back without having written that down",
		"claim", klog.KRef(r.Namespace, r.Name), "claimUID", r.UID)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.released[r.UID] = released{stored, r}
}

// asReleased has those of the records, as they were read, be what they are since.
func (p *Preparer) asReleased(records ...state.Record) []state.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, r := range records {
		if now, is := p.released[r.UID]; is && reflect.DeepEqual(now.stored, r) {
			records[i] = now.record
		}
	}
	return records
}

func (p *Preparer) forgetReleased(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.released, uid)
}
