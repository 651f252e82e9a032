// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/trace"
)

// stageRounds is how many pods of each kind are taken apart.
const stageRounds = 20

// stages are what happens one after the other until a pod runs. Each ends where the next
// one begins.
var stages = []struct {
	name string
	end  func(*pods.Pod, *trace.Pod) time.Time
}{
	{"the claim controller makes the claim",
		func(p *pods.Pod, _ *trace.Pod) time.Time { return p.ClaimSeen() }},
	{"the scheduler allocates it and binds the pod",
		func(p *pods.Pod, _ *trace.Pod) time.Time { return p.ScheduledSeen() }},
	{"the kubelet admits the pod; NodePrepareResources",
		func(_ *pods.Pod, c *trace.Pod) time.Time { return c.SandboxBegin }},
	{"containerd makes the sandbox",
		func(_ *pods.Pod, c *trace.Pod) time.Time { return c.SandboxEnd }},
	{"the kubelet asks for the container",
		func(_ *pods.Pod, c *trace.Pod) time.Time { return c.CreateBegin }},
	{"containerd makes the container, with the CDI edits",
		func(_ *pods.Pod, c *trace.Pod) time.Time { return c.CreateEnd }},
	{"the kubelet asks for its start",
		func(_ *pods.Pod, c *trace.Pod) time.Time { return c.StartBegin }},
	{"runc creates it, runs the hooks and starts it",
		func(_ *pods.Pod, c *trace.Pod) time.Time { return c.StartEnd }},
	{"the kubelet reports Running",
		func(p *pods.Pod, _ *trace.Pod) time.Time { return p.RunningSeen() }},
}

// measureStages takes apart what measurePods sees as a whole.
func measureStages(ctx context.Context, b *bench) ([]stats.Row, error) {
	if b.containerdLog == "" {
		return nil, errors.New("--containerd-log names no file")
	}
	kinds := []struct{ name, template string }{{"plain", ""}, {"gpushare", gpushareTemplate},
		{"trivial", trivialTemplate}, {"hooked", hookedTemplate}, {"nvidia", nvidiaTemplate}}
	if b.nvidia == nil {
		kinds = kinds[:4]
	}
	made := make([][]*pods.Pod, len(kinds))
	for round := range stageRounds {
		for i := range kinds {
			n := (round + i) % len(kinds)
			pod, err := b.runToTheEnd(ctx, fmt.Sprintf("stages-%s-%d", kinds[n].name, round), kinds[n].template)
			if err != nil {
				return nil, err
			}
			made[n] = append(made[n], pod)
		}
	}
	file, err := os.Open(b.containerdLog)
	if err != nil {
		return nil, fmt.Errorf("open containerd's log: %w", err)
	}
	traces, err := trace.Read(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	durations := make([][]stats.Sample, len(kinds))
	for i := range kinds {
		if durations[i], err = stagesOf(made[i], traces); err != nil {
			return nil, err
		}
	}
	rows := make([]stats.Row, len(stages))
	for i, s := range stages {
		median := func(kind int) string { return durations[kind][i].Summary(0.5) }
		rows[i] = stats.Row{Measure: fmt.Sprintf("%d. %s, p50", i+1, s.name), Base: median(0), Product: median(1),
			Trivial: median(2), Hooked: median(3)}
		if b.nvidia != nil {
			rows[i].NVIDIA = median(4)
		}
	}
	return rows, nil
}

func stagesOf(made []*pods.Pod, traces map[string]*trace.Pod) ([]stats.Sample, error) {
	durations := make([]stats.Sample, len(stages))
	for _, pod := range made {
		logged := traces[namespace+"/"+pod.Name]
		if logged == nil {
			return nil, fmt.Errorf("containerd's log has nothing of pod %s", pod.Name)
		}
		begin := pod.Created()
		for i, s := range stages {
			end := s.end(pod, logged)
			if end.IsZero() {
				continue // a pod without a claim
			}
			durations[i] = append(durations[i], end.Sub(begin))
			begin = end
		}
	}
	return durations, nil
}

// runToTheEnd makes a pod, waits until it runs, and deletes it.
func (b *bench) runToTheEnd(ctx context.Context, name, template string) (*pods.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	pod, err := b.pods.Create(ctx, name, template)
	if err != nil {
		return nil, err
	}
	if _, err := pod.Running(ctx); err != nil {
		return nil, err
	}
	return pod, b.pods.Delete(ctx, pod)
}
