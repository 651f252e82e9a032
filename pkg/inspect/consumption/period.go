// SPDX-License-Identifier: Apache-2.0

package consumption

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// Period is what Prometheus has of claims over a time that ends now.
type Period struct {
	Granted []Granted
	Used    []Used
	// Notes say what it lacks, each in a sentence.
	Notes []string
}

// Series are the labels of what is a container's of a GPU, as metrics have them (docs/metrics.md).
type Series struct{ Namespace, Pod, Container, Claim, UUID string }

// Granted is what was granted.
type Granted struct {
	Series
	MostGiB, GiBHours float64
	// Present is for how long it was, Seen for how much of that it is known what was used of the GPU. Age is how long
	// ago it began.
	Present, Seen, Age time.Duration
}

// Used is what was used of that; a container without processes has no such series.
type Used struct {
	Series
	MostGiB, P99GiB, GiBHours float64
}

// User is a pod, or a claim that no single pod uses, with all that it had.
type User struct {
	Workload
	// Pod is empty where it is a claim, Gone where the pod is not there any more.
	Pod     string
	Gone    bool
	Granted []Granted
	Used    []Used
}

// unseenMost is of how much of its time it may be unknown what somebody used.
const unseenMost = 0.05

// Unseen reports whether too little is known of what was used of grants.
func Unseen(granted []Granted) bool {
	var present, seen time.Duration
	for _, g := range granted {
		present, seen = present+g.Present, seen+g.Seen
	}
	return float64(present-seen) > unseenMost*float64(present)
}

// Users are those who had GPUs, in order. Series of use are theirs who have the claim, whatever pod they name.
func (p Period) Users(workloads Workloads) []User {
	type who struct{ namespace, pod, claim string }
	found, ofClaim := map[who]*User{}, map[name]who{}
	for _, g := range p.Granted {
		of := who{g.Namespace, g.Pod, ""}
		if g.Pod == "" {
			of.claim = g.Claim
		}
		ofClaim[name{g.Namespace, g.Claim}] = of
		if found[of] == nil {
			found[of] = &User{Workload: workloads.Claim(g.Namespace, g.Claim)}
			if g.Pod != "" {
				found[of] = &User{Workload: workloads.Pod(g.Namespace, g.Pod), Pod: g.Pod,
					Gone: !workloads.There(g.Namespace, g.Pod)}
			}
		}
		found[of].Granted = append(found[of].Granted, g)
	}
	for _, u := range p.Used {
		for claim := range strings.SplitSeq(u.Claim, ",") {
			if of, known := ofClaim[name{u.Namespace, claim}]; known {
				found[of].Used = append(found[of].Used, u)
				break
			}
		}
	}
	var out []User
	for _, of := range slices.SortedFunc(maps.Keys(found), func(a, b who) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.pod, b.pod), cmp.Compare(a.claim, b.claim))
	}) {
		out = append(out, *found[of])
	}
	return out
}

// Shares are what the users had, and used where enough of that was seen.
func Shares(users []User) []Share {
	var out []Share
	for _, user := range users {
		var hours, used, p99, peak, most float64
		for _, g := range user.Granted {
			hours, most = hours+g.GiBHours, most+g.MostGiB
		}
		for _, u := range user.Used {
			used, p99, peak = used+u.GiBHours, p99+u.P99GiB, peak+u.MostGiB
		}
		share := Share{Workload: user.Workload, Pod: user.Pod,
			Amounts: Amounts{GrantedGiBHours: &hours, PodGrantedGiB: &most}}
		if !Unseen(user.Granted) {
			share.UsedGiBHours, share.PodP99GiB, share.PodPeakGiB = &used, &p99, &peak
		}
		out = append(out, share)
	}
	return out
}
