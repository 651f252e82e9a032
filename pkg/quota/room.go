// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Room is what ResourceQuotas of a namespace leave for claims.
type Room struct {
	quotas []*limits
	amount bool
}

type limits struct {
	name string
	// hard and used are of the names that are about claims.
	hard, used map[string]int64
}

// NewRoom reads the quotas.
func NewRoom(quotas []corev1.ResourceQuota) *Room {
	r := &Room{}
	for i := range quotas {
		q := &quotas[i]
		// What is enforced is in the status, once the quota has been calculated.
		hard := q.Status.Hard
		if len(hard) == 0 {
			hard = q.Spec.Hard
		}
		l := &limits{name: q.Name, hard: map[string]int64{}, used: map[string]int64{}}
		for name, most := range hard {
			used := q.Status.Used[name]
			if !isOfClaims(string(name)) || isOfACK(string(name)) && used.IsZero() {
				continue
			}
			l.hard[string(name)], l.used[string(name)] = whole(most), whole(used)
		}
		for name := range q.Spec.Hard {
			r.amount = r.amount || IsClass(classOf(string(name))) && (!isOfACK(string(name)) || l.used[string(name)] > 0)
		}
		if len(l.hard) > 0 {
			r.quotas = append(r.quotas, l)
		}
	}
	slices.SortFunc(r.quotas, func(a, b *limits) int { return strings.Compare(a.name, b.name) })
	return r
}

// isOfACK reports whether a name is of a quota as on ACK. It counts where the option is installed alone, which shows by
// that it does.
func isOfACK(name string) bool { return name == LineMemory || name == LineCores }

func isOfClaims(name string) bool { return name == nameClaims || classOf(name) != "" }

func whole(q resource.Quantity) int64 { return q.Value() }

// Any reports whether any of the quotas is about claims.
func (r *Room) Any() bool { return len(r.quotas) > 0 }

// Amounts reports whether any counts GiB or percent, so that claims of the namespace are
// Counted.
func (r *Room) Amounts() bool { return r.amount }

// Take takes the room of claims that are charged so much. Where a quota leaves less, it
// takes nothing and says which one, in words.
func (r *Room) Take(asked Usage) string {
	for _, l := range r.quotas {
		for _, name := range slices.Sorted(maps.Keys(l.hard)) {
			if n := asked.Of(name); n > 0 && l.used[name]+n > l.hard[name] {
				return l.short(name, n)
			}
		}
	}
	for _, l := range r.quotas {
		for name := range l.hard {
			l.used[name] += asked.Of(name)
		}
	}
	return ""
}

func (l *limits) short(name string, asked int64) string {
	what := strings.TrimPrefix(name, prefixExtended)
	switch classOf(name) {
	case ClassGiB:
		what = "GiB of GPU memory"
	case ClassPercent:
		what = "percent of GPUs' compute"
	}
	text := fmt.Sprintf("ResourceQuota %s allows the namespace %d %s, of which %d are used, and the pod asks for %d",
		l.name,
		l.hard[name], what, l.used[name], asked)
	if asked > l.hard[name] {
		return text + ": it cannot run unless the quota is raised"
	}
	return text + ": it goes on by itself when enough of them are free again"
}
