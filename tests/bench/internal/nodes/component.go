// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"
)

// Component is a part of the control plane with a server of its own.
type Component struct {
	URL    string
	client *http.Client
}

func newComponent(config *rest.Config, url string) (*Component, error) {
	config = rest.CopyConfig(config)
	// It has a certificate that it made itself.
	config.TLSClientConfig.CAData, config.TLSClientConfig.CAFile, config.Insecure = nil, "", true
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", url, err)
	}
	return &Component{URL: url, client: client}, nil
}

func (c *Component) get(ctx context.Context, path string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("GET %s%s: %s", c.URL, path, response.Status)
	}
	return response.Body, nil
}

// Metrics are those of a component, by name.
type Metrics map[string]*dto.MetricFamily

// Metrics reads those of now.
func (c *Component) Metrics(ctx context.Context) (Metrics, error) {
	body, err := c.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", c.URL, err)
	}
	return families, nil
}

// Sum adds up the values – of a histogram, the sums – of all series of which a
// label has a value that contains part. An empty label is any series.
func (m Metrics) Sum(name, label, part string) float64 {
	total := 0.0
	for _, metric := range m[name].GetMetric() {
		matches := label == ""
		for _, l := range metric.GetLabel() {
			matches = matches || l.GetName() == label && strings.Contains(l.GetValue(), part)
		}
		if matches {
			total += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetUntyped().GetValue() +
				metric.GetHistogram().GetSampleSum()
		}
	}
	return total
}

// profile saves what the component's processor time goes to.
func (c *Component) profile(ctx context.Context, path string, length time.Duration) error {
	body, err := c.get(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%.0f", length.Seconds()))
	if err != nil {
		return fmt.Errorf("profile %s: %w", c.URL, err)
	}
	defer body.Close()
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write a profile: %w", err)
	}
	if _, err := io.Copy(file, body); err != nil {
		file.Close()
		return fmt.Errorf("write profile %s: %w", path, err)
	}
	return file.Close()
}

// StartProfile saves what the processor time goes to for so long, in the background; finish waits for it.
func (c *Component) StartProfile(ctx context.Context, path string, length time.Duration) (finish func() error) {
	done := make(chan error, 1)
	go func() { done <- c.profile(ctx, path, length) }()
	return func() error { return <-done }
}

// CPU is the processor time that the component has used so far.
func (c *Component) CPU(ctx context.Context) (time.Duration, error) {
	m, err := c.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	return time.Duration(m.Sum("process_cpu_seconds_total", "", "") * float64(time.Second)), nil
}
