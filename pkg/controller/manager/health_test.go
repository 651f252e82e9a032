// SPDX-License-Identifier: Apache-2.0

package manager_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
)

func get(t *testing.T, handler http.Handler, path string) (int, string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
	return recorder.Code, recorder.Body.String()
}

func TestReadyWhenAllChecksAreWell(t *testing.T) {
	var checks manager.Checks
	var broken error
	handler := manager.Handler(&checks, func(*http.Request) error { return broken })
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
	if err := manager.Serve(t.Context(), "127.0.0.1:-1", http.NotFoundHandler()); err == nil ||
		!strings.Contains(err.Error(), "serve the health checks at 127.0.0.1:-1") {
		t.Errorf("error %v", err)
	}
}
