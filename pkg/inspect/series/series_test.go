// SPDX-License-Identifier: Apache-2.0

package series_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/consumption"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/series"
)

const gib = 1 << 30

// answers are what a stand-in for Prometheus answers to a query that has this in it, for a pod p.
type answers map[string]float64

func (a answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := strings.Join(strings.Fields(r.FormValue("query")), " ")
	result := []any{}
	for part, value := range a {
		if strings.HasPrefix(query, part) {
			result = append(result, map[string]any{"metric": map[string]string{"namespace": "a", "pod": "p", "claim": "c",
				"uuid": "GPU-0"}, "value": []any{0, fmt.Sprint(value)}})
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"status": "success",
		"data": map[string]any{"resultType": "vector", "result": result}})
}

const byAll = "max by (namespace, pod, container, claim, uuid) ("

// day is a pod that had 4 GiB for 12 hours of a day, and for 6 of them half of that in use.
var day = answers{
	byAll + "max_over_time(gpushare_claim_memory_granted_bytes{}[1d])":                                4 * gib,
	"sum_over_time(" + byAll + " gpushare_claim_memory_granted_bytes{} )[1d:1m])":                     4 * gib * 720,
	"count_over_time(" + byAll + " gpushare_claim_memory_granted_bytes{} )[1d:1m])":                   720,
	"count_over_time(( " + byAll + "gpushare_claim_memory_granted_bytes{}) and on (uuid)":             660,
	"time() - min_over_time(timestamp(" + byAll + " gpushare_claim_memory_granted_bytes{} ))[1d:1m])": 43140,
	byAll + "max_over_time(gpushare_claim_memory_used_bytes{}[1d])":                                   2 * gib,
	byAll + "max_over_time(gpushare_claim_memory_peak_bytes{}[1d])":                                   3 * gib,
	byAll + " quantile_over_time(0.99, gpushare_claim_memory_used_bytes{}[1d])":                       1.5 * gib,
	"sum_over_time(" + byAll + " gpushare_claim_memory_used_bytes{} )[1d:1m])":                        2 * gib * 360,
}

func period(t *testing.T, address string, since time.Duration, namespace string) (consumption.Period, error) {
	t.Helper()
	reader, err := series.NewReader(address, "")
	expect.NoError(t, err)
	return reader.Period(t.Context(), since, namespace)
}

func TestPeriod(t *testing.T) {
	server := httptest.NewServer(day)
	defer server.Close()
	got, err := period(t, server.URL, 24*time.Hour, "")
	expect.NoError(t, err)
	of := consumption.Series{Namespace: "a", Pod: "p", Claim: "c", UUID: "GPU-0"}
	want := consumption.Period{
		Granted: []consumption.Granted{{Series: of, MostGiB: 4, GiBHours: 48, Present: 12 * time.Hour, Seen: 11 * time.Hour,
			Age: 12 * time.Hour}},
		Used: []consumption.Used{{Series: of, MostGiB: 3, P99GiB: 1.5, GiBHours: 12}},
	}
	expect.Equal(t, want, got, "period")
}

// A longer period is looked at as often, and one namespace is asked for alone.
func TestQueriesOfALongPeriod(t *testing.T) {
	server := httptest.NewServer(answers{
		byAll + `max_over_time(gpushare_claim_memory_granted_bytes{namespace="a"}[1w])`:              gib,
		"count_over_time(" + byAll + ` gpushare_claim_memory_granted_bytes{namespace="a"} )[1w:7m])`: 1440})
	defer server.Close()
	got, err := period(t, server.URL, 7*24*time.Hour, "a")
	if err != nil || len(got.Granted) != 1 || got.Granted[0].Present != 7*24*time.Hour || len(got.Used) != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// A plugin of an earlier version tells no peaks; a use may be too short for a scrape.
func TestPeaksBesideUses(t *testing.T) {
	for missing, want := range map[string]float64{"peak": 2, "used": 3} {
		left := answers{}
		for part, value := range day {
			if !strings.Contains(part, "_"+missing+"_bytes") {
				left[part] = value
			}
		}
		server := httptest.NewServer(left)
		got, err := period(t, server.URL, 24*time.Hour, "")
		server.Close()
		if err != nil || len(got.Used) != 1 || got.Used[0].MostGiB != want {
			t.Errorf("without %s: got %+v, %v, want %g GiB", missing, got.Used, err, want)
		}
	}
}

// Each error says what was tried, and what can be done.
func TestErrors(t *testing.T) {
	answer := func(code int, kind, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(code)
			fmt.Fprint(w, body)
		}
	}
	for name, test := range map[string]struct {
		handler http.Handler
		want    []string
	}{
		"no series": {answers{}, []string{"no gpushare_claim_memory_granted_bytes of the last 1d", "docs/metrics.md"}},
		"no user": {answer(401, "text/plain", "no"), []string{"ask Prometheus at http", "it answers 401 Unauthorized",
			"--prometheus-token-file"}},
		"another user": {answer(403, "application/json", `{"status":"error"}`), []string{"it answers 403 Forbidden"}},
		"no Prometheus": {answer(200, "text/html", "<html>"), []string{`it answers 200 OK with "text/html"`,
			"that is no Prometheus"}},
		"another path": {answer(404, "text/plain", "404"), []string{"it answers 404 Not Found", "below another path"}},
		"too much": {answer(422, "application/json", `{"status":"error","errorType":"execution","error":"too many samples"}`),
			[]string{"too many samples", "a shorter --since or one --namespace asks for less"}},
		"a refused query": {answer(400, "application/json",
			`{"status":"error","errorType":"bad_data","error":"parse error"}`), []string{"ask Prometheus at",
			"parse error"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.handler)
			defer server.Close()
			_, err := period(t, server.URL, 24*time.Hour, "")
			expect.Error(t, err, test.want...)
		})
	}
	for _, address := range []string{"localhost:9090", "prometheus", "ftp://host", "http://", "http://a b"} {
		if _, err := series.NewReader(address, ""); err == nil || !strings.Contains(err.Error(), "not a URL such as") {
			t.Errorf("%s: %v", address, err)
		}
	}
	_, err := series.NewReader("http://host", "/nonexistent")
	expect.Error(t, err, "read the token for Prometheus")
	if _, err := period(t, "http://user:secret@127.0.0.1:1", 24*time.Hour, ""); err == nil ||
		strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("of nobody: %v", err)
	}
}

// An answer that lacks something says so. A token is sent, and a server that takes no POST is asked by GET.
func TestPartialAnswersAndTokens(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		switch {
		case r.Header.Get("Authorization") != "Bearer t0ken":
			w.WriteHeader(http.StatusUnauthorized)
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusForbidden)
		default:
			fmt.Fprint(w, `{"status":"success","warnings":["store s1 is down"],"data":{"resultType":"vector","result":[`+
				`{"metric":{"namespace":"a","pod":"p"},"value":[0,"1"]}]}}`)
		}
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "token")
	expect.NoError(t, os.WriteFile(file, []byte("t0ken\n"), 0o600))
	reader, err := series.NewReader(server.URL, file)
	expect.NoError(t, err)
	got, err := reader.Period(t.Context(), time.Hour, "")
	want := []string{"Prometheus says that its answer may lack something: store s1 is down"}
	if diff := expect.Diff(want, got.Notes); err != nil || diff != nil || len(got.Granted) != 1 {
		t.Errorf("got %+v, %v; notes %v", got, err, diff)
	}
}
