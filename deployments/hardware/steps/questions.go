// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/kube"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
)

// memoryLimits is the name of the groups about memory limits by control group, which NVIDIA's driver has since
// release 615. No such driver was at hand when they were written: they ask, and a row has what the answer means.
const memoryLimits = "memory limits by control group"

// MemoryLimits are those of a GPU, by directories of control groups.
type MemoryLimits interface {
	// Set sets both limits; a negative hard one is none.
	Set(dir string, softMiB, hardMiB int64) error
	Get(dir string) (MemoryLimit, error)
}

// MemoryLimit is what NVML tells of a control group.
type MemoryLimit struct{ SoftMiB, HardMiB, UsedMiB int64 }

// NoLimit is a hard limit that is none.
const NoLimit = -1

func (l MemoryLimit) String() string {
	hard := "max"
	if l.HardMiB != NoLimit {
		hard = fmt.Sprint(l.HardMiB)
	}
	return fmt.Sprintf("soft %d, hard %s, used %d MiB", l.SoftMiB, hard, l.UsedMiB)
}

func needsLimits(s *Session) string {
	if s.Limits == nil {
		return s.NoLimits
	}
	return ""
}

// ground is what the questions are asked of: a pod with two containers on the GPU, which nothing limits.
type ground struct {
	pod string
	// root is that of the tree of control groups, podDir that of the pod, and leaf and second those of its containers.
	root, podDir, leaf, second string
	dmem                       bool
}

// question is one of those that only a real driver answers.
type question struct {
	text string
	// ask returns what was seen, and what it means.
	ask func(context.Context, *run, *ground) (answer, meaning string, err error)
}

// byHand is a question that a run does not ask, for it would change the machine, with what to type.
func byHand(command string) func(context.Context, *run, *ground) (string, string, error) {
	return func(context.Context, *run, *ground) (string, string, error) {
		return "", "", notAsked("by hand: " + command)
	}
}

type notAsked string

func (n notAsked) Error() string { return string(n) }

// askAll asks all questions of one pod. What one has set is cleared before the next.
func askAll(ctx context.Context, r *run) error {
	g, err := r.ground(ctx, "asked")
	if err != nil {
		return err
	}
	for _, q := range questions() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.Progress("    %s", q.text)
		answer, meaning, err := q.ask(ctx, r, g)
		var none notAsked
		switch {
		case errors.As(err, &none):
			r.rows = append(r.rows, report.Row{What: q.text, Observed: none.Error(), Result: report.NotRun})
		case err != nil:
			r.seen(q.text, "", "no answer: "+err.Error())
		default:
			r.seen(q.text, meaning, answer)
		}
		if err := g.clear(r); err != nil {
			r.seen("limits are cleared", "", err.Error())
		}
	}
	return nil
}

// clear takes all limits away. Where the driver counts, there may be none to take.
func (g *ground) clear(r *run) error {
	return errors.Join(r.Limits.Set(g.leaf, 0, NoLimit), r.Limits.Set(g.second, 0, NoLimit),
		r.Limits.Set(g.podDir, 0, NoLimit))
}

// ground starts the pod and finds its control groups.
func (r *run) ground(ctx context.Context, name string) (*ground, error) {
	if err := r.apply(ctx, template(name, onGPU(shareOf("share", 1, ""), r.gpu().Index))); err != nil {
		return nil, err
	}
	p := pod{name: name, template: name}.object(r.Session)
	spec := p["spec"].(object)
	second := object{}
	for key, value := range spec["containers"].([]object)[0] {
		second[key] = value
	}
	second["name"] = "second"
	spec["containers"] = append(spec["containers"].([]object), second)
	if err := r.apply(ctx, p); err != nil {
		return nil, err
	}
	if err := r.Kubectl.WaitRunning(ctx, r.Patience, name); err != nil {
		return nil, err
	}
	root, err := unifiedRoot()
	if err != nil {
		return nil, err
	}
	g := &ground{pod: name, root: root}
	if g.leaf, err = r.leaf(ctx, root, name, "main"); err != nil {
		return nil, err
	}
	if g.second, err = r.leaf(ctx, root, name, "second"); err != nil {
		return nil, err
	}
	g.podDir = filepath.Dir(g.leaf)
	_, err = os.Stat(filepath.Join(g.leaf, "dmem.max"))
	g.dmem = err == nil
	return g, nil
}

// unifiedRoot is where the machine has its control groups of version 2.
func unifiedRoot() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("find the control groups: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[2] == "cgroup2" {
			return fields[1], nil
		}
	}
	return "", errors.New("the machine has no control groups of version 2, which the driver needs")
}

// leaf is the control group of a pod's container, which runs.
func (r *run) leaf(ctx context.Context, root, name, container string) (string, error) {
	var p kube.Pod
	if err := r.Kubectl.Get(ctx, &p, "pod", name); err != nil {
		return "", err
	}
	for _, status := range p.Status.ContainerStatuses {
		_, id, found := strings.Cut(status.ContainerID, "://")
		if status.Name != container || !found {
			continue
		}
		dirs, err := filepath.Glob("/proc/[0-9]*/cgroup")
		if err != nil {
			return "", err
		}
		for _, file := range dirs {
			content, err := os.ReadFile(file)
			if path := unifiedPath(string(content)); err == nil && strings.Contains(path, id) {
				return filepath.Join(root, path), nil
			}
		}
		return "", fmt.Errorf("no process of this machine is in a control group of version 2 of container %s", id)
	}
	return "", fmt.Errorf("pod %s has no container %s that runs", name, container)
}

func unifiedPath(content string) string {
	for line := range strings.Lines(content) {
		if path, found := strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			return path
		}
	}
	return ""
}

// filled is what a program that fills memory says.
type filled struct {
	mib, total int64
	end        string
}

func parseFilled(answer string) (filled, error) {
	var f filled
	text, end, found := strings.Cut(answer, ": ")
	if _, err := fmt.Sscanf(text, "filled %d total %d", &f.mib, &f.total); err != nil || !found {
		return filled{}, fmt.Errorf("the CUDA program said %q: %w", answer, err)
	}
	f.end = end
	return f, nil
}

func (f filled) String() string {
	return fmt.Sprintf("%d MiB filled, total %d MiB, %s", f.mib, f.total, f.end)
}

// fill has a program in a container fill memory, and keep it until it is ended.
func (r *run) fill(ctx context.Context, pod, container, kind string, mib int64) (filled, *kube.Program, error) {
	p, err := r.Kubectl.StartIn(ctx, pod, container, probe, "fill", kind, fmt.Sprint(mib))
	if err != nil {
		return filled{}, nil, err
	}
	answer, err := p.Next()
	if err != nil {
		p.End()
		return filled{}, nil, err
	}
	f, err := parseFilled(answer)
	if err != nil {
		p.End()
		return filled{}, nil, err
	}
	return f, p, nil
}

// filledOnce is fill, ended.
func (r *run) filledOnce(ctx context.Context, g *ground, kind string, mib int64) (filled, error) {
	f, p, err := r.fill(ctx, g.pod, "main", kind, mib)
	if err == nil {
		p.End()
	}
	return f, err
}
