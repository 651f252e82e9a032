// SPDX-License-Identifier: Apache-2.0

// Package explain says in words why the scheduler finds no devices for a pod's claims:
// pkg/scheduling finds that out as data. A Cluster uses what the nodes publish alone, of what
// is free now the words are those for a scheduling.Room.
package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/lru"

	"github.com/gpushare/dra-driver-gpushare/pkg/explain/advice"
	"github.com/gpushare/dra-driver-gpushare/pkg/quota"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Limits bound what an explanation may cost: selectors are programs that anybody writes
// who may make a claim.
type Limits struct {
	// Cost is that of evaluating all selectors of a pod's claims for all kinds of
	// devices, in CEL's units; the scheduler lets each evaluation cost up to
	// resourceapi.CELSelectorExpressionMaxCost, and so does this package. Compiling
	// an expression counts, too.
	Cost uint64
	// Time is how long all of it may take.
	Time time.Duration
	// Combined is the effort, in nodes, of the search for a way to serve all requests of a pod at
	// once; that is exhaustive, and where it takes more, nothing is said of its result.
	Combined int64
}

// errTooLong is that Limits.Time is used up.
var errTooLong = errors.New("takes too long to explain")

// tooExpensive is what there is to say then.
const tooExpensive = "why the pod waits is too expensive to explain: its claims have many selectors, or selectors " +
	"that take long to evaluate." +
	" The scheduler has to evaluate them for the devices of each node, too: write fewer, or simpler ones"

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

// New makes an Explainer that asks the engine, and each of whose explanations keeps to the limits.
func New(engine *scheduling.Engine, limits Limits) *Explainer {
	return &Explainer{limits, engine.NewSurveyor(), lru.New(toldMost)}
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

// Explanation is why a pod waits.
type Explanation struct {
	// Message is a sentence for each request or alternative that stands in the
	// way, in the order of the claims; empty if none is for our devices.
	Message string
	// Never says that no node could serve the claims if all GPUs were free.
	Never bool
	// Busy says that nothing was found but that there are such devices: they are in
	// use, or what the pod waits for is none of them.
	Busy bool
	// Unsearched says that Busy was not searched to the end: of all requests at once, it is not
	// known.
	Unsearched bool
	// TooExpensive says that nothing was found out within the Limits, and Message that
	// this is so.
	TooExpensive bool
	// Unoffered says that no node offers anything of a class that is asked for, Short
	// that there is some of every class, but never as many or as large ones.
	Unoffered, Short bool
	// AtOnce says that each request could be served, but no node could serve all of them.
	AtOnce bool
	// Others says that devices of other drivers are asked for, too.
	Others bool
	// Failing says that a selector cannot be evaluated for a device of a node that the pod can be on: what is said
	// depends on whether the node takes the pod now.
	Failing bool
}

// SameClaim says that a pod names one claim more than once; empty where it does not. The scheduler then allocates the
// claim, fails to reserve it for one pod twice, and tries again for ever: the API server takes no duplicates in
// status.reservedFor.
func SameClaim(pod *corev1.Pod) string {
	names := map[string]string{}
	for _, asked := range pod.Spec.ResourceClaims {
		if asked.ResourceClaimName == nil {
			continue
		}
		if other, twice := names[*asked.ResourceClaimName]; twice {
			return fmt.Sprintf("its resourceClaims %s and %s are one ResourceClaim, %s, which the scheduler cannot reserve for "+
				"a pod twice: name it once, and let several containers use that name", other, asked.Name,
				*asked.ResourceClaimName)
		}
		names[*asked.ResourceClaimName] = asked.Name
	}
	return ""
}

// never is what the Message begins with if the pod can never run.
const never = "the pod can never be scheduled on this cluster as it is: "

// Explain says why a pod with these claims waits. Claims that are allocated only
// say where the pod can be. Asked for the same again, it mostly answers from memory.
// An error is one of the claims, or the context's.
func (c *Cluster) Explain(ctx context.Context, pod *corev1.Pod, claims []*resourceapi.ResourceClaim) (Explanation,
	error) {
	key, err := scheduling.Question(pod, claims)
	if err != nil {
		return Explanation{}, err
	}
	if known, ok := c.told.Get(key); ok {
		if e, ok := known.(Explanation); ok {
			return e, nil
		}
	}
	beyond := Explanation{Message: tooExpensive, TooExpensive: true}
	if _, known := c.explainer.expensive.Get(key); known {
		return beyond, nil
	}
	limited, cancel := context.WithTimeoutCause(ctx, c.explainer.limits.Time, errTooLong)
	defer cancel()
	e, err := c.explain(limited, scheduling.NewMeter(c.explainer.limits.Cost), pod, claims)
	switch {
	case errors.Is(err, scheduling.ErrTooExpensive):
		c.explainer.expensive.Add(key, true)
		return beyond, nil
	case errors.Is(err, errTooLong) && ctx.Err() == nil:
		e, err = beyond, nil
	}
	if err == nil && !e.Failing {
		c.told.Add(key, e)
	}
	return e, err
}

func (c *Cluster) explain(ctx context.Context, m *scheduling.Meter, pod *corev1.Pod,
	claims []*resourceapi.ResourceClaim) (Explanation, error) {
	may, err := scheduling.Possible(pod, claims)
	if err != nil {
		return Explanation{}, err
	}
	s := sum{pod: pod, may: may, claims: len(claims), known: true}
	var unallocated []*resourceapi.ResourceClaim
	for _, claim := range claims {
		if claim.Status.Allocation != nil {
			continue
		}
		unallocated = append(unallocated, claim)
		s.elsewhere = s.elsewhere || scheduling.OfScheduler(claim)
		for i := range claim.Spec.Devices.Requests {
			if err := c.addRequest(ctx, m, &s, claim, &claim.Spec.Devices.Requests[i]); err != nil {
				return Explanation{}, err
			}
		}
	}
	if len(s.found) == 0 {
		return Explanation{}, nil
	}
	if s.known && s.busy() {
		f := c.Together(ctx, m, unallocated, may, scheduling.NewEffort(c.explainer.limits.Combined))
		if s.unsearched = f.Kind == scheduling.Unsearched; f.Step < scheduling.Taken {
			s.found, s.atOnce = append(s.found, found{[]string{c.say(f)}, f.Step}), f.Step == scheduling.TooFew
		}
	}
	return s.explanation(c.Settled && !s.elsewhere), nil
}

// addRequest adds what is found out about a request.
func (c *Cluster) addRequest(ctx context.Context, m *scheduling.Meter, s *sum, claim *resourceapi.ResourceClaim,
	r *resourceapi.DeviceRequest) error {
	of := found{best: scheduling.OtherClass}
	var stops []string
	asked := scheduling.Alternatives(r)
	foreign := !slices.ContainsFunc(asked, c.IsOurs)
	for _, alternative := range asked {
		name := "request " + alternative.Name
		if s.claims > 1 {
			name = "claim " + claim.Name + ", " + name
		}
		if c.Class(alternative.Class) == nil {
			// The scheduler looks for no node as long as any class is missing. It says so
			// itself; of what is not ours there is nothing to add.
			if text := c.sayNoClass(alternative, len(asked) > 1); !foreign || advice.Class(alternative.Class) != "" {
				stops = append(stops, name+": "+text)
				continue
			}
		}
		if quota.IsClass(alternative.Class) {
			continue
		}
		if !c.IsOurs(alternative) {
			s.known, of.best = false, scheduling.Taken
			continue
		}
		f, err := c.Search(ctx, m, alternative, s.pod, s.may)
		if err != nil {
			return err
		}
		of.texts, of.best = append(of.texts, name+": "+c.say(f)), max(of.best, f.Step)
		s.failing = s.failing || f.Failed != nil
	}
	if len(stops) > 0 {
		of = found{stops, scheduling.Excluded}
	}
	if len(of.texts) > 0 {
		s.found = append(s.found, of)
	}
	return nil
}

// found is what there is to say of a request.
type found struct {
	// texts are a sentence for each alternative that stands in the way.
	texts []string
	// best is how far the alternative comes that comes farthest: others use what comes to Taken or farther.
	best scheduling.Step
}

// sum is what was found out about a pod.
type sum struct {
	pod *corev1.Pod
	// may is where the pod can be.
	may scheduling.Where
	// claims is the number of the pod's claims.
	claims int
	// known is false where something is asked for that is not ours.
	known bool
	// elsewhere is true where a device plugin might serve it on nodes that are not known.
	elsewhere bool
	// failing is Explanation.Failing, unsearched Explanation.Unsearched, atOnce Explanation.AtOnce.
	failing, unsearched, atOnce bool
	// found is of each request that is for our devices.
	found []found
}

// busy says that nothing was found that stands in the way whatever is free.
func (s sum) busy() bool {
	return !slices.ContainsFunc(s.found, func(f found) bool { return f.best < scheduling.Taken })
}

// explanation leaves out requests that could be served where another could not.
func (s sum) explanation(settled bool) Explanation {
	e := Explanation{Busy: s.busy(), Others: !s.known, Failing: s.failing, Unsearched: s.unsearched,
		AtOnce: s.atOnce}
	var texts []string
	for _, f := range s.found {
		if f.best >= scheduling.Taken && !e.Busy {
			continue
		}
		e.Never = e.Never || settled && f.best <= scheduling.TooFew
		e.Unoffered = e.Unoffered || f.best == scheduling.OtherClass
		e.Short = e.Short || f.best > scheduling.OtherClass && f.best <= scheduling.TooFew
		texts = append(texts, f.texts...)
	}
	e.Short = e.Short && !e.Unoffered
	e.Message = strings.Join(texts, ". ")
	if e.Never {
		e.Message = never + e.Message
	}
	return e
}
