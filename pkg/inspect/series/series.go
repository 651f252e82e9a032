// SPDX-License-Identifier: Apache-2.0

// Package series asks Prometheus what claims were granted and what they used.
package series

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/consumption"
)

//go:embed queries.yaml
var queries []byte

const (
	// answersWithin is how long a query may take, askedAtOnce how many are asked at the same time.
	answersWithin = 2 * time.Minute
	askedAtOnce   = 3
	// stepLeast is how often claims are looked at in a period, stepsMost how many times at most.
	stepLeast = time.Minute
	stepsMost = 1440
	gib       = 1 << 30
)

// Reader asks one Prometheus.
type Reader struct {
	api     prometheusv1.API
	address string
}

// NewReader asks the Prometheus at a URL, with the token that a file has, if it names one.
func NewReader(address, tokenFile string) (*Reader, error) {
	at, err := url.Parse(address)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, fmt.Errorf("--prometheus %s: not a URL such as http://localhost:9090", address)
	}
	checked := checker{address: at.Redacted(), through: api.DefaultRoundTripper}
	if tokenFile != "" {
		token, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, fmt.Errorf("read the token for Prometheus: %w", err)
		}
		checked.token = strings.TrimSpace(string(token))
	}
	client, err := api.NewClient(api.Config{Address: address, RoundTripper: checked})
	if err != nil {
		return nil, fmt.Errorf("--prometheus %s: %w", at.Redacted(), err)
	}
	return &Reader{api: prometheusv1.NewAPI(client), address: at.Redacted()}, nil
}

// checker finds in answers what is wrong with how Prometheus is reached.
type checker struct {
	address, token string
	through        http.RoundTripper
}

func (c checker) RoundTrip(request *http.Request) (*http.Response, error) {
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.through.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")) //nolint:errcheck // It is empty then.
	switch code := response.StatusCode; {
	case request.Method == http.MethodPost && (code == http.StatusForbidden || code == http.StatusMethodNotAllowed ||
		code == http.StatusNotImplemented):
		return response, nil // the client asks again by GET
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		err = fmt.Errorf("it answers %s: put a user and password into the URL, or name a file with a token by "+
			"--prometheus-token-file", response.Status)
	case kind != "application/json":
		err = fmt.Errorf("it answers %s with %q: that is no Prometheus, or one below another path", response.Status, kind)
	default:
		return response, nil
	}
	return nil, errors.Join(err, response.Body.Close())
}

// Period reads what claims had and used, of one namespace or of all if it is empty.
func (r *Reader) Period(ctx context.Context, since time.Duration, namespace string) (consumption.Period, error) {
	step := max(stepLeast, since/stepsMost).Truncate(time.Second)
	answers, notes, err := r.ask(ctx, since, step, namespace)
	if err != nil {
		return consumption.Period{}, err
	}
	period := consumption.Period{Notes: notes}
	hours := func(sum float64) float64 { return sum / gib * step.Hours() }
	times := func(count float64) time.Duration { return time.Duration(count) * step }
	for s, bytes := range answers["grantedMost"] {
		period.Granted = append(period.Granted, consumption.Granted{Series: s, MostGiB: bytes / gib,
			GiBHours: hours(answers["grantedSum"][s]), Present: times(answers["grantedTimes"][s]),
			Seen: times(answers["seenTimes"][s]), Age: step + time.Duration(answers["grantedAge"][s])*time.Second})
	}
	// A use may have been too short to be in a scrape, and a plugin too old to tell peaks.
	used := maps.Clone(answers["usedMost"])
	maps.Copy(used, answers["usedPeak"])
	for s := range used {
		most := max(answers["usedMost"][s], answers["usedPeak"][s])
		period.Used = append(period.Used, consumption.Used{Series: s, MostGiB: most / gib,
			P99GiB: answers["usedP99"][s] / gib, GiBHours: hours(answers["usedSum"][s])})
	}
	if len(period.Granted) == 0 {
		return period, fmt.Errorf("no gpushare_claim_memory_granted_bytes of the last %s is in Prometheus at %s: either no "+
			"claim was prepared, or it does not scrape the driver (docs/metrics.md)", model.Duration(since), r.address)
	}
	return period, nil
}

// ask asks all queries, and returns the answers by the queries' names, and what Prometheus says beside them.
func (r *Reader) ask(ctx context.Context, since, step time.Duration, namespace string,
) (map[string]map[consumption.Series]float64, []string, error) {
	var all map[string]string
	if err := yaml.Unmarshal(queries, &all); err != nil {
		return nil, nil, fmt.Errorf("read the queries: %w", err)
	}
	where := ""
	if namespace != "" {
		where = "namespace=" + strconv.Quote(namespace)
	}
	values := strings.NewReplacer("$where", where, "$since", model.Duration(since).String(), "$step",
		model.Duration(step).String())
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(askedAtOnce)
	var mu sync.Mutex
	answers, warned := map[string]map[consumption.Series]float64{}, map[string]bool{}
	for name, query := range all {
		group.Go(func() error {
			answer, warnings, err := r.query(ctx, values.Replace(query))
			if err != nil {
				return fmt.Errorf("ask Prometheus at %s for %s: %w", r.address, name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			answers[name] = answer
			for _, warning := range warnings {
				warned[warning] = true
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	return answers, notesOf(warned), nil
}

func (r *Reader) query(ctx context.Context, query string) (found map[consumption.Series]float64, warnings []string,
	err error) {
	value, warned, err := r.api.Query(ctx, query, time.Time{})
	var refused *prometheusv1.Error
	switch {
	case errors.As(err, &refused) && (refused.Type == prometheusv1.ErrExec || refused.Type == prometheusv1.ErrTimeout),
		errors.Is(err, context.DeadlineExceeded):
		return nil, nil, fmt.Errorf("%w (a shorter --since or one --namespace asks for less)", err)
	case err != nil:
		return nil, nil, err
	}
	vector, is := value.(model.Vector)
	if !is {
		return nil, nil, fmt.Errorf("it answers with a %s", value.Type())
	}
	found = map[consumption.Series]float64{}
	for _, sample := range vector {
		label := func(name model.LabelName) string { return string(sample.Metric[name]) }
		found[consumption.Series{Namespace: label("namespace"), Pod: label("pod"), Container: label("container"),
			Claim: label("claim"), UUID: label("uuid")}] = float64(sample.Value)
	}
	return found, warned, nil
}

func notesOf(warned map[string]bool) []string {
	var notes []string
	for _, warning := range slices.Sorted(maps.Keys(warned)) {
		notes = append(notes, "Prometheus says that its answer may lack something: "+warning)
	}
	return notes
}
