// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/http"
	"sync/atomic"
	"time"
)

// Clock is that of the API server, by which objects have their times, as its answers tell it. That of the desk may be
// another.
type Clock struct {
	// ahead is by how much it is ahead of the desk's, as a time.Duration.
	ahead atomic.Int64
}

// Now is the time; the desk's as long as nothing was answered.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Wrap has the Clock use the answers that come through a transport.
func (c *Clock) Wrap(through http.RoundTripper) http.RoundTripper {
	return transport(func(request *http.Request) (*http.Response, error) {
		response, err := through.RoundTrip(request)
		if err == nil {
			if at, err := http.ParseTime(response.Header.Get("Date")); err == nil {
				c.ahead.Store(int64(time.Until(at)))
			}
		}
		return response, err
	})
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(request *http.Request) (*http.Response, error) { return t(request) }
