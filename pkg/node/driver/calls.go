// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"path"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/wait"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drapbv1beta1 "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/procs"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/metrics"
)

const (
	// drainQuiet is how long no call must have run before an instance stops. The
	// kubelet asks the instance that registered last; a call for this one that
	// was on its way then has come by now.
	drainQuiet = 300 * time.Millisecond
	// drainLimit leaves the rest of a pod's 30 s of grace to what comes after.
	drainLimit   = 20 * time.Second
	drainPolling = 20 * time.Millisecond
)

// calls follows the kubelet's calls. The helper breaks off the calls that run
// when it is stopped, and the kubelet tries a claim again only after more than a
// minute: so it is stopped when none runs.
type calls struct {
	// onRegistered is told when the kubelet has registered this instance, from
	// when on it can be asked to prepare claims.
	onRegistered func()
	// counts, if set, count the calls that are about claims.
	counts *metrics.Plugin
	// busy, if set, is told before each such call, and done after it.
	busy procs.Busy

	mu      sync.Mutex
	running int
	lastEnd time.Time
}

// intercept is a [grpc.UnaryServerInterceptor].
func (c *calls) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any,
	error) {
	c.begin()
	defer c.end()
	if aboutClaims(req) {
		defer c.busy.Begin()()
	}
	start := time.Now()
	resp, err := handler(ctx, req)
	if c.counts != nil && info != nil && aboutClaims(req) {
		c.counts.Called(path.Base(info.FullMethod), time.Since(start), err)
	}
	if status, ok := req.(*registerapi.RegistrationStatus); ok && err == nil && status.PluginRegistered {
		c.onRegistered()
	}
	return resp, err
}

// aboutClaims reports whether a request names claims, in whatever version of the API.
func aboutClaims(req any) bool {
	switch r := req.(type) {
	case *drapb.NodePrepareResourcesRequest:
		return len(r.Claims) > 0
	case *drapb.NodeUnprepareResourcesRequest:
		return len(r.Claims) > 0
	case *drapbv1beta1.NodePrepareResourcesRequest:
		return len(r.Claims) > 0
	case *drapbv1beta1.NodeUnprepareResourcesRequest:
		return len(r.Claims) > 0
	default:
		return false
	}
}

func (c *calls) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running++
}

func (c *calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	c.lastEnd = time.Now()
}

// idleFor says how many calls run and, where none does, since when.
func (c *calls) idleFor() (running int, idle time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running, time.Since(c.lastEnd)
}

// drain waits until no call has run for as long as quiet, but not longer than
// limit; the error then says how many still run.
func (c *calls) drain(ctx context.Context, quiet, limit time.Duration) error {
	start := time.Now()
	err := wait.PollUntilContextTimeout(ctx, drainPolling, limit, true, func(context.Context) (bool, error) {
		running, idle := c.idleFor()
		return running == 0 && min(idle, time.Since(start)) >= quiet, nil
	})
	if err != nil {
		running, _ := c.idleFor()
		return fmt.Errorf("the kubelet did not stop asking within %s, %d of its calls are cut off: %w", limit, running, err)
	}
	return nil
}
