// SPDX-License-Identifier: Apache-2.0

package rightsize

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/common/model"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/consumption"
)

// LeastSeen is for how long a workload has to have been seen: most have a rhythm of a day.
const LeastSeen = 24 * time.Hour

// filled is the part of a share from which on its program may be one that takes all that it gets.
const filled = 0.95

// Verdict is what to do about a setting.
type Verdict string

// The verdicts.
const (
	Shrink Verdict = "shrink"
	Grow   Verdict = "grow"
	Keep   Verdict = "keep"
	// Wait is that too little was seen to advise, Skip that it is not sized.
	Wait Verdict = "wait"
	Skip Verdict = "skip"
)

// Input is what is decided by.
type Input struct {
	Settings []Setting
	Users    []consumption.User
	// Headroom is the part of a peak that is to be free above it.
	Headroom float64
	// LargestGiB is how much the largest GPU has.
	LargestGiB int64

	byWorkload map[consumption.Workload][]consumption.User
}

// Report is what is advised. Its JSON form is an interface: fields are added, never renamed.
type Report struct {
	// Since is how far back was looked.
	Since    string  `json:"since"`
	Headroom float64 `json:"headroom"`
	// FreesGiB is what all that shrinks gives back, less what grows.
	FreesGiB int64    `json:"freesGiB"`
	Advice   []Advice `json:"advice"`
	Notes    []string `json:"notes,omitempty"`
}

// Advice is what is advised for a setting.
type Advice struct {
	Namespace string   `json:"namespace"`
	Workloads []string `json:"workloads"`
	// Of is what has the amounts, such as "container main".
	Of string `json:"of,omitempty"`
	// The amounts are of each of its GPUs.
	GrantedGiB int64   `json:"grantedGiB,omitempty"`
	PeakGiB    float64 `json:"peakGiB"`
	NeedsGiB   int64   `json:"needsGiB,omitempty"`
	GPUs       int64   `json:"gpus,omitempty"`
	Pods       int     `json:"pods"`
	// Seen is for how long it was.
	Seen    string  `json:"seen,omitempty"`
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why"`
	// Command changes it; where nothing can, Write is what to write.
	Command string `json:"command,omitempty"`
	Write   string `json:"write,omitempty"`
}

// Of advises on the workloads of a namespace, or of all if it is empty, that have pods.
func Of(known consumption.Known, headroom float64, namespace string) *Report {
	settings := slices.DeleteFunc(Settings(known.Pods, known.In.Claims), func(s Setting) bool {
		return namespace != "" && s.Namespace() != namespace
	})
	in := Input{Settings: settings, Users: known.Users, Headroom: headroom}
	for _, node := range known.Table.Nodes {
		for _, gpu := range node.GPUs {
			in.LargestGiB = max(in.LargestGiB, gpu.MemoryGiB.Total)
		}
	}
	report := Decide(in)
	report.Since, report.Notes = known.Since, known.Notes
	return report
}

// Decide advises.
func Decide(in Input) *Report {
	in.byWorkload = map[consumption.Workload][]consumption.User{}
	for _, u := range in.Users {
		in.byWorkload[u.Workload] = append(in.byWorkload[u.Workload], u)
	}
	report := &Report{Headroom: in.Headroom, Advice: []Advice{}}
	for _, s := range in.Settings {
		a := in.advise(s)
		if a.Verdict == Shrink || a.Verdict == Grow {
			shares := int64(s.pods)
			if s.in == inClaim {
				shares = 1 // whoever uses it
			}
			report.FreesGiB += (a.GrantedGiB - a.NeedsGiB) * s.gpus * shares
			a.Command, a.Write = s.write(a.NeedsGiB)
		}
		report.Advice = append(report.Advice, a)
	}
	return report
}

func (in Input) advise(s Setting) Advice {
	a := Advice{Namespace: s.namespace, Workloads: s.users(), Of: s.of(), GrantedGiB: s.gib, GPUs: s.gpus, Pods: s.pods}
	if s.skip != "" {
		a.Verdict, a.Why = Skip, s.skip
		return a
	}
	seen := in.seen(s)
	a.PeakGiB, a.Seen = max(seen.living, seen.gone), model.Duration(seen.long.Truncate(time.Minute)).String()
	switch {
	case seen.unknown:
		a.Verdict, a.Why = Wait, "what it used is not known for part of its time"
	case seen.long < LeastSeen:
		a.Verdict, a.Why = Wait, "it was seen for less than a day"
	default:
		// Pods that are gone are this workload's by their names alone: for them it keeps what it has, and gets no more.
		a.NeedsGiB = max(in.needs(seen.living), min(in.needs(seen.gone), s.gib))
		a.judge(in.LargestGiB)
	}
	return a
}

// judge compares what it has with what it needs.
func (a *Advice) judge(largest int64) {
	switch {
	case a.NeedsGiB < a.GrantedGiB && a.PeakGiB == 0:
		a.Verdict, a.Why = Shrink, "it never used its GPU"
	case a.NeedsGiB < a.GrantedGiB:
		a.Verdict, a.Why = Shrink, fmt.Sprintf("it never used more than %.1f GiB", a.PeakGiB)
	case a.NeedsGiB == a.GrantedGiB:
		a.Verdict, a.Why = Keep, "its peak needs what it has"
	case a.NeedsGiB > largest:
		a.Verdict, a.Why = Keep, "it needs more, and no GPU has that"
	case a.PeakGiB >= filled*float64(a.GrantedGiB):
		a.Verdict, a.Why = Grow, "it filled its share; a program that takes all that it gets always does"
	default:
		a.Verdict, a.Why = Grow, "above its peak is less room than asked for"
	}
}

// needs is a peak with headroom, in whole GiB, of which shares are made; at least one.
func (in Input) needs(peak float64) int64 { return max(1, int64(math.Ceil(peak*(1+in.Headroom)))) }

// seen is what was seen of a setting: the peaks on one GPU of pods that are there, and of others.
type seen struct {
	living, gone float64
	long         time.Duration
	unknown      bool
}

func (in Input) seen(s Setting) seen {
	var out seen
	var granted []consumption.Granted
	// Where only one container has limits, the pod's init containers and sidecars use what it has.
	alone := !slices.ContainsFunc(in.Settings, func(o Setting) bool {
		return o.in == inLimits && o.workload == s.workload && o.key != s.key
	})
	for i, w := range s.workloads {
		var oldest, together time.Duration
		users := in.byWorkload[w]
		if s.in == inClaim {
			users = slices.DeleteFunc(slices.Clone(in.Users), func(u consumption.User) bool { return !s.has(u) })
		}
		for _, u := range users {
			var long time.Duration
			for _, g := range u.Granted {
				long, oldest = max(long, g.Seen), max(oldest, g.Age)
			}
			together, granted = together+long, append(granted, u.Granted...)
			out.add(u, func(of consumption.Used) bool { return alone || s.container == "" || of.Container == s.container })
		}
		// Pods beside each other are not seen for longer, and one that came now and then not for the time between.
		if long := min(oldest, together); i == 0 || long < out.long {
			out.long = long
		}
	}
	for _, u := range in.Users {
		if s.mayHaveHad(u) {
			out.add(u, func(consumption.Used) bool { return true })
		}
	}
	out.unknown = consumption.Unseen(granted)
	return out
}

// add takes in the peaks of a user. Containers that share a GPU may have had theirs at the same time.
func (s *seen) add(u consumption.User, is func(consumption.Used) bool) {
	peaks := map[string]float64{}
	for _, used := range u.Used {
		if is(used) {
			peaks[used.UUID] += used.MostGiB
		}
	}
	for _, peak := range peaks {
		if u.Gone {
			s.gone = max(s.gone, peak)
		} else {
			s.living = max(s.living, peak)
		}
	}
}

// mayHaveHad reports whether a pod that is gone, as of a CronJob that does not run now, may have been made with the
// template: it had as much of a GPU, and nobody knows its workload.
func (s Setting) mayHaveHad(u consumption.User) bool {
	return s.in == inTemplate && u.Gone && u.Kind == consumption.KindPod && s.namespace == u.Namespace &&
		slices.ContainsFunc(u.Granted, func(g consumption.Granted) bool { return int64(g.MostGiB) == s.gib })
}

// has reports whether a user has the setting's claim.
func (s Setting) has(u consumption.User) bool {
	return s.namespace == u.Namespace && slices.ContainsFunc(u.Granted, func(g consumption.Granted) bool {
		return g.Claim == s.object
	})
}
