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
	// Fails, if set, is asked before a call such as "make-gi" takes effect on a GPU: whether it does, and, where it
	// is not SUCCESS or nothing takes effect, what is answered. A driver's answer can be wrong either way.
	Fails func(g int, call string) (ret nvml.Return, effect bool)
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
			g := append(strings.Fields(string(asked)), "", "")[1]
			before, after := turns[g], make(chan struct{})
			taken[name], turns[g] = true, after
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
	var g, a, b, c int
	if n, err := fmt.Sscan(asked, &call, &g, &a, &b, &c); n < 3 {
		return 0, 0, fmt.Errorf("want a call, a GPU and numbers: %w", err)
	}
	failure, effect := nvml.SUCCESS, true
	if p.Fails != nil {
		failure, effect = p.Fails(g, call)
	}
	if !effect {
		return failure, 0, nil
	}
	err = Change(root, func(s *Spec) error {
		if g >= len(s.GPUs) || call != "set-mode" && !s.GPUs[g].MIG.Enabled {
			ret = nvml.ERROR_NOT_SUPPORTED
			return errNothing
		}
		s.keepIDs(g)
		switch call {
		case "set-mode":
			id = int(s.activate(g, a == nvml.DEVICE_MIG_ENABLE))
			return nil
		case "make-gi":
			ret, id = s.makeGPUInstance(g, a, b)
		case "make-ci":
			ret = s.makeComputeInstance(g, a)
		case "destroy-ci":
			ret = s.destroyComputeInstance(g, a, b)
		case "destroy-gi":
			ret = s.destroyGPUInstance(g, a)
		default:
			return fmt.Errorf("unknown call %q", call)
		}
		if ret != nvml.SUCCESS {
			return errNothing
		}
		s.tell(g, "migConfigChange", 0)
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
	GPU, GI, CI int
	UUID        string
	Profile     string
	Start       int
	// Capabilities are the minor numbers of its device nodes: that of the GPU instance, then its own.
	Capabilities [2]int
}

// MIGDevices are the machine's.
func (s *Spec) MIGDevices() []MIGDevice {
	var out []MIGDevice
	for g := range s.GPUs {
		for _, d := range s.migDevices(g) {
			i := s.GPUs[g].MIG.Instances[d.gpuInstanceNth]
			out = append(out, MIGDevice{GPU: g, GI: d.gi, CI: d.ci, UUID: d.uuid, Profile: i.Profile, Start: i.Start,
				Capabilities: [2]int{capMinor(s.minor(g), d.gi, -1), capMinor(s.minor(g), d.gi, d.ci)}})
		}
	}
	return out
}

// activate switches a GPU's MIG mode, and is what NVML calls the activation status: whether the mode is active.
func (s *Spec) activate(g int, on bool) nvml.Return {
	switch err := s.switchMIG(g, on); {
	case errors.Is(err, errInUse):
		return nvml.ERROR_IN_USE
	case err != nil:
		return nvml.ERROR_UNKNOWN
	case s.GPUs[g].MIG.Enabled != on:
		return nvml.ERROR_RESET_REQUIRED
	}
	s.tell(g, "migConfigChange", 0)
	return nvml.SUCCESS
}

// keepIDs has the instances of a GPU keep their ids, whoever comes and goes.
func (s *Spec) keepIDs(g int) {
	for n, id := range s.gpuInstanceIDs(g) {
		s.GPUs[g].MIG.Instances[n].ID = &id
	}
}

func (s *Spec) makeGPUInstance(g, profileID, start int) (nvml.Return, int) {
	table := migTables[s.Models[s.GPUs[g].Model].MIGProfiles]
	at := slices.IndexFunc(table, func(p migProfile) bool { return p.id == profileID })
	if at < 0 {
		return nvml.ERROR_NOT_SUPPORTED, 0
	}
	m := &s.GPUs[g].MIG
	made := MIGInstance{Profile: table[at].name, Start: start, NoCompute: true}
	if s.fits(g, m.Instances, made) != nil {
		return nvml.ERROR_INSUFFICIENT_RESOURCES, 0
	}
	m.Instances = append(slices.Clone(m.Instances), made)
	ids := s.gpuInstanceIDs(g)
	return nvml.SUCCESS, ids[len(ids)-1]
}

// gpuInstance is the position of a GPU instance.
func (s *Spec) gpuInstance(g, id int) int { return slices.Index(s.gpuInstanceIDs(g), id) }

func (s *Spec) makeComputeInstance(g, gi int) nvml.Return {
	at := s.gpuInstance(g, gi)
	if at < 0 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	i := &s.GPUs[g].MIG.Instances[at]
	if !i.NoCompute {
		return nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	// Another UUID than that of any before.
	i.NoCompute, i.Compute, i.Number = false, nil, time.Now().UnixNano()
	return nvml.SUCCESS
}

// inUse reports whether a process runs in the instance.
func (s *Spec) inUse(g, at int) bool {
	i := s.GPUs[g].MIG.Instances[at]
	return slices.ContainsFunc(s.GPUs[g].State.Processes, func(p Process) bool { return p.isOf(i) })
}

func (s *Spec) destroyComputeInstance(g, gi, ci int) nvml.Return {
	at := s.gpuInstance(g, gi)
	if at < 0 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	i := &s.GPUs[g].MIG.Instances[at]
	p, _ := s.profile(g, i.Profile)
	compute := i.compute(p)
	switch {
	case ci >= len(compute):
		return nvml.ERROR_INVALID_ARGUMENT
	case s.inUse(g, at):
		return nvml.ERROR_IN_USE
	case len(compute) == 1:
		i.NoCompute, i.Compute = true, nil
	default:
		i.Compute = slices.Delete(slices.Clone(compute), ci, ci+1)
	}
	return nvml.SUCCESS
}

func (s *Spec) destroyGPUInstance(g, gi int) nvml.Return {
	at := s.gpuInstance(g, gi)
	if at < 0 {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	m := &s.GPUs[g].MIG
	p, _ := s.profile(g, m.Instances[at].Profile)
	if s.inUse(g, at) || len(m.Instances[at].compute(p)) > 0 {
		return nvml.ERROR_IN_USE
	}
	m.Instances = slices.Delete(slices.Clone(m.Instances), at, at+1)
	return nvml.SUCCESS
}
