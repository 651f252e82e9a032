// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/lru"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// toldMost is how many explanations are kept: claims that differ in one selector are as many as
// anybody likes.
const toldMost = 1000

// Explainer makes Clusters. What it found out about GPUs for one, it knows for the next. It, and
// the Clusters, are for one goroutine at a time.
type Explainer struct {
	limits   Limits
	surveyor *scheduling.Surveyor
	// expensive are the questions, by QuestionID, that cost more than the limits: they
	// are not tried again whenever the cluster changes.
	expensive *lru.Cache
}

// New makes an Explainer each of whose explanations keeps to the limits.
func New(limits Limits) *Explainer {
	return &Explainer{limits, scheduling.NewSurveyor(), lru.New(toldMost)}
}

// Cluster is what the nodes offered at one time.
type Cluster struct {
	*scheduling.Survey
	explainer *Explainer
	// told holds the last Explanations, by QuestionID.
	told *lru.Cache
}

// Look makes a Cluster of what is published now.
func (e *Explainer) Look(p scheduling.Published) (*Cluster, error) {
	survey, err := e.surveyor.Look(p)
	if err != nil {
		return nil, err
	}
	return &Cluster{survey, e, lru.New(toldMost)}, nil
}

// TellsApart says whether claims ask for GPUs by what nodes that are alike differ in.
func (c *Cluster) TellsApart(ctx context.Context, claims []*resourceapi.ResourceClaim) bool {
	return c.Survey.TellsApart(ctx, scheduling.NewMeter(c.explainer.limits.Cost), claims)
}
