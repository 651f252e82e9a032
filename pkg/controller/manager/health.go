// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Checks are what has to be well for the process to be ready. The zero value is ready
// for use, and well. It is safe for concurrent use.
type Checks struct {
	mu    sync.Mutex
	names []string
	check map[string]func() error
}

// Add adds a check, or replaces that of the name. An error is the reason, in words.
func (c *Checks) Add(name string, check func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.check == nil {
		c.check = map[string]func() error{}
	}
	if c.check[name] == nil {
		c.names = append(c.names, name)
	}
	c.check[name] = check
}

// Run runs all checks, in the order in which they were added: a line for each, and
// whether all are well.
func (c *Checks) Run() (report string, well bool) {
	c.mu.Lock()
	names := append([]string(nil), c.names...)
	check := make([]func() error, 0, len(names))
	for _, name := range names {
		check = append(check, c.check[name])
	}
	c.mu.Unlock()
	if len(names) == 0 {
		return "ok: this replica does not lead\n", true
	}
	var lines strings.Builder
	well = true
	for i, name := range names {
		if err := check[i](); err != nil {
			well = false
			fmt.Fprintf(&lines, "[-]%s: %v\n", name, err)
		} else {
			fmt.Fprintf(&lines, "[+]%s ok\n", name)
		}
	}
	return lines.String(), well
}

// Handler answers /readyz by the checks, and /livez by live, which is given the
// request as healthz checks of Kubernetes are. /status is the answer of /readyz for
// people: kubectl shows it whether all is well or not.
func Handler(ready *Checks, live func(*http.Request) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		report, well := ready.Run()
		answer(w, report, well)
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		report, _ := ready.Run()
		answer(w, report, true)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) {
		if err := live(r); err != nil {
			answer(w, err.Error()+"\n", false)
			return
		}
		answer(w, "ok\n", true)
	})
	return mux
}

func answer(w http.ResponseWriter, text string, well bool) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !well {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	// Who does not wait for the answer needs none.
	_, _ = w.Write([]byte(text))
}

// A request is a line and the answer a few: who takes longer is not served.
const (
	requestMost  = 5 * time.Second
	shutdownMost = time.Second
)

// Serve serves the handler at the address, such as ":8081", until the context ends. An
// error says that it does not; what it does not serve later is logged.
func Serve(ctx context.Context, address string, handler http.Handler) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve the health checks at %s: %w", address, err)
	}
	server := &http.Server{Handler: handler, ReadTimeout: requestMost, WriteTimeout: requestMost, MaxHeaderBytes: 1 << 14}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "The health checks are not served any more", "address", address)
		}
	}()
	context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownMost)
		defer cancel()
		if err := server.Shutdown(end); err != nil {
			klog.FromContext(ctx).Error(err, "The server of the health checks did not end in time", "address", address)
		}
	})
	return nil
}
