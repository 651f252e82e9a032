// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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
