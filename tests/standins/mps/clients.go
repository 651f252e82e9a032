// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// users are the clients of the server. As NVIDIA's documents have it, a fatal fault of one is that of all, the server
// says not whose it was, and takes no further client until all of these have gone.
type users struct {
	log string

	mu      sync.Mutex
	clients []*user
}

type user struct {
	connection net.Conn
	pid        int
	lost       bool
}

// use is what a client does. The answer is CUDA's error, empty for none.
func (d *daemon) use(connection net.Conn, what string) string {
	if what == "client" {
		// NVIDIA's daemon starts its server for the first client.
		d.startServer()
	}
	u := &d.users
	u.mu.Lock()
	defer u.mu.Unlock()
	i := slices.IndexFunc(u.clients, func(c *user) bool { return c.connection == connection })
	lost := slices.ContainsFunc(u.clients, func(c *user) bool { return c.lost })
	switch {
	case what == "client" && lost:
		return "CUDA_ERROR_MPS_SERVER_NOT_READY"
	case what == "client" && i < 0:
		c := &user{connection: connection, pid: peer(connection)}
		u.clients = append(u.clients, c)
		u.say("Client {PID: %d, Context ID: 0} connected", c.pid)
	case what == "fault":
		u.say("Server is handling a fatal GPU error")
		for _, c := range u.clients {
			c.lost = true
			u.say("status of client {%d, 1} is INACTIVE", c.pid)
		}
		return "CUDA_ERROR_ILLEGAL_ADDRESS"
	case i >= 0 && u.clients[i].lost:
		return "CUDA_ERROR_ILLEGAL_ADDRESS"
	}
	return ""
}

// leave is for a connection that has ended.
func (u *users) leave(connection net.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.clients = slices.DeleteFunc(u.clients, func(c *user) bool {
		if c.connection == connection {
			u.say("Client {PID: %d, Context ID: 0} disconnected", c.pid)
		}
		return c.connection == connection
	})
}

// faulty reports whether clients are there that a fault has ended.
func (u *users) faulty() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.ContainsFunc(u.clients, func(c *user) bool { return c.lost })
}

func (u *users) list() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	var pids strings.Builder
	for _, c := range u.clients {
		fmt.Fprintln(&pids, c.pid)
	}
	return pids.String()
}

// say writes a line into the server's log. The lock is held.
func (u *users) say(format string, args ...any) {
	f, err := os.OpenFile(u.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return // the directory goes with the test
	}
	defer f.Close()
	fmt.Fprintf(f, "[Server] "+format+"\n", args...)
}

// peer is the process at the other end of a connection, 0 where it is in no PID namespace below this one.
func peer(connection net.Conn) (pid int) {
	c, is := connection.(*net.UnixConn)
	if !is {
		return 0
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
