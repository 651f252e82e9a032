// SPDX-License-Identifier: Apache-2.0

package probes_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/probes"
)

func get(t *testing.T, handler http.Handler, path string) (int, string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
	return recorder.Code, recorder.Body.String()
}

func TestReadyWhenAllChecksAreWell(t *testing.T) {
	checks := probes.Checks{WhenNone: "this replica does not lead"}
	var broken error
	handler := probes.Handler(&checks, func(*http.Request) error { return broken })
	if code, body := get(t, handler, "/readyz"); code != http.StatusOK || !strings.Contains(body, "does not lead") {
		t.Errorf("without checks: %d %q", code, body)
	}
	checks.Add("b", func() error { return nil })
	checks.Add("a", func() error { return broken })
	if code, body := get(t, handler, "/readyz"); code != http.StatusOK || body != "[+]b ok\n[+]a ok\n" {
		t.Errorf("when all is well: %d %q", code, body)
	}
	broken = errors.New("waits for the nodes")
	if code, body := get(t, handler, "/readyz"); code != http.StatusServiceUnavailable ||
		body != "[+]b ok\n[-]a: waits for the nodes\n" {
		t.Errorf("when one is not: %d %q", code, body)
	}
	if code, body := get(t, handler, "/status"); code != http.StatusOK || body != "[+]b ok\n[-]a: waits for the nodes\n" {
		t.Errorf("status: %d %q", code, body)
	}
	if code, body := get(t, handler, "/livez"); code != http.StatusServiceUnavailable || body != "waits for the nodes\n" {
		t.Errorf("livez: %d %q", code, body)
	}
	broken = nil
	if code, body := get(t, handler, "/livez"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("livez: %d %q", code, body)
	}
}

func TestServeSaysThatItCannot(t *testing.T) {
	expect.Error(t, probes.Serve(t.Context(), "127.0.0.1:-1", http.NotFoundHandler()),
		"serve health checks or metrics at 127.0.0.1:-1")
}

func TestAddressThatMeansNothing(t *testing.T) {
	for address, off := range map[string]bool{"": true, "0": true, ":0": false, ":8081": false, "127.0.0.1:1": false} {
		expect.Equal(t, off, probes.Off(address), "Off(%q)", address)
	}
}

func TestAddressOnNode(t *testing.T) {
	for _, c := range []struct{ address, ip, want string }{
		{":8480", "192.0.2.1", "192.0.2.1:8480"}, {":8480", "2001:db8::1", "[2001:db8::1]:8480"},
		{":8480", "", ":8480"}, {"0.0.0.0:8480", "192.0.2.1", "0.0.0.0:8480"}, {"0", "192.0.2.1", "0"},
	} {
		expect.Equal(t, c.want, probes.OnNode(c.address, c.ip), "OnNode(%q, %q)", c.address, c.ip)
	}
}

// During an update two instances share the host's network: the second serves when the first
// has ended.
func TestServeWhenTheAddressIsFree(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	expect.NoError(t, err)
	address := other.Addr().String()
	served := make(chan struct{})
	go func() {
		defer close(served)
		probes.ServeWhenFree(t.Context(), address, http.NotFoundHandler())
	}()
	expect.NoError(t, other.Close())
	<-served
	response, err := http.Get("http://" + address + "/")
	expect.NoError(t, err)
	defer response.Body.Close()
	expect.Equal(t, http.StatusNotFound, response.StatusCode, "answer %s", response.Status)
}

// Whoever reaches the address cannot have more answered at a time than this.
func TestAtOnce(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	handler := probes.AtOnce(1, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-answer
	}))
	ask := func() int {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		return w.Code
	}
	first := make(chan int)
	go func() { first <- ask() }()
	<-asked
	expect.Equal(t, http.StatusServiceUnavailable, ask(), "the second is answered beside the first")
	close(answer)
	expect.Equal(t, http.StatusOK, <-first, "the first was answered")
}
