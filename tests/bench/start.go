// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/stats"
)

const starts = 10

// startup is how one driver's starts went.
type startup struct{ times, sockets stats.Sample }

// measureStart starts the drivers in turn, each time without a ResourceSlice
// at the API server, until theirs is there.
func measureStart(ctx context.Context, b *bench) ([]stats.Row, error) {
	results := map[*contender]*startup{}
	for range starts {
		for _, c := range b.contenders() {
			if results[c] == nil {
				results[c] = &startup{}
			}
			if err := b.startOnce(ctx, c, results[c]); err != nil {
				return nil, err
			}
		}
	}
	ours, floor := results[b.gpushare], results[b.trivial]
	rows := []stats.Row{
		{
			Measure: "process start → socket, p50 / max", Product: ours.sockets.Summary(0.5, 1),
			Trivial: floor.sockets.Summary(0.5, 1),
			Ratio:   ratios(ours.sockets, floor.sockets, 0.5), Target: "≤ 40 ms",
		},
		{
			Measure: "process start → ResourceSlice at the API server, p50 / max", Product: ours.times.Summary(0.5, 1),
			Trivial: floor.times.Summary(0.5, 1),
			Ratio:   ratios(ours.times, floor.times, 0.5), Target: "≤ 300 ms",
		},
	}
	if b.nvidia != nil {
		theirs := results[b.nvidia]
		rows[0].NVIDIA, rows[1].NVIDIA = theirs.sockets.Summary(0.5, 1), theirs.times.Summary(0.5, 1)
	}
	return rows, nil
}

func (b *bench) startOnce(ctx context.Context, c *contender, into *startup) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	api := b.client.ResourceV1().ResourceSlices()
	own := metav1.ListOptions{FieldSelector: fmt.Sprintf("spec.driver=%s,spec.nodeName=%s", c.Name, c.node)}
	if err := api.DeleteCollection(ctx, metav1.DeleteOptions{}, own); err != nil {
		return fmt.Errorf("delete the ResourceSlices of driver %s: %w", c.Name, err)
	}
	list, err := api.List(ctx, own)
	if err != nil {
		return fmt.Errorf("list the ResourceSlices of driver %s: %w", c.Name, err)
	}
	own.ResourceVersion = list.ResourceVersion
	changes, err := api.Watch(ctx, own)
	if err != nil {
		return fmt.Errorf("watch the ResourceSlices of driver %s: %w", c.Name, err)
	}
	defer changes.Stop()
	process, err := c.Start()
	if err != nil {
		return err
	}
	socket, err := process.Connect(ctx)
	listening := time.Since(process.Started())
	if err != nil {
		process.Kill()
		return err
	}
	defer socket.Close()
	err = published(ctx, changes, process.Exited())
	took := time.Since(process.Started())
	if err != nil {
		process.Kill()
		return fmt.Errorf("%w: see %s", err, c.Log())
	}
	into.times, into.sockets = append(into.times, took), append(into.sockets, listening)
	return process.Stop(ctx)
}

// published waits for a slice with all GPUs.
func published(ctx context.Context, changes watch.Interface, exited <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for a ResourceSlice with %d devices: %w", newGPUs, context.Cause(ctx))
		case <-exited:
			return fmt.Errorf("the driver ended before there was a ResourceSlice with %d devices", newGPUs)
		case change, open := <-changes.ResultChan():
			if !open {
				return fmt.Errorf("the watch ended before there was a ResourceSlice with %d devices", newGPUs)
			}
			if slice, ok := change.Object.(*resourceapi.ResourceSlice); ok && change.Type != watch.Deleted &&
				len(slice.Spec.Devices) == newGPUs {
				return nil
			}
		}
	}
}
