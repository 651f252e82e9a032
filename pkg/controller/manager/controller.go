// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"fmt"
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Reconcile looks at what is there now and does what is missing, for the thing that
// the key names. What it did before, and which change it is called for, it must
// not depend on: it is called again after a restart, and once for many changes. It
// is called once at a time for a key, and for several keys at once if the controller has
// several workers.
//
// After an error it is called again, with growing delays of the key's own. Otherwise
// it is called again after the returned time, if that is above zero. A panic is
// logged with its stack and taken for an error: one object that nobody thought of
// does not end the work on all others.
//
// Of keys in the form namespace/name each namespace gets its share of the workers'
// time: one with many keys, or with keys that take long, does not keep another
// waiting.
type Reconcile func(ctx context.Context, key string) (again time.Duration, err error)

// Earlier returns the shorter of two waits that a Reconcile may return, of which zero is none.
func Earlier(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// Controller calls a Reconcile for the keys of its queue.
type Controller struct {
	name      string
	reconcile Reconcile
	fair      *fairQueue
	queue     workqueue.TypedRateLimitingInterface[string]
	observe   Observe
}

// Observe is told how long a Reconcile of the controller took, and its error.
type Observe func(name string, took time.Duration, err error)

// The least and the longest time to wait after an error.
const (
	retryAfter = 100 * time.Millisecond
	retryMost  = 5 * time.Minute
)

// NewController makes a controller. The name is for its log and metrics.
func NewController(name string, reconcile Reconcile) *Controller {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryAfter, retryMost)
	fair := newFairQueue()
	// With a name their metrics are kept, where the program has set a provider of metrics.
	return &Controller{name: name, reconcile: reconcile, fair: fair, observe: func(string, time.Duration, error) {},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[string]{
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{
				Name: name,
				Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: name, Queue: fair,
					Clock: seldom{}}),
			}),
		})}
}

// seldom is the clock of a queue, which by itself writes twice a second how long its keys have been worked on:
// each queue would wake the process so often, also where it has none. Nobody asks for its metrics more often.
type seldom struct{ clock.RealClock }

const metricsInterval = 5 * time.Second

// NewTicker implements clock.WithTicker.
func (seldom) NewTicker(d time.Duration) clock.Ticker {
	return clock.RealClock{}.NewTicker(max(d, metricsInterval))
}

// SetObserve has each Reconcile told. It is to be called before Run.
func (c *Controller) SetObserve(observe Observe) { c.observe = observe }

// Name is the one that NewController was given.
func (c *Controller) Name() string { return c.name }

// Enqueue says that something has changed that the key's state depends on.
func (c *Controller) Enqueue(key string) { c.queue.Add(key) }

// EnqueueAfter is Enqueue after some time. Of several calls for a key the one
// whose time is over first counts: many changes in that time make one Reconcile.
func (c *Controller) EnqueueAfter(key string, d time.Duration) { c.queue.AddAfter(key, d) }

// Run works on what has changed until the context ends, and returns when the last
// Reconcile has. It can be called once.
func (c *Controller) Run(ctx context.Context, workers int) {
	logger := klog.LoggerWithName(klog.FromContext(ctx), c.name)
	ctx = klog.NewContext(ctx, logger)
	defer context.AfterFunc(ctx, c.queue.ShutDown)()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	wg.Wait()
}

// next is false when the queue is shut down.
func (c *Controller) next(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	start := time.Now()
	again, err := c.call(ctx, key)
	took := time.Since(start)
	c.fair.charge(key, took)
	c.observe(c.name, took, err)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		klog.FromContext(ctx).Error(err, "Will try again", "key", key, "failures", c.queue.NumRequeues(key)+1)
		c.queue.AddRateLimited(key)
	default:
		c.queue.Forget(key)
		if again > 0 {
			c.queue.AddAfter(key, again)
		}
	}
	return true
}

// call makes an error of a panic, which HandleCrash logs and passes on.
func (c *Controller) call(ctx context.Context, key string) (again time.Duration, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v", reason)
		}
	}()
	defer utilruntime.HandleCrashWithContext(ctx)
	return c.reconcile(ctx, key)
}
