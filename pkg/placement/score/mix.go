// SPDX-License-Identifier: Apache-2.0

package score

import "strconv"

const (
	// mixPods is how many pods the mix remembers.
	mixPods = 1000
	// mixKinds is how many kinds of them, the most frequent, count for how GPUs are cut.
	mixKinds = 256
)

// mix is what the last pods with GPUs asked for.
type mix struct {
	// last are they, in a ring: next is the oldest once there are mixPods.
	last []learned
	next int
	// since is how many pods were learned since typical was taken.
	since int
	// typical are the kinds, in the order in which they came.
	typical []weighted
}

// learned is a pod, with its askKey.
type learned struct {
	key string
	ask Ask
}

// weighted is a kind of pods, and how many of them there were.
type weighted struct {
	ask    Ask
	number int
}

// learn remembers one more pod, and reports whether typical is another then: after a quarter as many pods as it was taken
// of, for whenever it is another, all scores are calculated again.
func (m *mix) learn(pod learned) bool {
	if len(m.last) < mixPods {
		m.last = append(m.last, pod)
	} else {
		m.last[m.next] = pod
		m.next = (m.next + 1) % mixPods
	}
	m.since++
	if 4*m.since < len(m.last) {
		return false
	}
	m.since, m.typical = 0, nil
	at := map[string]int{}
	for i := range m.last {
		pod := &m.last[(m.next+i)%len(m.last)]
		if n, is := at[pod.key]; is {
			m.typical[n].number++
			continue
		}
		at[pod.key] = len(m.typical)
		m.typical = append(m.typical, weighted{pod.ask, 1})
	}
	return true
}

// askKey identifies asks that are alike.
func askKey(a *Ask) string {
	return strconv.FormatInt(a.CPU, 36) + " " + strconv.FormatInt(a.Memory, 36) + " " + shapeKey(a.Requests)
}

// shapeKey identifies requests for which the same GPUs have room.
func shapeKey(requests []Request) string {
	b := make([]byte, 0, 64)
	for i := range requests {
		r := &requests[i]
		for _, n := range []int64{int64(r.Count), int64(r.Mode), r.Memory, r.Cores} {
			b = append(strconv.AppendInt(b, n, 36), ' ')
		}
		for _, model := range r.Models {
			b = strconv.AppendQuote(b, model)
		}
		b = append(b, ';')
	}
	return string(b)
}
