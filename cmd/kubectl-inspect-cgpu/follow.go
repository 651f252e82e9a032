// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
)

// follow prints the table whenever it changes, until the context ends.
func (o *options) follow(ctx context.Context, reader cluster.Reader, usage *cluster.Usage, p *printer) error {
	show := p.printAgain
	if usage != nil {
		reader.Every = useEvery
		show = func(in inspect.Input) error {
			usage.Fill(ctx, &in)
			return p.printAgain(in)
		}
	}
	if p.screen == nil {
		return reader.Watch(ctx, show)
	}
	// What client-go logs would stay in the middle of the screen. That watching fails is in the
	// notes. Some of client-go logs by klog's own logger, not by the context's: it is that one
	// that is replaced, before anything logs and until the program ends.
	klog.SetLogger(logr.Discard())
	signals := listen()
	defer signals.stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var drawing sync.WaitGroup
	var failed error
	drawing.Go(func() {
		if failed = signals.draw(ctx, p); failed != nil {
			cancel()
		}
	})
	err := reader.Watch(ctx, show)
	cancel()
	drawing.Wait()
	return cmp.Or(err, failed, p.end())
}

// terminalSignals are what a terminal, and the shell in it, tell a program that has its screen.
type terminalSignals struct {
	resized, suspend, continued chan os.Signal
}

func listen() *terminalSignals {
	s := &terminalSignals{make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan os.Signal, 1)}
	signal.Notify(s.resized, syscall.SIGWINCH)
	signal.Notify(s.suspend, syscall.SIGTSTP)
	signal.Notify(s.continued, syscall.SIGCONT)
	return s
}

func (s *terminalSignals) stop() {
	for _, c := range []chan os.Signal{s.resized, s.suspend, s.continued} {
		signal.Stop(c)
	}
}

// draw draws what is printed as the signals ask for, until the context ends.
func (s *terminalSignals) draw(ctx context.Context, p *printer) error {
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-s.resized:
			err = p.resized()
		case <-s.suspend:
			err = p.suspended(s.sleep)
		case <-s.continued: // after it was stopped by a signal that no program is told of
			err = p.continued()
		}
		if err != nil {
			return err
		}
	}
}

// stopsWithin is how long a process that has told itself to stop may run on.
const stopsWithin = time.Second

// sleep stops this process, and returns when it goes on. The runtime of Go keeps its handler of
// SIGTSTP once there was one, so it is SIGSTOP that stops it.
func (s *terminalSignals) sleep() {
	if session, err := unix.Getsid(0); err != nil || session == unix.Getpgrp() {
		return // as of a container's first process: there is no shell that would continue it
	}
	select {
	case <-s.continued: // of an earlier stop
	default:
	}
	if err := unix.Kill(unix.Getpid(), unix.SIGSTOP); err != nil {
		return // nothing has stopped
	}
	select {
	case <-s.continued:
	case <-time.After(stopsWithin):
	}
}
