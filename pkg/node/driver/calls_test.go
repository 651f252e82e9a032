// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2/ktesting"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

func TestDrainWaitsForTheKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &calls{}
		call := func(takes time.Duration) {
			_, _ = c.intercept(t.Context(), nil, nil, func(context.Context, any) (any, error) {
				time.Sleep(takes)
				return nil, nil
			})
		}
		start := time.Now()
		go call(2 * time.Second)
		go func() {
			// It comes within the quiet that follows the first.
			time.Sleep(2*time.Second + drainQuiet/2)
			call(time.Second)
		}()
		synctest.Wait()
		expect.NoError(t, c.drain(t.Context(), drainQuiet, drainLimit))
		if took, want := time.Since(start), 3*time.Second+drainQuiet/2+drainQuiet; took < want || took > want+2*drainPolling {
			t.Errorf("drained after %s, want %s: a call was cut off, or the end came late", took, want)
		}
	})
}

func TestDrainGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &calls{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			_, _ = c.intercept(ctx, nil, nil, func(context.Context, any) (any, error) {
				<-ctx.Done()
				return nil, nil
			})
		}()
		synctest.Wait()
		start := time.Now()
		if err := c.drain(t.Context(), drainQuiet, drainLimit); err == nil || time.Since(start) > drainLimit+drainPolling {
			t.Errorf("a call that does not end: %v after %s", err, time.Since(start))
		}
	})
}

func TestRegistrationIsTold(t *testing.T) {
	for name, tc := range map[string]struct {
		request any
		err     error
		want    int
	}{
		"registered":      {&registerapi.RegistrationStatus{PluginRegistered: true}, nil, 1},
		"refused":         {&registerapi.RegistrationStatus{Error: "no"}, nil, 0},
		"not taken":       {&registerapi.RegistrationStatus{PluginRegistered: true}, errors.New("no"), 0},
		"something other": {&registerapi.InfoRequest{}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			told := 0
			c := &calls{onRegistered: func() { told++ }}
			_, err := c.intercept(t.Context(), tc.request, nil, func(context.Context, any) (any, error) { return nil, tc.err })
			if told != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("told %d times, want %d; error %v", told, tc.want, err)
			}
		})
	}
}

// The kubelet's first call waits for the GPUs, but not for ever, and not without
// need.
func TestFirstClaimsWaitForTheGPUs(t *testing.T) {
	for name, tc := range map[string]struct {
		readAfter, cancelAfter, want time.Duration
	}{
		"read already":  {0, time.Hour, 0},
		"read soon":     {time.Second, time.Hour, time.Second},
		"never read":    {time.Hour, time.Hour, gpusLimit},
		"call is ended": {time.Hour, 2 * time.Second, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tc.cancelAfter)
				defer cancel()
				read := make(chan struct{})
				if tc.readAfter == 0 {
					close(read)
				} else {
					time.AfterFunc(tc.readAfter, func() { close(read) })
				}
				start := time.Now()
				(&driver{read: read}).waitForGPUs(ctx)
				expect.Equal(t, tc.want, time.Since(start), "waited")
			})
		})
	}
}

// The plugin is healthy if it answers on both of its sockets, also while its GPUs have not
// been read, which no restart changes.
func TestHealthyIsWhoAnswersOnBothSockets(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	dir := t.TempDir()
	cfg := Config{PodUID: "uid", PluginDir: dir, RegistrarDir: dir}
	expect.Error(t, CheckHealthy(ctx, cfg), cfg.registrarSocket())
	helper, err := kubeletplugin.Start(ctx, &driver{read: make(chan struct{})},
		kubeletplugin.DriverName(v1alpha1.DriverName), kubeletplugin.KubeClient(fake.NewClientset()),
		kubeletplugin.PluginDataDirectoryPath(dir), kubeletplugin.RegistrarDirectoryPath(dir),
		kubeletplugin.RollingUpdate(cfg.PodUID), kubeletplugin.Serialize(false))
	expect.NoError(t, err)
	expect.Error(t, CheckHealthy(ctx, cfg))
	other := Config{PodUID: "uid", PluginDir: filepath.Join(dir, "other"), RegistrarDir: dir}
	expect.Error(t, CheckHealthy(ctx, other), other.draSocket())
	helper.Stop()
	if err := CheckHealthy(ctx, cfg); err == nil {
		t.Error("healthy after its end")
	}
}
