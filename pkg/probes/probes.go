// SPDX-License-Identifier: Apache-2.0

// Package probes serves what says of a program whether it works: for probes of the kubelet,
// and for people, with the reasons.
package probes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Checks are what has to be well for the process to be ready. The zero value is ready
// for use, and well. It is safe for concurrent use.
type Checks struct {
	// WhenNone is what the report says while there are none.
	WhenNone string

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

// Each runs all checks, in the order in which they were added.
func (c *Checks) Each(see func(name string, err error)) {
	c.mu.Lock()
	names := slices.Clone(c.names)
	check := make([]func() error, 0, len(names))
	for _, name := range names {
		check = append(check, c.check[name])
	}
	c.mu.Unlock()
	for i, name := range names {
		see(name, check[i]())
	}
}

// Run runs all checks: a line for each, and whether all are well.
func (c *Checks) Run() (report string, well bool) {
	var lines strings.Builder
	well = true
	c.Each(func(name string, err error) {
		if err != nil {
			well = false
			fmt.Fprintf(&lines, "[-]%s: %v\n", name, err)
		} else {
			fmt.Fprintf(&lines, "[+]%s ok\n", name)
		}
	})
	if lines.Len() == 0 {
		return "ok: " + c.WhenNone + "\n", true
	}
	return lines.String(), well
}

// Handler answers /readyz by the checks, and /livez, also called /healthz, by live, which
// is given the request as healthz checks of Kubernetes are. /status is the answer of
// /readyz for people: kubectl shows it whether all is well or not.
func Handler(ready *Checks, live func(*http.Request) error) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		report, well := ready.Run()
		answer(w, report, well)
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		report, _ := ready.Run()
		answer(w, report, true)
	})
	alive := func(w http.ResponseWriter, r *http.Request) {
		if err := live(r); err != nil {
			answer(w, err.Error()+"\n", false)
			return
		}
		answer(w, "ok\n", true)
	}
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /healthz", alive)
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

// A request is a line and the answer not long: who takes longer is not served.
const (
	requestMost  = 10 * time.Second
	shutdownMost = time.Second
	// freeAgain is how often an address is tried that another process has.
	freeAgain = time.Second
)

// Off reports whether the setting of an address means that nothing is served.
func Off(address string) bool { return address == "" || address == "0" }

// OnNode is the address with the node's IP as its host, if it has none and the IP is known.
func OnNode(address, ip string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host != "" || ip == "" {
		return address
	}
	return net.JoinHostPort(ip, port)
}

// Serve serves the handler at the address, such as ":8081", until the context ends. An
// error says that it does not; what it does not serve later is logged.
func Serve(ctx context.Context, address string, handler http.Handler) error {
	listener, err := listen(ctx, address)
	if err != nil {
		return err
	}
	serve(ctx, listener, handler)
	return nil
}

// ServeWhenFree is Serve for where another process may have the address, as on the host's
// network during an update: it waits until that one has ended, and logs what it waits for.
func ServeWhenFree(ctx context.Context, address string, handler http.Handler) {
	logger, said := klog.FromContext(ctx), ""
	for {
		listener, err := listen(ctx, address)
		if err == nil {
			if said != "" {
				logger.Info("Serving at the address that was taken", "address", address)
			}
			serve(ctx, listener, handler)
			return
		}
		if text := err.Error(); text != said && ctx.Err() == nil {
			said = text
			logger.Info("Nothing is served yet, will try again", "address", address, "after", freeAgain, "reason", text)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(freeAgain):
		}
	}
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve health checks or metrics at %s: %w", address, err)
	}
	return listener, nil
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler) {
	address := listener.Addr().String()
	server := &http.Server{Handler: handler, ReadTimeout: requestMost, WriteTimeout: requestMost, MaxHeaderBytes: 1 << 14}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "Health checks or metrics are not served any more", "address", address)
		}
	}()
	context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownMost)
		defer cancel()
		if err := server.Shutdown(end); err != nil {
			klog.FromContext(ctx).Error(err, "The server of health checks or metrics did not end in time", "address", address)
		}
	})
}
