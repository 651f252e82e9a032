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

// heard is what gpu-compat-controller last said of who waits, and since when that is known.
type heard struct {
	text  string
	since time.Time
	// goes is whether the node goes by it.
	goes bool
}

// waiting is what claims wait for that spreading shares would keep from them.
func (p *Publisher) waiting(ctx context.Context, node *nodeFacts, records []state.Record) placement.Wanted {
	if node.waiting != p.heard.text {
		p.heard = heard{text: node.waiting, since: p.Clock.Now()}
	}
	p.heard.goes = false
	if p.heard.text == "" {
		return placement.Wanted{}
	}
	w, err := placement.DecodeWaiting(p.heard.text)
	if err != nil {
		klog.FromContext(ctx).Error(err, "The node's annotation is not understood", "annotation", v1alpha1.AnnotationWaiting)
		return placement.Wanted{}
	}
	granted := make([]string, 0, len(records))
	for _, r := range records {
		granted = append(granted, string(r.UID))
	}
	wanted, goes := w.Wanted(p.heard.since, p.Clock.Now(), granted)
	p.heard.goes = goes
	return wanted
}
