// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/report"
)

const starts = 10

// measureStart starts the drivers in turn, each time without a ResourceSlice
// at the API server, until theirs is there.
func (b *bench) measureStart(ctx context.Context) error {
	for range starts {
		for _, c := range b.contenders {
			if err := b.startOnce(ctx, c); err != nil {
				return err
			}
		}
	}
	b.row("process start → socket, p50 / max", "≤ 40 ms", []float64{0.5, 1}, []float64{0.5},
		func(c *contender) report.Sample { return c.sockets })
	b.row("process start → ResourceSlice at the API server, p50 / max", "≤ 300 ms", []float64{0.5, 1}, []float64{0.5},
		func(c *contender) report.Sample { return c.published })
	return nil
}

func (b *bench) startOnce(ctx context.Context, c *contender) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	api := b.Client.ResourceV1().ResourceSlices()
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
	defer process.Stop()
	socket, err := process.Connect(ctx)
	listening := time.Since(process.Started)
	if err != nil {
		return err
	}
	defer socket.Close()
	_, err = watchtools.UntilWithoutRetry(ctx, changes, func(change watch.Event) (bool, error) {
		slice, ok := change.Object.(*resourceapi.ResourceSlice)
		return ok && change.Type != watch.Deleted && len(slice.Spec.Devices) == gpus, nil
	})
	took := time.Since(process.Started)
	if err != nil {
		return fmt.Errorf("wait for a ResourceSlice with %d devices: %w: see %s", gpus, err, c.Log())
	}
	c.published, c.sockets = append(c.published, took), append(c.sockets, listening)
	return nil
}
