package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Files of the pipe directory.
const (
	socketName = "control"
	pidName    = "nvidia-cuda-mps-control.pid"
	lockName   = "control_lock"
)

// endOfAnswer ends each answer: an answer can have any number of lines.
const endOfAnswer = "\x04"

// serve is the daemon. It returns when it is told to quit, or terminated.
func serve(pipes, logs, device string) error {
	unlock, err := lock(filepath.Join(pipes, lockName))
	if err != nil {
		return err
	}
	defer unlock()
	logFile, err := os.OpenFile(filepath.Join(logs, "control.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer logFile.Close()
	logger := slog.New(slog.NewTextHandler(logFile, nil))

	// Clients of every user connect.
	syscall.Umask(0)
	listener, err := net.Listen("unix", filepath.Join(pipes, socketName))
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := os.WriteFile(filepath.Join(pipes, pidName), fmt.Appendln(nil, os.Getpid()), 0o644); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	logger.Info("Started", "device", device)
	d := &daemon{logger: logger, quit: quit}
	go d.accept(listener)
	<-ctx.Done()
	logger.Info("Ended")
	return nil
}

// lock is released by the end of the process.
func lock(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(errors.New("an instance of this daemon is already running"), f.Close())
	}
	return f.Close, nil
}

type daemon struct {
	logger *slog.Logger
	quit   context.CancelFunc

	mu      sync.Mutex
	clients int
}

func (d *daemon) accept(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go d.talk(connection)
	}
}

func (d *daemon) talk(connection net.Conn) {
	defer connection.Close()
	d.count(1)
	defer d.count(-1)
	for lines := bufio.NewScanner(connection); lines.Scan(); {
		answer, quit := d.answer(strings.TrimSpace(lines.Text()))
		if _, err := io.WriteString(connection, answer+endOfAnswer); err != nil {
			d.logger.Info("A client went away before it was answered", "err", err)
			return
		}
		if quit {
			d.quit()
			return
		}
	}
}

func (d *daemon) count(change int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clients += change
	d.logger.Info("Connections", "count", d.clients)
}

func (d *daemon) answer(command string) (answer string, quit bool) {
	switch name, _, _ := strings.Cut(command, " "); name {
	case "", "get_server_list":
		// There is never a server.
		return "", false
	case "quit":
		return "", true
	default:
		return fmt.Sprintf("Unrecognized command %s\n", name), false
	}
}
