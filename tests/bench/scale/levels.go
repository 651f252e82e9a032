// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

const (
	// levelAttribute says of each device how full its node is: 0 where nothing is granted of
	// it, and 1 to 3 in thirds.
	levelAttribute = "level"
	levelsOfNode   = 3
)

// levels keeps the level of each node in its ResourceSlices, as the driver would have to for
// claims that prefer nodes by it.
type levels struct {
	cluster *cluster
	pods    *binder
	on      bool
	// capacity is the GiB of each pool.
	capacity map[string]int64

	mu        sync.Mutex
	published map[string]int64
	writes    int
}

// newLevels adds the attribute to what is published first, of nodes that are empty.
func newLevels(c *cluster, pods *binder, published [][]*resourceapi.ResourceSlice, on bool) *levels {
	l := &levels{cluster: c, pods: pods, on: on, capacity: map[string]int64{}, published: map[string]int64{}}
	for _, ofNode := range published {
		for _, slice := range ofNode {
			for _, device := range slice.Spec.Devices {
				memory := device.Capacity[v1alpha1.CapMemory].Value
				l.capacity[slice.Spec.Pool.Name] += memory.Value() >> 30
			}
			if on {
				setLevel(slice, 0)
			}
		}
	}
	return l
}

func setLevel(slice *resourceapi.ResourceSlice, level int64) {
	for i := range slice.Spec.Devices {
		// The devices of equal nodes share their attributes.
		attributes := maps.Clone(slice.Spec.Devices[i].Attributes)
		attributes[levelAttribute] = resourceapi.DeviceAttribute{IntValue: &level}
		slice.Spec.Devices[i].Attributes = attributes
	}
}

// wanted are the levels of all nodes by what is granted.
func (l *levels) wanted() map[string]int64 {
	out := map[string]int64{}
	for pool, gib := range l.pods.granted() {
		out[pool] = min(1+gib*levelsOfNode/max(l.capacity[pool], 1), levelsOfNode)
	}
	return out
}

// stale are the pools of which another level is published.
func (l *levels) stale() map[string]int64 {
	wanted, out := l.wanted(), map[string]int64{}
	l.mu.Lock()
	defer l.mu.Unlock()
	for pool := range l.capacity {
		if wanted[pool] != l.published[pool] {
			out[pool] = wanted[pool]
		}
	}
	return out
}

// keep publishes what changes, as soon as it is seen, until ctx ends. That is faster than a
// driver may be, which would collect changes.
func (l *levels) keep(ctx context.Context) {
	if !l.on {
		return
	}
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	registration, err := l.pods.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify() }, UpdateFunc: func(_, _ any) { notify() }, DeleteFunc: func(any) { notify() },
	})
	if err != nil {
		progress("watch the claims: %v", err)
		return
	}
	defer func() { _ = l.pods.claims.RemoveEventHandler(registration) }()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		pools := l.stale()
		names := make([]string, 0, len(pools))
		for pool := range pools {
			names = append(names, pool)
		}
		err := each(ctx, len(names), func(ctx context.Context, i int) error {
			return l.publish(ctx, names[i], pools[names[i]])
		})
		if err != nil && ctx.Err() == nil {
			progress("%v", err)
			notify()
		}
	}
}

// publish writes the level of one node.
func (l *levels) publish(ctx context.Context, pool string, level int64) error {
	api := l.cluster.client.ResourceV1().ResourceSlices()
	stored, err := l.cluster.stored(ctx, strings.TrimSuffix(pool, v1alpha1.PoolName("")))
	if err != nil {
		return err
	}
	for i := range stored {
		slice := &stored[i]
		setLevel(slice, level)
		slice.Spec.Pool.Generation++
		if _, err := api.Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("write slice %s: %w", slice.Name, err)
		}
		l.mu.Lock()
		l.writes++
		l.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.published[pool] = level
	return nil
}

func (l *levels) written() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.writes
}

// settle waits until what is published is so.
func (l *levels) settle(ctx context.Context) error {
	if !l.on {
		return nil
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, settled, true, func(context.Context) (bool, error) {
		return len(l.stale()) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("wait until the levels of all nodes are published: %w", err)
	}
	return nil
}
