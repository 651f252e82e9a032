// SPDX-License-Identifier: Apache-2.0

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
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Files of the pipe directory: those that nvidia-cuda-mps-control 535 makes there, with
// its modes, and the one with its number that it makes in the background only.
const (
	socketName     = "control"            // for clients, and for commands of any user
	privilegedName = "control_privileged" // for commands of root; it alone takes quit
	lockName       = "control_lock"
	logName        = "log" // a named pipe, for the servers
	pidName        = "nvidia-cuda-mps-control.pid"
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

	syscall.Umask(0)
	if err := syscall.Mkfifo(filepath.Join(pipes, logName), 0o777); err != nil {
		return err
	}
	privileged, err := listen(pipes, privilegedName, 0o755)
	if err != nil {
		return err
	}
	defer privileged.Close()
	listener, err := listen(pipes, socketName, 0o666)
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
	d := &daemon{logger: logger, quit: quit, device: device, limits: map[string]string{},
		users: users{log: filepath.Join(logs, "server.log")}}
	defer d.endServer()
	go d.accept(listener, false)
	go d.accept(privileged, true)
	<-ctx.Done()
	logger.Info("Ended")
	return nil
}

func listen(pipes, name string, mode os.FileMode) (net.Listener, error) {
	path := filepath.Join(pipes, name)
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
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
	device string

	mu      sync.Mutex
	clients int
	server  *server           // nil if there is none
	limits  map[string]string // by command, without its verb, and by what it was said of
	users   users
}

func (d *daemon) accept(listener net.Listener, privileged bool) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go d.talk(connection, privileged)
	}
}

func (d *daemon) talk(connection net.Conn, privileged bool) {
	defer connection.Close()
	d.count(1)
	defer d.count(-1)
	defer d.users.leave(connection)
	for lines := bufio.NewScanner(connection); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		answer, quit := "", false
		switch line {
		case "client", "fault", "synchronize":
			answer = d.use(connection, line)
		default:
			answer, quit = d.answer(line, privileged)
		}
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

func (d *daemon) answer(command string, privileged bool) (answer string, quit bool) {
	name, rest, _ := strings.Cut(command, " ")
	switch name {
	case "":
		return "", false
	case "get_server_list":
		return d.serverList(), false
	case "get_server_status":
		return d.serverStatus(rest), false
	case "get_client_list":
		return d.users.list(), false
	case "start_server":
		return d.startServer(), false
	case "shutdown_server":
		d.endServer()
		return "", false
	case "quit":
		if !privileged {
			return "Not enough privilege to execute quit command\n", false
		}
		return "", true
	}
	verb, limit, _ := strings.Cut(name, "_")
	switch {
	case !slices.Contains(limitNames, limit):
		return fmt.Sprintf("Unrecognized command %s\n", name), false
	case verb == "set":
		d.setLimit(limit, rest)
		return "", false
	default:
		return d.limitOf(limit, rest) + "\n", false
	}
}

// limitNames are what the daemon keeps; it limits nobody.
var limitNames = []string{
	"default_active_thread_percentage", "active_thread_percentage", "default_device_pinned_mem_limit",
	"device_pinned_mem_limit",
}

// setLimit keeps the last word of a limit's arguments: what comes before says of which
// server and device it is.
func (d *daemon) setLimit(name, arguments string) {
	words := strings.Fields(arguments)
	if len(words) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	last := len(words) - 1
	d.limits[name] = arguments
	d.limits[strings.Join(append([]string{name}, words[:last]...), " ")] = words[last]
}

// limitOf is what was set last of a server and device; where none are named, of any, with
// all that was said.
func (d *daemon) limitOf(name, of string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.limits[strings.Join(append([]string{name}, strings.Fields(of)...), " ")]
}
