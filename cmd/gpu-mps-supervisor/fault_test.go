// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// as has a client of the daemon say a word, and returns CUDA's error, empty for none.
func as(t *testing.T, connection net.Conn, what string) string {
	t.Helper()
	expect.NoError(t, connection.SetDeadline(time.Now().Add(10*time.Second)))
	if _, err := fmt.Fprintln(connection, what); err != nil {
		t.Fatal(err)
	}
	var answer strings.Builder
	for c := []byte{0}; ; answer.Write(c) {
		if _, err := connection.Read(c); err != nil {
			t.Fatal(err)
		}
		if c[0] == '\x04' {
			return answer.String()
		}
	}
}

// A fault of one program ends the programs of all clients, on its GPU. The supervisor says so while the GPU takes no
// others, and that it serves again.
func TestFaultEndsAllClientsOfAGPU(t *testing.T) {
	t.Parallel()
	const illegal = "CUDA_ERROR_ILLEGAL_ADDRESS"
	dir, uuids := serving(t)
	faulty, neighbour, elsewhere := client(t, dir, uuids[0]), client(t, dir, uuids[0]), client(t, dir, uuids[1])
	for _, connection := range []net.Conn{faulty, neighbour, elsewhere} {
		if got := as(t, connection, "client"); got != "" {
			t.Fatal(got)
		}
	}
	expect.Equal(t, illegal, as(t, faulty, "fault"), "the faulty program")
	expect.Equal(t, illegal, as(t, neighbour, "synchronize"), "its neighbour")
	expect.Equal(t, "", as(t, elsewhere, "synchronize"), "a client of another GPU")
	expect.Equal(t, "CUDA_ERROR_MPS_SERVER_NOT_READY", as(t, client(t, dir, uuids[0]), "client"), "a new client")
	eventually(t, "the fault is told of", func() error {
		s, err := dir.Status(uuids[0])
		if err != nil || s.State != mps.Down || s.Fault == nil || !strings.Contains(s.Reason, "fatal fault") {
			return fmt.Errorf("status %+v, %w", s, err)
		}
		return nil
	})
	if s, err := dir.Status(uuids[0]); err != nil || len(s.Fault.Lost) == 0 || s.Fault.Lost[0].PID != os.Getpid() ||
		s.Fault.Lost[0].Program == "" {
		t.Errorf("lost are %+v, %v", s.Fault.Lost, err)
	}
	expect.NoErrorf(t, dir.Check(uuids[1]), "another GPU")
	for _, connection := range []net.Conn{faulty, neighbour} {
		expect.NoError(t, connection.Close())
	}
	awaitReady(t, dir, uuids)
	if s, err := dir.Status(uuids[0]); err != nil || s.Restarts != 0 || s.Fault.Over.IsZero() {
		t.Errorf("status %+v, %v", s, err)
	}
	expect.Equal(t, "", as(t, client(t, dir, uuids[0]), "client"), "a client after the fault")
}
