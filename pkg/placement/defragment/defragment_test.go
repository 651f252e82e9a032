// SPDX-License-Identifier: Apache-2.0

package defragment

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
)

// shared is the mode of the GPUs of a board.
const shared = score.Whole << 1

// piece is a share of a GPU.
type piece struct {
	node, gpu int
	size, cpu int64
	stays     bool
}

// board is a World of GPUs of 10 GiB.
type board struct {
	cpus   []int64
	gpus   int
	pieces []piece
	undo   []func()
}

func (b *board) Nodes() int             { return len(b.cpus) }
func (b *board) Left(at int) score.Node { return b.without(at, -1) }
func (b *board) Without(i int) score.Node {
	return b.without(b.pieces[i].node, i)
}

func (b *board) without(at, but int) score.Node {
	n := score.Node{CPU: b.cpus[at], Memory: 1000}
	for range b.gpus {
		n.GPUs = append(n.GPUs, score.GPU{Modes: shared, Memory: 10, Free: 10, Cores: 100})
	}
	for i, p := range b.pieces {
		if p.node == at && i != but {
			n.CPU -= p.cpu
			n.GPUs[p.gpu].Free -= p.size
		}
	}
	return n
}

func (b *board) Move(i, to int) bool {
	was := b.pieces[i]
	left, best := b.Left(to), -1
	for g, gpu := range left.GPUs {
		if gpu.Free >= was.size && (best < 0 || gpu.Free < left.GPUs[best].Free) {
			best = g
		}
	}
	if best < 0 || left.CPU < was.cpu {
		return false
	}
	b.pieces[i].node, b.pieces[i].gpu = to, best
	b.undo = append(b.undo, func() { b.pieces[i] = was })
	return true
}

func (b *board) Undo() {
	b.undo[len(b.undo)-1]()
	b.undo = b.undo[:len(b.undo)-1]
}

// ask is what a pod with such a share asks for.
func ask(size, cpu int64) score.Ask {
	return score.Ask{CPU: cpu, Requests: []score.Request{{Count: 1, Mode: shared, Memory: size}}}
}

// search is for the pieces that do not stay, which come first.
func (b *board) search(most int) *Search {
	s := &Search{World: b, Index: score.New(), Most: most}
	for at := range b.cpus {
		s.Index.Set(fmt.Sprint(at), b.Left(at))
	}
	for _, p := range b.pieces {
		s.Index.Learn(ask(p.size, p.cpu))
		if !p.stays {
			s.Pods = append(s.Pods, Pod{Node: p.node, Ask: ask(p.size, p.cpu), GPUs: []int{p.gpu}})
		}
	}
	return s
}

// where are the places of all pieces.
func (b *board) where() string { return fmt.Sprint(b.pieces) }

func TestMoves(t *testing.T) {
	for _, tc := range []struct {
		name string
		board
		most int
		find func(*board, *Search) []Move
		want []Move
	}{
		{"the share that fits beside another frees a GPU", board{cpus: []int64{9, 9}, gpus: 1, pieces: []piece{
			{node: 0, size: 4, cpu: 1}, {node: 1, size: 6, cpu: 1, stays: true}}}, 3,
			func(b *board, s *Search) []Move { return s.For(GPUs(b)) }, []Move{{0, 1}}},
		{"nothing where it fits nowhere", board{cpus: []int64{9, 9}, gpus: 1, pieces: []piece{
			{node: 0, size: 5, cpu: 1}, {node: 1, size: 6, cpu: 1, stays: true}}}, 3,
			func(b *board, s *Search) []Move { return s.For(GPUs(b)) }, nil},
		{"nothing where CPU is missing", board{cpus: []int64{9, 1}, gpus: 1, pieces: []piece{
			{node: 0, size: 4, cpu: 1}, {node: 1, size: 6, cpu: 1, stays: true}}}, 3,
			func(b *board, s *Search) []Move { return s.For(GPUs(b)) }, nil},
		{"nothing within too few moves", board{cpus: []int64{9, 9}, gpus: 1, pieces: []piece{
			{node: 0, size: 2, cpu: 1}, {node: 0, size: 2, cpu: 1}, {node: 1, size: 6, cpu: 1, stays: true}}}, 1,
			func(b *board, s *Search) []Move { return s.For(GPUs(b)) }, nil},
		{"a node takes all of its shares", board{cpus: []int64{9, 9}, gpus: 2, pieces: []piece{
			{node: 0, size: 2, cpu: 1}, {node: 0, gpu: 1, size: 2, cpu: 1}, {node: 1, size: 6, cpu: 1, stays: true}}}, 2,
			func(b *board, s *Search) []Move { return s.For(FreeNodes(b)) }, []Move{{0, 1}, {1, 1}}},
		{"one makes room for another", board{cpus: []int64{9, 9, 9}, gpus: 1, pieces: []piece{
			{node: 0, size: 6, cpu: 1}, {node: 1, size: 4, cpu: 1},
			{node: 1, size: 1, cpu: 1, stays: true}, {node: 2, size: 5, cpu: 1, stays: true}}}, 2,
			func(b *board, s *Search) []Move { return s.For(GPUs(b)) }, []Move{{1, 2}, {0, 1}}},
		{"what is left is of more use together", board{cpus: []int64{90, 90}, gpus: 1, pieces: []piece{
			{node: 0, size: 4, cpu: 1}, {node: 1, size: 4, cpu: 1}}}, 1,
			func(_ *board, s *Search) []Move {
				for range 30 {
					s.Index.Learn(ask(10, 1))
				}
				return s.Spare()
			}, []Move{{0, 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := tc.board
			before := b.where()
			got := tc.find(&b, b.search(tc.most))
			if !slices.Equal(got, tc.want) {
				t.Errorf("moves %v, want %v", got, tc.want)
			}
			for range got {
				b.Undo()
			}
			expect.Equal(t, before, b.where(), "without the moves it is")
		})
	}
}

// small is a board with few pods.
func small(r *rand.Rand) *board {
	b := &board{gpus: 1 + r.IntN(2)}
	for range 2 + r.IntN(2) {
		b.cpus = append(b.cpus, 2+r.Int64N(4))
	}
	for tries, pods := 0, 2+r.IntN(3); tries < 20 && pods > 0; tries++ {
		p := piece{node: r.IntN(len(b.cpus)), gpu: r.IntN(b.gpus), size: 1 + r.Int64N(9), cpu: 1 + r.Int64N(2)}
		if left := b.Left(p.node); left.CPU >= p.cpu && left.GPUs[p.gpu].Free >= p.size {
			b.pieces = append(b.pieces, p)
			pods--
		}
	}
	return b
}

// everyWay calls see for all ways to make so many moves or fewer, of which each moves another pod.
func everyWay(b *board, most int, moved map[int]bool, see func(moves int)) {
	see(len(moved))
	if most == 0 {
		return
	}
	for i := range b.pieces {
		for to := range b.cpus {
			if moved[i] || to == b.pieces[i].node || !b.Move(i, to) {
				continue
			}
			moved[i] = true
			everyWay(b, most-1, moved, see)
			delete(moved, i)
			b.Undo()
		}
	}
}

// What is found on small clusters is as good as the best of all ways: no fewer moves bring a goal about, and no as many
// moves save more.
func TestNeverWorseThanBruteForce(t *testing.T) {
	met := 0
	for seed := range uint64(300) {
		b, most := small(rand.New(rand.NewPCG(seed, 1))), 3
		lost := func(index *score.Index) (sum float64) {
			for at := range b.cpus {
				sum += index.LossOf(b.Left(at))
			}
			return sum
		}
		for name, goal := range map[string]Goal{"GPU": GPUs(b), "node": FreeNodes(b)} {
			before, fewest := goal(), most+1
			everyWay(b, most, map[int]bool{}, func(moves int) {
				if goal() > before {
					fewest = min(fewest, moves)
				}
			})
			got := b.search(most).For(goal)
			switch {
			case fewest > most && len(got) > 0:
				t.Errorf("seed %d: %v free no %s", seed, got, name)
			case fewest <= most && (len(got) != fewest || goal() <= before):
				t.Errorf("seed %d: %d moves free a %s, found %v", seed, fewest, name, got)
			case fewest <= most:
				met++
			}
			for range got {
				b.Undo()
			}
		}
		s := b.search(most)
		least := lost(s.Index)
		everyWay(b, most, map[int]bool{}, func(int) { least = min(least, lost(s.Index)) })
		got := s.Spare()
		if is := lost(s.Index); is > least+2*gainLeast {
			t.Errorf("seed %d: after %v %.3f GPUs are lost, %.3f can be", seed, got, is, least)
		}
	}
	if met < 50 {
		t.Errorf("goals could be met %d times: the clusters test nothing", met)
	}
}
