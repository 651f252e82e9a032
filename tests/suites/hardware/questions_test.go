// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// memoryLimits is the name of the groups about memory limits by control group, which NVIDIA's driver has since release
// 615. No such driver was at hand when they were written: they ask, and what each answer means is in
// docs/internals/hardware.md.
const memoryLimits = "memory limits by control group"

// needsLimits looks for functions of release 615. go-nvml ends a program that calls what the library lacks.
func needsLimits() string {
	for _, name := range []string{"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1"} {
		if here.lib.Extensions().LookupSymbol(name) != nil {
			return fmt.Sprintf("symbol absent: driver %s has no %s, which came with release 615", here.machine.DriverVersion,
				name)
		}
	}
	return ""
}

// ground is what the questions are asked of: a pod with two containers on the GPU, which nothing limits.
type ground struct {
	*step
	// root is that of the tree of control groups, pod that of the pod, and leaf and second those of its containers.
	root, pod, leaf, second string
	dmem                    bool
}

// question is one of those that only a driver of release 615 answers: there is no right or wrong.
type question struct {
	what string
	ask  func(*ground) (answer string, err error)
	// byHand is what to type where asking would change the machine.
	byHand string
}

// askAll asks all questions of one pod. What one has set is cleared before the next.
func askAll(s *step) {
	s.shared("pod with two containers", "share", 1, 0, pod{name: "asked", more: true})
	g := ground{step: s, root: unifiedRoot(s)}
	g.leaf, g.second = s.leaf(g.root, "asked", "main"), s.leaf(g.root, "asked", "second")
	g.pod = filepath.Dir(g.leaf)
	_, err := os.Stat(filepath.Join(g.leaf, "dmem.max"))
	g.dmem = err == nil
	for _, q := range questions() {
		s.Run(q.what, func(t *testing.T) {
			if q.byHand != "" {
				notRun(t, q.what, "by hand: "+q.byHand)
			}
			g := g
			g.step = &step{T: t, ns: s.ns}
			answer, err := q.ask(&g)
			if err != nil {
				answer = "no answer: " + err.Error()
			}
			g.seen(q.what, "", answer)
			if _, err := os.Stat(g.leaf); err != nil {
				return
			}
			// Where the driver counts, there may be no limits to take away.
			if err := errors.Join(g.set(g.leaf, noLimit), g.set(g.second, noLimit), g.set(g.pod, noLimit)); err != nil {
				g.seen("limits are cleared", "", err.Error())
			}
		})
	}
}

// noLimit is a hard limit that is none.
const noLimit = -1

// set sets the hard limit of a control group on the GPU.
func (s *step) set(dir string, hardMiB int64) error { return s.setBoth(dir, 0, hardMiB) }

func (s *step) setBoth(dir string, softMiB, hardMiB int64) error {
	hard := uint64(hardMiB) << 20
	if hardMiB < 0 {
		hard = nvml.DEVICE_MEMORY_LIMIT_MAX
	}
	if ret := s.device().SetMemoryLimits_v1(dir, uint64(softMiB)<<20, hard); ret != nvml.SUCCESS {
		return ret
	}
	return nil
}

// memoryLimit is what NVML tells of a control group.
type memoryLimit struct{ softMiB, hardMiB, usedMiB int64 }

func (s *step) get(dir string) (memoryLimit, error) {
	got, ret := s.device().GetMemoryLimits_v1(dir)
	if ret != nvml.SUCCESS {
		return memoryLimit{}, ret
	}
	l := memoryLimit{int64(got.SoftLimit >> 20), int64(got.HardLimit >> 20), int64(got.CurrentUsed >> 20)}
	if got.HardLimit == nvml.DEVICE_MEMORY_LIMIT_MAX {
		l.hardMiB = noLimit
	}
	return l, nil
}

func (l memoryLimit) String() string {
	hard := "max"
	if l.hardMiB != noLimit {
		hard = fmt.Sprint(l.hardMiB)
	}
	return fmt.Sprintf("soft %d, hard %s, used %d MiB", l.softMiB, hard, l.usedMiB)
}

// unifiedRoot is where the machine has its control groups of version 2.
func unifiedRoot(s *step) string {
	s.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[2] == "cgroup2" {
			return fields[1]
		}
	}
	s.Fatalf("the machine has no control groups of version 2, which the driver needs: %v", err)
	return ""
}

// leaf is the control group of a pod's container, which runs.
func (s *step) leaf(root, name, container string) string {
	s.Helper()
	id := ""
	harness.Eventually(s.T, "container "+container+" of pod "+name, func(ctx context.Context) error {
		p, err := here.Client.CoreV1().Pods(s.ns.Name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if id = containerID(p, container); id == "" {
			return errors.New("it does not run")
		}
		return nil
	})
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		content, _ := os.ReadFile(file)
		if path := unifiedPath(string(content)); strings.Contains(path, id) {
			return filepath.Join(root, path)
		}
	}
	s.Fatalf("no process of this machine is in a control group of version 2 of container %s: %v", id, err)
	return ""
}

func containerID(p *corev1.Pod, container string) string {
	for _, status := range p.Status.ContainerStatuses {
		if status.Name == container {
			_, id, _ := strings.Cut(status.ContainerID, "://")
			return id
		}
	}
	return ""
}

func unifiedPath(content string) string {
	for line := range strings.Lines(content) {
		if path, found := strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			return path
		}
	}
	return ""
}

// fill has a program in a container fill memory, and keep it until it is let go. It says "filled N total N: E".
func (s *step) fill(pod, container, kind string, mib int64) (answer string, p *program, err error) {
	if p, err = s.launch(pod, container, "fill", kind, fmt.Sprint(mib)); err != nil {
		return "", nil, err
	}
	answer, err = p.next()
	return answer, p, err
}
