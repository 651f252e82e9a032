// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
)

// What doctor says of times is by the clock of the API server, whatever that of the desk is.
func TestTheClockIsTheAPIServers(t *testing.T) {
	for _, ahead := range []time.Duration{-24 * time.Hour, -time.Hour, 0, 36 * time.Minute, 24 * time.Hour} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
			w.WriteHeader(http.StatusForbidden)
		}))
		var clock cluster.Clock
		config := &rest.Config{Host: server.URL}
		config.Wrap(clock.Wrap)
		client, err := kubernetes.NewForConfig(config)
		expect.NoError(t, err)
		s, err := cluster.Reader{Client: client, Clock: &clock}.Snapshot(t.Context())
		server.Close()
		expect.NoError(t, err)
		// The header has seconds.
		if off := time.Now().Add(ahead).Sub(s.Now); off.Abs() > time.Minute {
			t.Errorf("ahead by %v: the time is off by %v", ahead, off)
		}
	}
}
