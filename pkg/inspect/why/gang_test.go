// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
)

// gangOf has the pod team-a/train-0 wait with so many others, each for a share, of whom some
// have a node.
func gangOf(in *why.Input, count, placed, least int, memory string) {
	in.Group = &why.Group{Name: "train", Least: least}
	for i := range count {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: fmt.Sprint("train-", i)}}
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("train")}
		claims := []*resourceapi.ResourceClaim{asking("team-a", pod.Name+"-gpu", "share.gpu.aliyun.com", memory)}
		if i >= count-placed {
			pod.Spec.NodeName = "n9"
		}
		if i == 0 {
			in.Pod, in.PodClaims = pod, claims
		}
		in.Group.Members = append(in.Group.Members, why.Member{Pod: pod, Claims: claims})
	}
}

// On n2 are two GPUs of 22Gi; the pods cannot be on n3.
func TestGangs(t *testing.T) {
	for name, test := range map[string]struct {
		count, placed, least int
		memory               string
		want                 []string
	}{
		"too few find room": {4, 1, 4, "15Gi", []string{
			"Pod team-a/train-0 waits for its gang: its own GPUs are free on node n2 (gpu-0-share), those of the others that " +
				"are needed at once are not.",
			"Gang: PodGroup train has 4 pods, of which 1 has a node; 4 are needed at once.",
			"Of the 3 that wait, placed one after the other, 2 find their GPUs now (2 on node n2): the gang waits for " +
				"room for 1 more.",
		}},
		"enough find room": {3, 0, 2, "15Gi", []string{
			"waits, but not for GPUs: its own are free on node n2 (gpu-0-share), and its gang finds all that it needs.",
			"PodGroup train has 3 pods, of which 0 have a node; 2 are needed at once.",
			"2 find their GPUs now (2 on node n2): the gang fits.",
		}},
		"one is not there, and the others find room": {3, 0, 4, "1Gi", []string{
			"Pod team-a/train-0 waits for its gang: 1 of its pods is not there; its own GPUs are free on node n2 " +
				"(gpu-0-share).",
			"Gang: PodGroup train has 3 pods, of which 0 have a node; 4 are needed at once.",
			"3 find their GPUs now (3 on node n2): 1 of its pods is not there.\n",
		}},
		"some are not there, and the others find no room": {3, 0, 5, "15Gi", []string{
			"waits for its gang: 2 of its pods are not there; its own GPUs are free on node n2 (gpu-0-share), those of the " +
				"others that are needed at once are not.",
			"2 find their GPUs now (2 on node n2): the gang waits for room for 3 more. 2 of its pods are not there.\n",
		}},
		"some are not there, and not all are looked at": {250, 0, 300, "90Gi", []string{
			"0 find their GPUs now: the gang waits for room for at least 250 more, even if the other 50 find theirs. 50 of " +
				"its pods are not there.\n",
		}},
		"none does": {2, 0, 2, "23Gi", []string{
			"waits: the pod can never be scheduled",
			"Of the 2 that wait, placed one after the other, 0 find their GPUs now: the gang waits for room for 2 " +
				"more.",
		}},
		// Each GPU takes 20 shares of 1Gi.
		"more than are looked at, which may find room": {250, 0, 60, "1Gi", []string{
			"waits: its own GPUs are free on node n2 (gpu-0-share); whether its gang finds all that it needs is open, as " +
				"not all of its pods were looked at to the end.",
			"Of the 250 that wait, 200 were looked at; placed one after the other, 40 find their GPUs now (40 on node n2): " +
				"whether the gang fits is open, as the other 50 were not looked at to the end.",
		}},
		"more than are looked at, too few at best": {250, 0, 100, "1Gi", []string{
			"waits for its gang: ",
			"40 find their GPUs now (40 on node n2): the gang waits for room for at least 10 more, even if the other 50 " +
				"find theirs.",
		}},
		"more than are looked at, enough anyway": {250, 0, 40, "1Gi", []string{
			"and its gang finds all that it needs.", "40 find their GPUs now (40 on node n2): the gang fits.",
		}},
		"nobody says how many": {2, 0, 0, "15Gi", []string{"how many have to find room at once is not known"}},
	} {
		t.Run(name, func(t *testing.T) {
			in := stage(t)
			gangOf(&in, test.count, test.placed, test.least, test.memory)
			text := printed(t, in)
			expect.Says(t, text, test.want...)
		})
	}
}

// Nobody tries for what has no claims yet, and what is being deleted is on its way out.
func TestGangOfPodsThatCannotBePlaced(t *testing.T) {
	var got struct {
		Gang struct {
			Members, Missing   int
			NoRoom, Incomplete []string
			Fits               bool
		}
	}
	const noRoom = "waits for room"
	for name, test := range map[string]struct {
		change                       func(members []why.Member)
		members, missing, incomplete int
		want, not                    []string
	}{
		"claims that are not there": {func(m []why.Member) { m[2].Incomplete = true }, 3, 0, 1, []string{
			"waits for its gang: 1 of its pods waits for claims that are not there; its own GPUs are free on node n2 " +
				"(gpu-0-share).",
			"Of the 3 that wait, placed one after the other, 2 find their GPUs now (2 on node n2): 1 of its pods waits for " +
				"claims that are not there.\n"}, []string{noRoom}},
		"deletion": {func(m []why.Member) { m[2].Pod.DeletionTimestamp = &metav1.Time{} }, 2, 1, 0, []string{
			"PodGroup train has 2 pods, of which 0 have a node; 3 are needed at once.",
			"Of the 2 that wait, placed one after the other, 2 find their GPUs now (2 on node n2): 1 of its pods is not " +
				"there.\n"}, []string{noRoom}},
		"both": {func(m []why.Member) { m[1].Incomplete, m[2].Pod.DeletionTimestamp = true, &metav1.Time{} }, 2, 1, 1,
			[]string{"1 find their GPUs now (1 on node n2): 1 of its pods is not there, and 1 waits for claims that are not " +
				"there.\n"}, []string{noRoom}},
	} {
		t.Run(name, func(t *testing.T) {
			in := stage(t)
			gangOf(&in, 3, 0, 3, "15Gi")
			test.change(in.Group.Members)
			checkSays(t, printed(t, in), test.want, test.not)
			got.Gang.NoRoom, got.Gang.Incomplete, got.Gang.Missing = nil, nil, 0
			_, text := forPrograms(t, in, &got)
			if g := got.Gang; g.Members != test.members || g.Missing != test.missing || g.Fits || len(g.NoRoom) > 0 ||
				len(g.Incomplete) != test.incomplete {
				t.Errorf("for programs it is\n%s", text)
			}
		})
	}
}

// forPrograms answers, and reads the answer's JSON, which it returns too, as a program does.
func forPrograms(t *testing.T, in why.Input, into any) (*why.Answer, string) {
	t.Helper()
	answer, err := why.Of(t.Context(), in)
	expect.NoError(t, err)
	data, err := json.MarshalIndent(answer, "", "  ")
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatalf("%v in\n%s", err, data)
	}
	return answer, string(data)
}

// Programs are not told that a gang does not fit, or of a pod that it has no room, unless
// somebody looked.
func TestGangOfWhichNotAllAreLookedAt(t *testing.T) {
	in := stage(t)
	gangOf(&in, 250, 0, 60, "1Gi")
	var got struct {
		Gang struct {
			Fits        *bool
			FindRoom    []struct{ Pod string }
			NoRoom      []string
			NotLookedAt int
		}
	}
	forPrograms(t, in, &got)
	g := got.Gang
	if g.Fits != nil || len(g.FindRoom) != 40 || len(g.NoRoom) != 160 || g.NotLookedAt != 50 {
		t.Errorf("fits %v; %d find room, %d do not, %d were not looked at", g.Fits, len(g.FindRoom), len(g.NoRoom),
			g.NotLookedAt)
	}
}

func TestAnswersForPrograms(t *testing.T) {
	in := stage(t)
	gangOf(&in, 4, 1, 4, "15Gi")
	var got struct {
		Headline string
		Fits     bool
		Nodes    []struct {
			Name  string
			GPUs  int
			Lacks []string
		}
		Gang struct {
			Members, Placed, Needed int
			Fits                    bool
			FindRoom                []struct{ Pod, Node string }
			NoRoom                  []string
		}
	}
	answer, text := forPrograms(t, in, &got)
	g := got.Gang
	if !got.Fits || !strings.HasPrefix(got.Headline, "Pod team-a/train-0 waits") || len(got.Nodes) != 3 ||
		got.Nodes[0].Name != "n2" || g.Members != 4 || g.Placed != 1 || g.Needed != 4 || g.Fits || len(g.FindRoom) != 2 ||
		g.FindRoom[0].Pod != "train-0" || g.FindRoom[0].Node != "n2" || fmt.Sprint(g.NoRoom) != "[train-2]" {
		t.Errorf("got\n%s", text)
	}
	if data, err := yaml.Marshal(answer); err != nil || !strings.Contains(string(data), "needed: 4\n") {
		t.Errorf("YAML: %v\n%s", err, data)
	}
}
