// SPDX-License-Identifier: Apache-2.0

package why

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Group is the group of pods that a pod is placed with.
type Group struct {
	// Name is its PodGroup's, Least how many of its pods have to find room at once, 0 where that
	// is not known or any number may.
	Name  string
	Least int
	// Members are its pods that have not ended.
	Members []Member
}

// Member is a pod of a group.
type Member struct {
	Pod *corev1.Pod
	// Claims are those that are there; Incomplete says that some are not.
	Claims     []*resourceapi.ResourceClaim
	Incomplete bool
}

// Gang is what there is to say of the group of a pod that waits.
type Gang struct {
	Name string `json:"name"`
	// Members is how many pods it has, Placed how many of them have a node, Needed how many
	// have to have one at once, as far as that is known, Missing how many of those are not
	// there. One that is being deleted and has no node is none: it gets none any more.
	Members int `json:"members"`
	Placed  int `json:"placed"`
	Needed  int `json:"needed,omitempty"`
	Missing int `json:"missing,omitempty"`
	// Fits reports whether so many find their GPUs now, nil where that depends on those not looked
	// at. Of those that wait, FindRoom lists where they do, placed one after the other, NoRoom
	// those that do not, Incomplete those whose claims are not all there; NotLookedAt counts
	// those for which nobody tried, or not to the end.
	Fits        *bool       `json:"fits,omitempty"`
	FindRoom    []Placement `json:"findRoom,omitempty"`
	NoRoom      []string    `json:"noRoom,omitempty"`
	Incomplete  []string    `json:"incomplete,omitempty"`
	NotLookedAt int         `json:"notLookedAt,omitempty"`
	// HeldBack says that so many find them once nodes let go of what they hold back to spread shares.
	HeldBack bool `json:"heldBack,omitempty"`
}

// Placement is a pod and the node on which it finds room.
type Placement struct {
	Pod  string `json:"pod"`
	Node string `json:"node"`
}

// gangMost is for how many pods it is found out where they fit.
const gangMost = 200

// fitGang says of the group of a pod that waits, which is known, whether it fits as a whole.
func fitGang(ctx context.Context, in Input, classOf func(corev1.ResourceName) *resourceapi.DeviceClass) (*Gang, error) {
	g := &Gang{Name: in.Group.Name, Needed: in.Group.Least}
	in.Nodes = in.ByName()
	members := slices.SortedFunc(slices.Values(in.Group.Members), func(a, b Member) int {
		return cmp.Or(cmp.Compare(len(a.Pod.Name), len(b.Pod.Name)), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	var wanted []scheduling.Pod
	for _, m := range members {
		if m.Pod.Spec.NodeName == "" && m.Pod.DeletionTimestamp != nil {
			continue
		}
		g.Members++
		switch {
		case m.Pod.Spec.NodeName != "":
			g.Placed++
		case m.Incomplete:
			g.Incomplete = append(g.Incomplete, m.Pod.Name)
		case len(wanted) >= gangMost:
			g.NotLookedAt++
		default:
			claims := m.Claims
			own := scheduling.ClaimForExtended(m.Pod, classOf)
			if own != nil && m.Pod.Status.ExtendedResourceClaimStatus == nil {
				own.Name += " of pod " + m.Pod.Name
				claims = append(claims[:len(claims):len(claims)], own)
			}
			wanted = append(wanted, scheduling.Pod{Pod: in.anywhere(m.Pod), Claims: claims})
		}
	}
	g.Missing = max(0, g.Needed-g.Members)
	placed, err := in.Engine.Place(ctx, in.Snapshot, wanted)
	if err != nil {
		return nil, err
	}
	for i, on := range placed {
		switch {
		case on.Unsearched:
			g.NotLookedAt++
		case on.Node == "":
			g.NoRoom = append(g.NoRoom, wanted[i].Pod.Name)
		default:
			g.FindRoom = append(g.FindRoom, Placement{wanted[i].Pod.Name, on.Node})
		}
	}
	switch lacks := max(g.Needed, 1) - g.Placed - len(g.FindRoom); {
	case lacks <= 0:
		g.Fits = ptr.To(true)
	case lacks > g.NotLookedAt:
		g.Fits = ptr.To(false)
		g.HeldBack, err = in.heldBack(ctx, wanted, len(g.FindRoom)+lacks)
	}
	return g, err
}

// heldBack reports whether so many pods find room once nodes let go of what they hold back to spread shares.
func (in Input) heldBack(ctx context.Context, wanted []scheduling.Pod, least int) (bool, error) {
	letGo, from := in.Snapshot.LetGo()
	if len(from) == 0 {
		return false, nil
	}
	placed, err := in.Engine.Place(ctx, letGo, wanted)
	if err != nil {
		return false, err
	}
	return len(slices.DeleteFunc(placed, func(on scheduling.Placed) bool { return on.Node == "" })) >= least, nil
}

// text is what there is to say of it, in lines.
func (g *Gang) text() []string {
	has := "have"
	if g.Placed == 1 {
		has = "has"
	}
	needed := "how many have to find room at once is not known"
	if g.Needed > 0 {
		needed = fmt.Sprintf("%d are needed at once", g.Needed)
	}
	first := fmt.Sprintf("Gang: PodGroup %s has %s, of which %d %s a node; %s.", g.Name, number(g.Members, "pod"),
		g.Placed,
		has, needed)
	tried := len(g.FindRoom) + len(g.NoRoom)
	lookedAt := ""
	if g.NotLookedAt > 0 {
		lookedAt = fmt.Sprintf("%d were looked at; ", tried)
	}
	room := fmt.Sprintf("Of the %d that wait, %splaced one after the other, %d find their GPUs now",
		tried+len(g.Incomplete)+g.NotLookedAt, lookedAt, len(g.FindRoom))
	if len(g.FindRoom) > 0 {
		room += " (" + g.where() + ")"
	}
	if verdict := g.verdict(); verdict != "" {
		room += ": " + verdict
	}
	return []string{first, room + "."}
}

// verdict reports whether it fits and, where not, what it waits for: for room only where a pod that is there finds
// none.
func (g *Gang) verdict() string {
	lacks := g.Needed - g.Placed - len(g.FindRoom)
	var waits []string
	switch {
	case g.Fits == nil:
		return fmt.Sprintf("whether the gang fits is open, as the other %d were not looked at to the end", g.NotLookedAt)
	case *g.Fits:
		return "the gang fits"
	case g.HeldBack:
		return "the gang waits for what nodes hold back for a moment, as shares are spread"
	case g.Needed == 0 || len(g.NoRoom) == 0:
	case g.NotLookedAt > 0:
		waits = append(waits, fmt.Sprintf("the gang waits for room for at least %d more, even if the other %d find theirs",
			lacks-g.NotLookedAt, g.NotLookedAt))
	default:
		waits = append(waits, fmt.Sprintf("the gang waits for room for %d more", lacks))
	}
	if notThere := g.notThere(); notThere != "" {
		waits = append(waits, notThere)
	}
	return strings.Join(waits, ". ")
}

// notThere says what of it is not there, pods and claims; it is empty where everything is.
func (g *Gang) notThere() string {
	var parts []string
	for _, of := range []struct {
		n         int
		one, many string
	}{
		{g.Missing, "is not there", "are not there"},
		{len(g.Incomplete), "waits for claims that are not there", "wait for claims that are not there"},
	} {
		if of.n == 0 {
			continue
		}
		text, says := fmt.Sprint(of.n), of.many
		if len(parts) == 0 {
			text += " of its pods"
		}
		if of.n == 1 {
			says = of.one
		}
		parts = append(parts, text+" "+says)
	}
	return strings.Join(parts, ", and ")
}

// where counts the pods on each node, in the order of the nodes.
func (g *Gang) where() string {
	count := map[string]int{}
	var nodes []string
	for _, p := range g.FindRoom {
		if count[p.Node] == 0 {
			nodes = append(nodes, p.Node)
		}
		count[p.Node]++
	}
	parts := make([]string, 0, len(nodes))
	for _, node := range nodes {
		parts = append(parts, fmt.Sprintf("%d on node %s", count[node], node))
	}
	if more := len(parts) - nodesMost; more > 0 {
		parts = append(parts[:nodesMost], fmt.Sprintf("and %d more nodes", more))
	}
	return strings.Join(parts, ", ")
}
