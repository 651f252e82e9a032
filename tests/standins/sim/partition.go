// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// AskedDir is where the NVML library of a simulated node (tests/standins/nvmllib) leaves what it is asked to make and
// to destroy, below the driver root, and waits for an answer. ServeMIG answers: it stands in for the kernel module,
// which does what it was asked also where the asking program is killed.
const AskedDir = StateDir + "/mig"

const (
	askedSuffix  = ".ask"
	answerSuffix = ".answer"
	// servePause is between two looks.
	servePause = 5 * time.Millisecond
)

// Partitioning is how the simulated kernel module makes and destroys MIG instances.
type Partitioning struct {
	// Delay is how long each call takes; half of it passes before anything has happened. For NVIDIA's driver others have
	// measured some 1.5 s for both calls that an instance takes.
	Delay time.Duration
	// Fails, if set, is asked before a call such as "make-gi" takes effect on a card: whether it does, and, where it
	// is not SUCCESS or nothing takes effect, what is answered. A driver's answer can be wrong either way.
	Fails func(card int, call string) (ret nvml.Return, effect bool)
}

// ServeMIG answers what is asked of a driver root until the context ends. What was asked while nobody answered is
// answered first. Calls on one GPU are one after the other.
func (p Partitioning) ServeMIG(ctx context.Context, root string) error {
	dir := filepath.Join(root, AskedDir)
	// Not the root: it may be gone.
	if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("answer for the simulated MIG: %w", err)
	}
	var (
		answering sync.WaitGroup
		failed    = make(chan error, 1)
		taken     = map[string]bool{}
		turns     = map[string]chan struct{}{}
	)
	defer answering.Wait()
	for {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("answer for the simulated MIG: %w", err)
		}
		for _, e := range entries {
			name, is := strings.CutSuffix(e.Name(), askedSuffix)
			if !is || taken[name] {
				continue
			}
			asked, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if errors.Is(err, fs.ErrNotExist) {
				continue // it was answered since
			}
			card := append(strings.Fields(string(asked)), "", "")[1]
			before, after := turns[card], make(chan struct{})
			taken[name], turns[card] = true, after
			answering.Go(func() {
				defer close(after)
				if before != nil {
					<-before
				}
				if err := p.answer(ctx, root, filepath.Join(dir, name)); err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			})
		}
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return nil
		case <-time.After(servePause):
		}
	}
}

// answer does what is asked in a file, and writes NVML's result and an id.
func (p Partitioning) answer(ctx context.Context, root, path string) error {
	asked, err := os.ReadFile(path + askedSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("answer for the simulated MIG: %w", err)
	}
	pause(ctx, p.Delay/2)
	ret, id, err := p.do(root, string(asked))
	if err != nil {
		return fmt.Errorf("answer for the simulated MIG: %q: %w", asked, err)
	}
	pause(ctx, p.Delay/2)
	if err := os.Remove(path + askedSuffix); err != nil {
		return fmt.Errorf("answer for the simulated MIG: %w", err)
	}
	return replace(path+answerSuffix, fmt.Appendf(nil, "%d %d\n", ret, id), 0o644)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// errNothing is that a call changes nothing.
var errNothing = errors.New("nothing is changed")

// do does what is asked: "CALL GPU NUMBER…".
func (p Partitioning) do(root, asked string) (ret nvml.Return, id int, err error) {
	var call string
	var card, a, b, c int
	if n, err := fmt.Sscan(asked, &call, &card, &a, &b, &c); n < 3 {
		return 0, 0, fmt.Errorf("want a call, a GPU and numbers: %w", err)
	}
	failure, effect := nvml.SUCCESS, true
	if p.Fails != nil {
		failure, effect = p.Fails(card, call)
	}
	if !effect {
		return failure, 0, nil
	}
	err = Change(root, func(s *Spec) error {
		if card >= len(s.Cards) || call != "set-mode" && !s.Cards[card].MIG.Enabled {
			ret = nvml.ERROR_NOT_SUPPORTED
			return errNothing
		}
		s.keepIDs(card)
		switch call {
		case "set-mode":
			id = int(s.activate(card, a == nvml.DEVICE_MIG_ENABLE))
			return nil
		case "make-gi":
			ret, id = s.makeGPUInstance(card, a, b)
		case "make-ci":
			ret = s.makeComputeInstance(card, a)
		case "destroy-ci":
			ret = s.destroyComputeInstance(card, a, b)
		case "destroy-gi":
			ret = s.destroyGPUInstance(card, a)
		default:
			return fmt.Errorf("unknown call %q", call)
		}
		if ret != nvml.SUCCESS {
			return errNothing
		}
		s.tell(card, "migConfigChange", 0)
		return nil
	})
	if errors.Is(err, errNothing) {
		err = nil
	}
	if ret == nvml.SUCCESS {
		ret = failure
	}
	return ret, id, err
}

// MIGDevice is a compute instance that fills its GPU instance, for those who compare it with what others are told.
type MIGDevice struct {
	Card, GI, CI int
	UUID         string
	Profile      string
	Start        int
	// Capabilities are the minor numbers of its device nodes: that of the GPU instance, then its own.
	Capabilities [2]int
}

// MIGDevices are the machine's.
func (s *Spec) MIGDevices() []MIGDevice {
	var out []MIGDevice
	for card := range s.Cards {
		for _, d := range s.migDevices(card) {
			i := s.Cards[card].MIG.Instances[d.gpuInstanceNth]
			out = append(out, MIGDevice{Card: card, GI: d.gi, CI: d.ci, UUID: d.uuid, Profile: i.Profile, Start: i.Start,
				Capabilities: [2]int{capMinor(s.minor(card), d.gi, -1), capMinor(s.minor(card), d.gi, d.ci)}})
		}
	}
	return out
}

// activate switches a card's MIG mode, and is what NVML calls the activation status: whether the mode is active.
func (s *Spec) activate(card int, on bool) nvml.Return {
	switch err := s.switchMIG(card, on); {
	case errors.Is(err, errInUse):
		return nvml.ERROR_IN_USE
	case err != nil:
		return nvml.ERROR_UNKNOWN
	case s.Cards[card].MIG.Enabled != on:
		return nvml.ERROR_RESET_REQUIRED
	}
	s.tell(card, "migConfigChange", 0)
	return nvml.SUCCESS
}

// keepIDs has the instances of a card keep their ids, whoever comes and goes.
func (s *Spec) keepIDs(card int) {
	for n, id := range s.gpuInstanceIDs(card) {
		s.Cards[card].MIG.Instances[n].ID = &id
	}
}

func (s *Spec) makeGPUInstance(card, profileID, start int) (nvml.Return, int) {
	table := migTables[s.Models[s.Cards[card].Model].MIGProfiles]
	at := slices.IndexFunc(table, func(p migProfile) bool { return p.id == profileID })
	if at < 0 {
		return nvml.ERROR_NOT_SUPPORTED, 0
	}
	m := &s.Cards[card].MIG
	made := MIGInstance{Profile: table[at].name, Start: start, NoCompute: true}
	if s.fits(card, m.Instances, made) != nil {
		return nvml.ERROR_INSUFFICIENT_RESOURCES, 0
	}
	m.Instances = append(slices.Clone(m.Instances), made)
	ids := s.gpuInstanceIDs(card)
	return nvml.SUCCESS, ids[len(ids)-1]
}

// gpuInstance is the position of a GPU instance.
func (s *Spec) gpuInstance(card, id int) int { return slices.Index(s.gpuInstanceIDs(card), id) }

func (s *Spec) makeComputeInstance(card, gi int) nvml.Return {
	at := s.gpuInstance(card, gi)
	if at < 0 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	i := &s.Cards[card].MIG.Instances[at]
	if !i.NoCompute {
		return nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	// Another UUID than that of any before.
	i.NoCompute, i.Compute, i.Number = false, nil, time.Now().UnixNano()
	return nvml.SUCCESS
}

// inUse says whether a process runs in the instance.
func (s *Spec) inUse(card, at int) bool {
	i := s.Cards[card].MIG.Instances[at]
	return slices.ContainsFunc(s.Cards[card].State.Processes, func(p Process) bool { return p.isOf(i) })
}

func (s *Spec) destroyComputeInstance(card, gi, ci int) nvml.Return {
	at := s.gpuInstance(card, gi)
	if at < 0 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	i := &s.Cards[card].MIG.Instances[at]
	p, _ := s.profile(card, i.Profile)
	compute := i.compute(p)
	switch {
	case ci >= len(compute):
		return nvml.ERROR_INVALID_ARGUMENT
	case s.inUse(card, at):
		return nvml.ERROR_IN_USE
	case len(compute) == 1:
		i.NoCompute, i.Compute = true, nil
	default:
		i.Compute = slices.Delete(slices.Clone(compute), ci, ci+1)
	}
	return nvml.SUCCESS
}

func (s *Spec) destroyGPUInstance(card, gi int) nvml.Return {
	at := s.gpuInstance(card, gi)
	if at < 0 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	m := &s.Cards[card].MIG
	p, _ := s.profile(card, m.Instances[at].Profile)
	if s.inUse(card, at) || len(m.Instances[at].compute(p)) > 0 {
		return nvml.ERROR_IN_USE
	}
	m.Instances = slices.Delete(slices.Clone(m.Instances), at, at+1)
	return nvml.SUCCESS
}
