// SPDX-License-Identifier: Apache-2.0

package probes_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/probes"
)

// slowly asks and reads no more than the beginning of the answer's first line.
func slowly(t *testing.T, address string) *bufio.Reader {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	expect.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprintf(conn, "GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer := bufio.NewReaderSize(conn, 16)
	if _, err := answer.Peek(8); err != nil {
		t.Fatal(err)
	}
	return answer
}

// Whoever reaches the port can read as slowly as they like: who reads at once is answered all the same.
func TestSlowClientsKeepNobodyOff(t *testing.T) {
	const most, sendingMost = 4, 64
	body := bytes.Repeat([]byte("metric 1\n"), 1<<17) // more than the kernel takes in for a connection
	scrape := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(body)
	}
	server := httptest.NewUnstartedServer(probes.AtOnce(most, http.HandlerFunc(scrape)))
	server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if err := conn.(*net.TCPConn).SetWriteBuffer(64 << 10); err != nil {
			t.Error(err)
		}
		return ctx
	}
	server.Start()
	t.Cleanup(server.Close)
	for _, slow := range []int{most, sendingMost + 1} {
		var clients []*bufio.Reader
		for range slow {
			clients = append(clients, slowly(t, server.Listener.Addr().String()))
		}
		response, err := http.Get(server.URL)
		expect.NoError(t, err)
		defer response.Body.Close()
		got, err := io.ReadAll(response.Body)
		if response.StatusCode != http.StatusOK || len(got) != len(body) || err != nil ||
			response.Header.Get("Content-Type") != "text/plain" {
			t.Fatalf("beside %d slow ones: %s, %d of %d bytes, %v", slow, response.Status, len(got), len(body), err)
		}
		expect.Equal(t, len(body), whole(t, clients[slow-1]), "the last of %d slow ones was cut off", slow)
		if cut := whole(t, clients[0]) != len(body); cut != (slow > sendingMost) {
			t.Errorf("the first of %d slow ones was cut off: %t", slow, cut)
		}
	}
}

// whole is how much comes of an answer's body.
func whole(t *testing.T, answer *bufio.Reader) int {
	t.Helper()
	response, err := http.ReadResponse(answer, nil)
	expect.NoError(t, err)
	defer response.Body.Close()
	got, _ := io.ReadAll(response.Body)
	return len(got)
}
