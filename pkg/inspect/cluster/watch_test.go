// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
)

// An API server that restarts: what is shown may be old meanwhile, and is not afterwards.
func TestWatchSaysForHowLongItFails(t *testing.T) {
	client := fake.NewClientset(objects()...)
	var down atomic.Bool
	var restarts sync.Once
	refused := &url.Error{Op: "Get", URL: "https://127.0.0.1:6443/apis", Err: syscall.ECONNREFUSED}
	client.PrependWatchReactor("resourceslices", func(clienttesting.Action) (bool, watch.Interface, error) {
		return down.Load(), nil, refused
	})
	client.PrependReactor("list", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		return down.Load(), nil, refused
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	notes, ended := make(chan string), make(chan error, 1)
	go func() {
		ended <- cluster.Reader{Client: client}.Watch(ctx, func(in inspect.Input) error {
			restarts.Do(func() { down.Store(true) }) // after it has read everything, before it watches
			select {
			case notes <- strings.Join(in.Notes, "\n"):
			case <-ctx.Done():
			}
			return nil
		})
	}()
	until := func(want string) {
		t.Helper()
		for {
			select {
			case got := <-notes:
				if got == want {
					return
				}
			case err := <-ended:
				t.Fatalf("the watch ended before it noted %q: %v", want, err)
			}
		}
	}
	until("")
	until("Watching fails and is tried again: connection refused. What is shown of resourceclaims, resourceslices " +
		"may be old.")
	down.Store(false)
	until("")
	cancel()
	expect.Error(t, <-ended)
}
