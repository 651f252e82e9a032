// SPDX-License-Identifier: Apache-2.0

package probes

import (
	"bytes"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

// sendingMost is how many answers may be on their way at one time.
const sendingMost = 64

// AtOnce makes so many answers at one time, and refuses others with 503. Each is made before it is sent, so that
// who reads it slowly keeps nobody from another one. Where many are on their way the oldest is cut off.
func AtOnce(most int, handler http.Handler) http.Handler {
	places := make(chan struct{}, most)
	var sent sending
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
		default:
			http.Error(w, "others are being answered: ask again", http.StatusServiceUnavailable)
			return
		}
		made := made{header: http.Header{}, code: http.StatusOK}
		func() {
			defer func() { <-places }()
			handler.ServeHTTP(&made, r)
		}()
		to := http.NewResponseController(w)
		sent.begin(to)
		defer sent.end(to)
		maps.Copy(w.Header(), made.header)
		w.WriteHeader(made.code)
		// Who does not wait for the answer needs none.
		_, _ = w.Write(made.body.Bytes())
	})
}

// made is an answer before it is sent.
type made struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (m *made) Header() http.Header { return m.header }

// WriteHeader implements http.ResponseWriter.
func (m *made) WriteHeader(code int) { m.code = code }

// Write implements http.ResponseWriter.
func (m *made) Write(data []byte) (int, error) { return m.body.Write(data) }

// sending are the answers that are on their way, the oldest first.
type sending struct {
	mu  sync.Mutex
	all []*http.ResponseController
}

func (s *sending) begin(to *http.ResponseController) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == sendingMost {
		_ = s.all[0].SetWriteDeadline(time.Now()) // whose connection is gone needs none
		s.all = s.all[1:]
	}
	s.all = append(s.all, to)
}

func (s *sending) end(to *http.ResponseController) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(other *http.ResponseController) bool { return other == to })
}
