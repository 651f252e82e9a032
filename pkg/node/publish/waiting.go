// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
)

// annotation is what gpu-compat-controller last said of who waits, and since when that is known.
type annotation struct {
	text    string
	since   time.Time
	waiting placement.Waiting
}

// noteAnnotation notes what the node's annotation says.
func (p *Publisher) noteAnnotation(ctx context.Context, text string, now time.Time) {
	if text == p.annotation.text {
		return
	}
	p.annotation = annotation{text: text, since: now}
	if text == "" {
		return
	}
	var err error
	if p.annotation.waiting, err = placement.DecodeWaiting(text); err != nil {
		klog.FromContext(ctx).Error(err, "The node's annotation is not understood", "annotation", v1alpha1.AnnotationWaiting)
	}
}

// wanted is what claims wait for that spreading shares would keep from them; it is false where
// there is nothing to go by, or not any more.
func (h annotation) wanted(now time.Time, records []state.Record) (placement.Wanted, bool) {
	granted := make([]string, 0, len(records))
	for _, r := range records {
		granted = append(granted, string(r.UID))
	}
	return h.waiting.Wanted(h.since, now, granted)
}
