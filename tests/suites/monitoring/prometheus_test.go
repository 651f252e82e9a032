// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package monitoring

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheusv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// programEnv names the environment variable with the path of the program Prometheus.
const programEnv = "PROMETHEUS"

const (
	metricsPage = "../../../docs/metrics.md"
	rulesDir    = "../../../deployments/monitoring"
)

// prometheus is a running Prometheus.
type prometheus struct {
	prometheusv1.API
	url string
}

// start runs Prometheus with a configuration until the test ends. It scrapes every two seconds,
// and evaluates the alerts as often.
func start(t *testing.T, configuration map[string]any) prometheus {
	t.Helper()
	program := os.Getenv(programEnv)
	if program == "" {
		t.Fatalf("%s does not name Prometheus: `make lane LANE=monitoring` builds it and says where it is", programEnv)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	configuration["global"] = map[string]string{"scrape_interval": "2s", "scrape_timeout": "2s",
		"evaluation_interval": "2s"}
	content, err := yaml.Marshal(configuration)
	expect.NoError(t, err)
	expect.NoError(t, os.WriteFile(config, content, 0o600))
	command := exec.Command(program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address=127.0.0.1:0", "--log.format=logfmt")
	output, err := command.StderrPipe()
	expect.NoError(t, err)
	expect.NoError(t, command.Start())
	address := make(chan string, 1)
	said := make(chan string, 1)
	go func() {
		var all strings.Builder
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			all.WriteString(lines.Text() + "\n")
			if _, after, found := strings.Cut(lines.Text(), `msg="Listening on" `); found {
				_, listening, _ := strings.Cut(after, "address=")
				select {
				case address <- strings.Fields(listening)[0]:
				default:
				}
			}
		}
		if err := lines.Err(); err != nil {
			fmt.Fprintf(&all, "reading what it says: %v\n", err)
		}
		said <- all.String()
	}()
	t.Cleanup(func() {
		err := command.Process.Signal(os.Interrupt)
		log := <-said
		if err = errors.Join(err, command.Wait()); err != nil || t.Failed() {
			t.Logf("Prometheus (%v) said:\n%s", err, log)
		}
	})
	select {
	case listening := <-address:
		url := "http://" + listening
		client, err := api.NewClient(api.Config{Address: url})
		expect.NoError(t, err)
		return prometheus{prometheusv1.NewAPI(client), url}
	case log := <-said:
		said <- log
		t.Fatal("Prometheus ended before it listened")
	case <-time.After(harness.Timeout):
		t.Fatalf("Prometheus does not listen after %s", harness.Timeout)
	}
	return prometheus{}
}

// documented is the scrape configuration of docs/metrics.md, from outside of the cluster, and all rules.
func documented(t *testing.T, kubeconfig string) map[string]any {
	t.Helper()
	page, err := os.ReadFile(metricsPage)
	expect.NoError(t, err)
	_, block, _ := strings.Cut(string(page), "```yaml\nscrape_configs:")
	block, _, _ = strings.Cut(block, "```")
	var config map[string]any
	expect.NoErrorf(t, yaml.Unmarshal([]byte("scrape_configs:"+block), &config),
		"the scrape configuration of %s", metricsPage)
	discoveries := 0
	scrapes, _ := config["scrape_configs"].([]any)
	for _, scrape := range scrapes {
		each, _ := scrape.(map[string]any)["kubernetes_sd_configs"].([]any)
		for _, discovery := range each {
			discovery.(map[string]any)["kubeconfig_file"] = kubeconfig
			discoveries++
		}
	}
	if discoveries == 0 {
		t.Fatalf("%s has no scrape configuration", metricsPage)
	}
	config["rule_files"] = rules(t)
	return config
}

// waits are how often a group is evaluated, and how far back it looks for all samples to be there.
var waits = regexp.MustCompile(`(?m)^  interval: .+\n| offset 1m`)

// rules are the files of rules, all evaluated as often as the alerts.
func rules(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	var out []string
	for _, name := range []string{"alerts.yaml", "usage.yaml", "dcgm.yaml", "ack.yaml"} {
		content, err := os.ReadFile(filepath.Join(rulesDir, name))
		expect.NoError(t, err)
		out = append(out, filepath.Join(dir, name))
		expect.NoError(t, os.WriteFile(out[len(out)-1], waits.ReplaceAll(content, nil), 0o600))
	}
	return out
}

// series are the results of a query at this moment.
func (p prometheus) series(ctx context.Context, query string) (model.Vector, error) {
	value, warnings, err := p.Query(ctx, query, time.Now())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", query, err)
	}
	if len(warnings) > 0 {
		return nil, fmt.Errorf("%s: %s", query, strings.Join(warnings, "; "))
	}
	vector, ok := value.(model.Vector)
	if !ok {
		return nil, fmt.Errorf("%s: the result is a %s", query, value.Type())
	}
	return vector, nil
}
