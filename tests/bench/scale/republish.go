// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// waiting is how many pods wait for a GPU while a node publishes anew.
const waiting = 10

// sizes are what the API server holds of one node.
type sizes struct{ slices, devices, json, protobuf int }

func (c *cluster) sizes(ctx context.Context, node string) (sizes, error) {
	stored, err := c.stored(ctx, node)
	if err != nil {
		return sizes{}, err
	}
	s := sizes{slices: len(stored)}
	for _, slice := range stored {
		encoded, err := json.Marshal(slice)
		if err != nil {
			return s, fmt.Errorf("encode slice %s: %w", slice.Name, err)
		}
		s.devices += len(slice.Spec.Devices)
		s.json += len(encoded)
		s.protobuf += slice.Size()
	}
	return s, nil
}

// stored are the node's slices, ordered by name.
func (c *cluster) stored(ctx context.Context, node string) ([]resourceapi.ResourceSlice, error) {
	list, err := c.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node,
	})
	if err != nil {
		return nil, fmt.Errorf("list the slices of node %s: %w", node, err)
	}
	return list.Items, nil
}

// writes counts requests that write slices.
type writes struct {
	mu       sync.Mutex
	requests int
	bytes    int64
}

func (w *writes) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/resourceslices") {
			w.mu.Lock()
			w.requests++
			w.bytes += r.ContentLength
			w.mu.Unlock()
		}
		return next.RoundTrip(r)
	})
}

func (w *writes) read() (requests int, bytes int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.requests, w.bytes
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// republication is what it costs that one node publishes its GPUs in another
// order.
type republication struct {
	requests int
	bytes    int64
	// requeued is how many of the waiting pods the scheduler looked at again,
	// busy the processor time that it used meanwhile.
	requeued int
	busy     time.Duration
}

// republish has the library's controller publish the first node's GPUs in this
// order, as the plugin does where shares are spread. Meanwhile pods wait for
// GPUs of a model that no node has. Where nodeSelector is set they look for it
// among the labels of the nodes, where it is not among the GPUs alone.
func (b *bench) republish(ctx context.Context, c *cluster, pods *binder, k contestant, order []int,
	nodeSelector map[string]string) (republication, error) {
	var out republication
	// One more, which the scheduler certainly looks at again, tells when it has.
	if err := pods.create(ctx, pods.names(1)[0], kind{template: k.unsatisfiableTemplate()}); err != nil {
		return out, err
	}
	for _, name := range pods.names(waiting) {
		if err := pods.create(ctx, name, kind{template: k.unsatisfiableTemplate(), nodeSelector: nodeSelector}); err != nil {
			return out, err
		}
	}
	before, err := c.unschedulable(ctx, waiting+1, 0)
	if err != nil {
		return out, fmt.Errorf("wait until %d pods cannot be scheduled: %w", waiting, err)
	}
	if out.requests, out.bytes, err = b.publishInOrder(ctx, c, k, order); err != nil {
		return out, err
	}
	after, err := c.unschedulable(ctx, waiting+1, requeued(before)+1)
	if err != nil {
		return out, fmt.Errorf("wait until pods were looked at again: %w", err)
	}
	out.requeued = int(requeued(after)-requeued(before)) - 1
	out.busy = after.cpu() - before.cpu()
	return out, pods.clear(ctx)
}

// requeued is how many pods the scheduler has looked at again for the sake of a
// ResourceSlice.
func requeued(m metrics) float64 {
	return m.sum("scheduler_queue_incoming_pods_total", "event", "ResourceSlice")
}

// unschedulable waits until that many pods wait for a change of the cluster, and
// that many were looked at again since the scheduler was started.
func (c *cluster) unschedulable(ctx context.Context, pods int, again float64) (metrics, error) {
	var last metrics
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, settled, true, func(ctx context.Context) (bool, error) {
		var err error
		if last, err = c.scheduler.metrics(ctx); err != nil {
			return false, err
		}
		return requeued(last) >= again && last.sum("scheduler_pending_pods", "queue", "unschedulable") >= float64(pods), nil
	})
	return last, err
}

func (b *bench) publishInOrder(ctx context.Context, c *cluster, k contestant, order []int) (requests int, bytes int64,
	err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	node := c.nodes[0]
	machines, err := b.fleet.machines(ctx, k.machine)
	if err != nil {
		return 0, 0, err
	}
	wanted, err := b.fleet.build(node.Name, machines[0], k.mode, order)
	if err != nil {
		return 0, 0, err
	}
	var counted writes
	config := rest.CopyConfig(c.config)
	config.Wrap(counted.wrap)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return 0, 0, fmt.Errorf("make the API client: %w", err)
	}
	controller, err := resourceslice.StartController(ctx, resourceslice.Options{
		DriverName: v1alpha1.DriverName, KubeClient: client, Resources: &wanted,
		Owner: &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
	})
	if err != nil {
		return 0, 0, fmt.Errorf("start the controller of ResourceSlices: %w", err)
	}
	defer controller.Stop()
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, settled, true, func(ctx context.Context) (bool, error) {
		stored, err := c.stored(ctx, node.Name)
		return slices.Equal(storedNames(stored), wantedNames(wanted.Pools[v1alpha1.PoolName(node.Name)])), err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("wait until node %s has published its GPUs anew: %w", node.Name, err)
	}
	requests, bytes = counted.read()
	return requests, bytes, nil
}

func storedNames(stored []resourceapi.ResourceSlice) []string {
	var names []string
	for _, slice := range stored {
		for _, device := range slice.Spec.Devices {
			names = append(names, device.Name)
		}
	}
	return names
}

func wantedNames(pool resourceslice.Pool) []string {
	var names []string
	for _, slice := range pool.Slices {
		for _, device := range slice.Devices {
			names = append(names, device.Name)
		}
	}
	return names
}
