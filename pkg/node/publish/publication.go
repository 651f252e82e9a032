// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"fmt"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/internal/backoff"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
)

// publication plans whether the resources are published now, by what the API server would keep of them, and has of what
// was published last.
func (p *plan) publication(s snapshot) {
	needed := cluster.FeaturesOf(p.resources)
	switch {
	case s.missing != nil:
		p.tell(event{reason: v1alpha1.ReasonFeatureDisabled,
			message: fmt.Sprintf("No GPUs are offered in mode %s: %v", p.step.Mode, s.missing)})
		p.withhold(s)
	case needed != cluster.Features{} && (s.dropped != s.droppedSeen || !s.preflighted.Cover(needed)):
		p.lacks = lacksPreflight
		return
	default:
		p.tell(event{reason: v1alpha1.ReasonFeatureDisabled})
	}
	if s.unread {
		// A pool without devices would say that the node is complete, and the cluster autoscaler make another one.
		p.resources = resourceslice.DriverResources{}
	}
	p.write(s)
	p.close(s)
	p.checkRefusal(s)
}

// withhold publishes nothing: the API server would not keep all that the pool needs.
func (p *plan) withhold(s snapshot) {
	before := s.checkpoint.Offer()
	if !p.step.Equal(before) {
		// The offer before was left, and this one cannot be published.
		before = mode.Offer{}
	}
	p.checkpoint.Offers(before)
	p.resources, p.again = devices.Empty(s.pool), true
}

// write plans to publish the resources if they are others than before, or if the API server dropped fields of them and
// keeps them now: the helper goes on to publish what was kept. Some servers of a cluster that is being updated may
// still drop fields, so it is done again, now and then.
func (p *plan) write(s snapshot) {
	// Quantities of the same amount can differ in how they are kept.
	same := s.last != nil && apiequality.Semantic.DeepEqual(*s.last, p.resources)
	switch {
	case !same:
		p.rewrite = backoff.Tries{}
	// Nobody asks what would be kept of a pool that needs nothing.
	case s.missing != nil || s.dropped == s.lastDropped || s.dropped != s.droppedSeen:
		return
	case !s.rewrite.IsDue(s.now):
		p.again = true
		return
	default:
		p.rewrite = s.rewrite.Plus(askAgain, s.now)
	}
	published := p.resources
	p.writes, p.last, p.lastDropped = true, &published, s.dropped
}

// close plans since when the devices are closed. That is when the API server shows it, once it has shown that they were
// open before: else the closing before would be taken for this one, and claims come in between.
func (p *plan) close(s snapshot) {
	switch {
	case !p.step.Closed && !s.closedSince.IsZero():
		p.closedSince, p.reopened = time.Time{}, true
	case !p.step.Closed:
	case p.writes && s.reopened:
		p.lacks = lacksOpening
	case !s.closedSince.IsZero():
	case p.writes:
		p.closes = true
	default:
		p.lacks = lacksClosing
	}
}

// checkRefusal plans to say why the API server did not take what was published, until it has it. What is published is
// written in the background, where only failures are told of.
func (p *plan) checkRefusal(s snapshot) {
	if s.refusals == s.refusalsSeen || p.lacks != lacksNothing {
		return
	}
	switch {
	case s.dropped != p.lastDropped: // what fields were dropped of was taken, and never is what was published
	case p.writes || !s.reread.IsDue(s.now):
		p.refused = s.refused
		return
	case s.stored == nil:
		p.lacks = lacksStored
		return
	case !holds(*s.stored, *s.last):
		p.refused, p.reread = s.refused, s.reread.Plus(askAgain, s.now)
		return
	}
	p.refusalsSeen, p.reread = s.refusals, backoff.Tries{}
}
