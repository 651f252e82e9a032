// SPDX-License-Identifier: Apache-2.0

package score

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// sharing is a mode of the caller's, slicing another.
const sharing, slicing = Whole << 1, Whole << 2

// gpus are GPUs of 100 GiB, of which so much is left.
func gpus(model string, left ...int64) []GPU {
	var out []GPU
	for _, free := range left {
		g := GPU{Model: model, Modes: sharing, Memory: 100, Free: free, Cores: 100}
		if free == 100 {
			g.Modes |= Whole | slicing
		}
		out = append(out, g)
	}
	return out
}

func share(memory int64, models ...string) Request {
	return Request{Count: 1, Mode: sharing, Memory: memory, Models: models}
}

func whole(count int, models ...string) Request {
	return Request{Count: count, Mode: Whole, Models: models}
}

// first has ties decided for the first one.
func first(int) int { return 0 }

// lefts are what is left of each of the GPUs, in GiB.
func lefts(n Node) []int64 {
	var out []int64
	for _, g := range n.GPUs {
		out = append(out, g.Free)
	}
	return out
}

func TestPodsHaveTheFullestGPUsWithRoom(t *testing.T) {
	limited := func(g []GPU, cores ...int64) []GPU {
		for i := range g {
			g[i].Cores = cores[i]
		}
		return g
	}
	for _, tc := range []struct {
		name string
		gpus []GPU
		ask  []Request
		want []int64
	}{
		{"a share the fullest with room", gpus("", 100, 40, 20), []Request{share(30)}, []int64{100, 10, 20}},
		{"one of equal ones the first", gpus("", 100, 100), []Request{share(30)}, []int64{70, 100}},
		{"shares of one request different GPUs", gpus("", 50, 100), []Request{{Count: 2, Mode: sharing, Memory: 20}},
			[]int64{30, 80}},
		{"two requests one GPU, if it has room", gpus("", 100, 50), []Request{share(20), share(30)}, []int64{100, 0}},
		{"how full it is, its compute decides too", limited(gpus("", 60, 50), 30, 100),
			[]Request{{Count: 1, Mode: sharing, Memory: 10, Cores: 20}}, []int64{50, 50}},
		{"and too little of it is no room", limited(gpus("", 60, 50), 10, 100),
			[]Request{{Count: 1, Mode: sharing, Memory: 10, Cores: 20}}, []int64{60, 40}},
		{"whole GPUs those that are free", gpus("", 100, 90, 100, 100), []Request{whole(2)}, []int64{0, 90, 0, 100}},
		{"no more than there are", gpus("", 100, 90, 100, 100), []Request{whole(4)}, nil},
		{"no share larger than a rest", gpus("", 20, 20), []Request{share(30)}, nil},
		{"of the models that it names", append(gpus("a", 50), gpus("b", 100)...), []Request{share(30, "b", "c")},
			[]int64{50, 70}},
		{"and of no other", gpus("a", 50), []Request{share(30, "b", "c")}, nil},
		{"instances of a GPU that is in no other mode", gpus("", 50, 100),
			[]Request{{Count: 1, Mode: slicing, Memory: 20}}, []int64{50, 80}},
		{"GPUs that take no claims are no GPUs", []GPU{{Memory: 100, Free: 100, Cores: 100}}, []Request{share(1)}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := Node{CPU: 1000, Memory: 10, GPUs: tc.gpus}
			was := slices.Clone(tc.gpus)
			after, fits := before.With(Ask{CPU: 1000, Memory: 10, Requests: tc.ask})
			if fits != (tc.want != nil) {
				t.Fatalf("it fits: %v, want %v", fits, tc.want != nil)
			}
			if fits && (!slices.Equal(lefts(after), tc.want) || after.CPU != 0 || after.Memory != 0) {
				t.Errorf("left are %v, %d CPU, %d bytes, want %v, and neither CPU nor memory", lefts(after), after.CPU,
					after.Memory, tc.want)
			}
			if !slices.Equal(was, before.GPUs) {
				t.Errorf("the node was changed to %v", lefts(before))
			}
		})
	}
	for _, short := range []Ask{{CPU: 1001, Memory: 10}, {CPU: 1000, Memory: 11}} {
		if _, fits := (Node{CPU: 1000, Memory: 10}).With(short); fits {
			t.Errorf("%+v fits where there is less", short)
		}
	}
}

// A share has a GPU in its mode until it is free again, so nothing else goes there.
func TestGPUsAreInOneMode(t *testing.T) {
	n, fits := Node{GPUs: gpus("", 100)}.With(Ask{Requests: []Request{share(10)}})
	if !fits || n.GPUs[0].Modes != sharing {
		t.Fatalf("a share fits: %v, and leaves modes %b", fits, n.GPUs[0].Modes)
	}
	if _, fits = n.With(Ask{Requests: []Request{{Count: 1, Mode: slicing, Memory: 10}}}); fits {
		t.Error("an instance fits on a GPU with a share")
	}
}

// Where a case has no mix of its own, pods ask for half a GPU, 4 CPUs and 8 bytes, so that a GPU goes with 8 CPUs and
// 16 bytes. What is expected is calculated by hand.
func TestScoreIsThatOfTheFormula(t *testing.T) {
	half := Ask{CPU: 4, Memory: 8, Requests: []Request{share(50)}}
	any1, named := Ask{Requests: []Request{whole(1)}}, Ask{Requests: []Request{whole(1, "x")}}
	for _, tc := range []struct {
		name   string
		mix    []Ask
		node   Node
		others []Node
		ask    Ask
		// free are the GPUs that are left, want is the score without them.
		free, want float64
	}{
		{name: "nothing is lost", node: Node{16, 64, gpus("x", 100, 100)}, ask: half, free: 1.5, want: 0},
		{
			// Before 2 GPUs with 16 CPUs. After 1.5 with 4, which are enough for half a GPU.
			name: "CPU is missing for a GPU then", node: Node{16, 64, gpus("x", 100, 100)},
			ask: Ask{CPU: 12, Memory: 8, Requests: []Request{share(50)}}, free: 1.5, want: -1,
		},
		{
			// After 1.5 GPUs with 8 bytes, which are enough for half a GPU. CPU: 12 for 1.5.
			name: "memory is", node: Node{16, 64, gpus("x", 100, 100)},
			ask: Ask{CPU: 4, Memory: 56, Requests: []Request{share(50)}}, free: 1.5, want: -1,
		},
		{
			// Before 2 GPUs with 8 CPUs, 1 too many. After 1 with 7, 0.125 too many; typical pods fit before and after.
			name: "a GPU goes that had no CPU", node: Node{8, 64, gpus("x", 100, 100)},
			ask: Ask{CPU: 1, Memory: 1, Requests: []Request{whole(1)}}, free: 1, want: 0.875,
		},
		{
			// After 0.3 and 1 are free, of which a typical pod cannot have 0.3.
			name: "a rest is left that nobody asks for", node: Node{16, 64, gpus("x", 100, 100)},
			ask: Ask{CPU: 0, Memory: 0, Requests: []Request{share(70)}}, free: 1.3, want: -0.1 * 0.3,
		},
		{
			// Before, 0.4 of 1.4 are too small. After, 1.
			name: "a rest goes that nobody else asks for", node: Node{16, 64, gpus("x", 40, 100)},
			ask: Ask{Requests: []Request{share(40)}}, free: 1, want: 0.1 * 0.4,
		},
		{
			// After 0.4 GPUs with 8 CPUs, in which no typical pod fits.
			name: "no room is left", node: Node{8, 64, gpus("x", 100)},
			ask: Ask{Requests: []Request{share(60)}}, free: 0.4, want: -0.1 * 0.4,
		},
		{
			// After 1.5 GPUs with 2 CPUs: 1.25 too many, and no typical pod has CPU enough.
			name: "no CPU is left for a typical pod", node: Node{16, 64, gpus("x", 100, 100)},
			ask: Ask{CPU: 14, Requests: []Request{share(50)}}, free: 1.5, want: -1.25 - 0.1*1.5,
		},
		{
			// Of 4 GPUs that are asked for one is to be x, of which there are 2 of 4: 1/2 to 4/4.
			name: "others name the model", mix: []Ask{any1, named, any1, any1}, node: Node{1, 1, gpus("x", 100, 100)},
			others: []Node{{1, 1, gpus("y", 100, 100)}}, ask: any1, free: 1, want: -0.5 * 0.5,
		},
		{
			name: "others name another model", mix: []Ask{any1, named, any1, any1}, node: Node{1, 1, gpus("y", 100, 100)},
			others: []Node{{1, 1, gpus("x", 100, 100)}}, ask: any1,
			// A quarter of the pods can have nothing of 2 GPUs before, of 1 after.
			free: 1, want: 0.1 * 0.25,
		},
		{
			// The named pods ask for 3/2 of x, all for 4/4.
			name: "a model is never scarcer than all", mix: []Ask{named, named, named, any1},
			node: Node{1, 1, gpus("x", 100, 100)}, others: []Node{{1, 1, gpus("y", 100, 100)}}, ask: any1,
			free: 1, want: -0.5,
		},
		{name: "it has no room", node: Node{16, 64, gpus("x", 40)}, ask: half, want: math.Inf(-1)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := New()
			x.Set("n", tc.node)
			for i, other := range tc.others {
				x.Set(fmt.Sprint(i), other)
			}
			mix := tc.mix
			if mix == nil {
				mix = []Ask{half}
			}
			for _, a := range mix {
				x.Learn(a)
			}
			want := tc.want - 0.05*tc.free
			if got := scores(x, &Kind{Ask: tc.ask})["n"]; math.Abs(got-want) > 1e-12 && got != want {
				t.Errorf("the score is %v, want %v", got, want)
			}
		})
	}
}

// scores are those of all nodes for pods of a kind.
func scores(x *Index, k *Kind) map[string]float64 {
	out := map[string]float64{}
	for i, rank := range x.rank(k, Best) {
		out[x.nodes[i].name] = rank
	}
	return out
}

// Shares in GiB are more of a small GPU: of those that a pod can have, which are of 25 GiB on average, 10 are 0.4.
func TestMixCountsGPUsAsTheyAreOnAverage(t *testing.T) {
	sized := func(model string, memory int64) []GPU {
		return []GPU{{Model: model, Modes: sharing, Memory: memory, Free: memory, Cores: 100}}
	}
	x := New()
	x.Set("a", Node{100, 100, append(sized("small", 10), sized("large", 40)...)})
	x.Set("b", Node{100, 100, sized("huge", 1000)})
	x.Learn(Ask{CPU: 4, Memory: 2, Requests: []Request{share(10, "small", "large")}})
	scores(x, &Kind{})
	if x.demand.cpu != 10 || x.demand.memory != 5 {
		t.Errorf("a GPU goes with %v CPUs and %v bytes, want 10 and 5", x.demand.cpu, x.demand.memory)
	}
}

func TestBestNamesNodesInTheirOrder(t *testing.T) {
	x := New()
	half := Ask{CPU: 4, Memory: 8, Requests: []Request{share(50)}}
	x.Learn(half)
	x.Set("full", Node{64, 64, gpus("", 40, 40)})
	x.Set("fitting", Node{64, 64, gpus("", 50, 0)})
	x.Set("empty", Node{64, 64, gpus("", 100, 100)})
	x.Set("cuts", Node{64, 64, gpus("", 80, 0)})
	x.Set("poor", Node{4, 64, gpus("", 100, 100)})
	for _, tc := range []struct {
		setting Setting
		want    []string
	}{
		// Nothing is left on the first, a rest of 0.3 on the next, then 1.5 GPUs, and as many without CPU on the last.
		{Best, []string{"fitting", "cuts", "empty", "poor"}},
		{Binpack, []string{"fitting", "cuts", "empty", "poor"}},
		{Spread, []string{"empty", "poor", "cuts", "fitting"}},
	} {
		expect.Equal(t, tc.want, slices.Collect(x.Best(&Kind{Ask: half}, tc.setting, first)), "setting %s", tc.setting)
	}
}

func TestTiesAreDecidedByTheCaller(t *testing.T) {
	x := New()
	for i := range 4 {
		x.Set(fmt.Sprint(i), Node{64, 64, gpus("", 100)})
	}
	x.Set("4", Node{0, 64, gpus("", 100)})
	var asked []int
	got := slices.Collect(x.Best(&Kind{Ask: Ask{CPU: 1, Requests: []Request{share(1)}}}, Best, func(n int) int {
		asked = append(asked, n)
		return n - 1
	}))
	if !slices.Equal(got, []string{"3", "2", "1", "0"}) || !slices.Equal(asked, []int{4, 3, 2, 1}) {
		t.Errorf("named are %v of %v, want the last of 4, 3, 2 and 1", got, asked)
	}
}

// randomly makes nodes and asks of a seed.
type randomly struct{ *rand.Rand }

func (r randomly) node() Node {
	n := Node{CPU: r.Int64N(100), Memory: r.Int64N(100)}
	model := []string{"x", "y", "z"}[r.IntN(3)]
	for range 1 + r.IntN(8) {
		n.GPUs = append(n.GPUs, gpus(model, []int64{0, 20, 50, 70, 100, 100}[r.IntN(6)])...)
	}
	return n
}

func (r randomly) ask() Ask {
	a := Ask{CPU: r.Int64N(8), Memory: r.Int64N(8)}
	var models []string
	if r.IntN(3) == 0 {
		models = []string{"x", "y", "z"}[:1+r.IntN(2)]
	}
	a.Requests = []Request{share(10*(1+r.Int64N(9)), models...)}
	switch r.IntN(4) {
	case 0:
		a.Requests = []Request{whole(1<<r.IntN(4), models...)}
	case 1:
		a.Requests = append(a.Requests, share(10))
	}
	return a
}

// Whatever happened to nodes before, and in whatever order, the scores are those of an Index that was made of them as
// they are.
func TestScoresDependOnNodesAsTheyAre(t *testing.T) {
	for seed := range uint64(10) {
		r := randomly{rand.New(rand.NewPCG(seed, 0))}
		x, nodes := New(), map[string]Node{}
		var learned []Ask
		var kinds []*Kind
		for range 12 {
			kinds = append(kinds, &Kind{Ask: r.ask()})
		}
		same := func() {
			t.Helper()
			fresh := New()
			for _, a := range learned {
				fresh.Learn(a)
			}
			names := slices.Sorted(maps.Keys(nodes))
			r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			for _, name := range names {
				fresh.Set(name, nodes[name])
			}
			for _, k := range kinds {
				expect.Equal(t, scores(fresh, &Kind{Ask: k.Ask}), scores(x, k), "seed %d, %+v", seed, k.Ask)
			}
		}
		for event := range 600 {
			name := fmt.Sprint(r.IntN(30))
			switch r.IntN(8) {
			case 0:
				x.Delete(name)
				delete(nodes, name)
			case 1, 2:
				nodes[name] = r.node()
				x.Set(name, nodes[name])
			case 3, 4:
				if after, fits := nodes[name].With(kinds[r.IntN(len(kinds))].Ask); fits && len(after.GPUs) > 0 {
					nodes[name] = after
					x.Set(name, after)
				}
			case 5:
				a := kinds[r.IntN(len(kinds))].Ask
				learned = append(learned, a)
				x.Learn(a)
			default:
				scores(x, kinds[r.IntN(len(kinds))])
			}
			if event%60 == 0 {
				same()
			}
		}
		same()
	}
}

// The mix follows what comes, and is that of the last pods.
func TestMixIsOfTheLastPods(t *testing.T) {
	x := New()
	x.Set("n", Node{64, 64, gpus("", 100)})
	cpu := func() float64 {
		scores(x, &Kind{})
		return x.demand.cpu
	}
	x.Learn(Ask{CPU: 4, Requests: []Request{whole(1)}})
	expect.Equal(t, 4, cpu(), "after the first pod a GPU goes with CPUs")
	for range 2 * mixPods {
		x.Learn(Ask{CPU: 8, Requests: []Request{whole(1)}})
	}
	expect.Equal(t, 8, cpu(), "after %d others it goes with", 2*mixPods)
}
