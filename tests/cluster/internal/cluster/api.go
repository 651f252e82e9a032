// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// client speaks to the API server as its administrator: the few requests that
// bringing a cluster up takes.
type client struct {
	base string
	http *http.Client
}

func newClient(pkiDir string, network Network) (*client, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(pkiDir, "admin.crt"), filepath.Join(pkiDir, "admin.key"))
	if err != nil {
		return nil, fmt.Errorf("read the administrator's certificate: %w", err)
	}
	ca, err := os.ReadFile(filepath.Join(pkiDir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the cluster's certificate authority: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("read the cluster's certificate authority: no certificate in %s", pkiDir)
	}
	return &client{
		base: "https://" + network.api().String(),
		http: &http.Client{
			Timeout: 5 * time.Second,
			// No proxy from the environment: the server is on this machine.
			Transport: &http.Transport{
				TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12},
			},
		},
	}, nil
}

// errNotFound is the answer 404.
var errNotFound = errors.New("not found")

func (c *client) do(ctx context.Context, method, path, contentType string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if response.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("%s %s: %w", method, path, errNotFound)
	}
	if response.StatusCode >= 300 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, strings.TrimSpace(string(content)))
	}
	return content, nil
}

// ready reports whether the API server serves all it has to.
func (c *client) ready(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodGet, "/readyz", "", nil)
	return err
}

// hasDefaultServiceAccount reports whether pods can be made in the default namespace.
func (c *client) hasDefaultServiceAccount(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", "", nil)
	return err
}

// nodeCondition is a node's condition Ready.
type nodeCondition struct {
	Type      string    `json:"type"`
	Status    string    `json:"status"`
	Message   string    `json:"message"`
	Heartbeat time.Time `json:"lastHeartbeatTime"`
}

// readyCondition is the node's Ready condition; its status is empty where kubelet
// has not reported yet.
func (c *client) readyCondition(ctx context.Context, node string) (nodeCondition, error) {
	content, err := c.do(ctx, http.MethodGet, "/api/v1/nodes/"+node, "", nil)
	if err != nil {
		return nodeCondition{}, err
	}
	var object struct {
		Status struct {
			Conditions []nodeCondition `json:"conditions"`
		} `json:"status"`
	}
	if err := json.Unmarshal(content, &object); err != nil {
		return nodeCondition{}, fmt.Errorf("decode node %s: %w", node, err)
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == "Ready" {
			return condition, nil
		}
	}
	return nodeCondition{}, nil
}

// kubeletHealthy reports whether the kubelet at an address serves.
func kubeletHealthy(ctx context.Context, address netip.Addr) error {
	url := "http://" + netip.AddrPortFrom(address, kubeletHealthPort).String() + "/healthz"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// Without connections that outlive the kubelet they were made to, and
	// without a proxy: it is on this machine.
	direct := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := direct.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("kubelet is not healthy: %s", response.Status)
	}
	return nil
}

// label sets the node's mode label, or removes it where mode is empty.
func (c *client) label(ctx context.Context, node, mode string) error {
	var value any
	if mode != "" {
		value = mode
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{ModeLabel: value}}})
	if err != nil {
		return err
	}
	_, err = c.do(ctx, http.MethodPatch, "/api/v1/nodes/"+node, "application/merge-patch+json", patch)
	return err
}

// deletePods removes the pods of a node that is gone, without waiting for the
// kubelet that would have ended them.
func (c *client) deletePods(ctx context.Context, node string) error {
	content, err := c.do(ctx, http.MethodGet, "/api/v1/pods?fieldSelector=spec.nodeName%3D"+node, "", nil)
	if err != nil {
		return err
	}
	var pods struct {
		Items []struct {
			Metadata struct {
				Namespace string `json:"namespace"`
				Name      string `json:"name"`
			} `json:"metadata"`
		} `json:"items"`
	}
	if err := json.Unmarshal(content, &pods); err != nil {
		return fmt.Errorf("decode the pods of node %s: %w", node, err)
	}
	for _, pod := range pods.Items {
		path := "/api/v1/namespaces/" + pod.Metadata.Namespace + "/pods/" + pod.Metadata.Name + "?gracePeriodSeconds=0"
		if _, err := c.do(ctx, http.MethodDelete, path, "", nil); err != nil && !errors.Is(err, errNotFound) {
			return err
		}
	}
	return nil
}

// deleteNode removes the node's object; it is no error when it is gone.
func (c *client) deleteNode(ctx context.Context, node string) error {
	_, err := c.do(ctx, http.MethodDelete, "/api/v1/nodes/"+node, "", nil)
	if errors.Is(err, errNotFound) {
		return nil
	}
	return err
}
