// SPDX-License-Identifier: Apache-2.0

// Package component runs programs of others that are made for pods, such as operators, as processes of this machine,
// beside the cluster's API server, with their webhooks.
package component

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// Localhost is where components serve: like the API server, they are processes of this machine.
const Localhost = "127.0.0.1"

// Object is one of any kind.
type Object = map[string]any

// Read returns the objects of a file, each a YAML document.
func Read(t *testing.T, file string) []Object {
	t.Helper()
	content, err := os.ReadFile(file)
	expect.NoError(t, err)
	return Decode(t, file, content)
}

// Decode returns the objects of a text, each a YAML document. What the text is stands in errors.
func Decode(t *testing.T, what string, content []byte) []Object {
	t.Helper()
	var all []Object
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		var o Object
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		expect.NoErrorf(t, err, "%s", what)
		if len(o) > 0 {
			all = append(all, o)
		}
	}
}

// Define makes the CustomResourceDefinitions among objects, and waits until they are served. All versions of each have
// the fields that tests use: none is converted by a webhook.
func Define(t *testing.T, cluster *harness.Cluster, objects []Object) {
	t.Helper()
	var definitions []Object
	wait := []string{"wait", "--for=condition=Established", "--timeout=1m"}
	for _, o := range objects {
		if o["kind"] == "CustomResourceDefinition" {
			_ = unstructured.SetNestedMap(o, Object{"strategy": "None"}, "spec", "conversion") // spec is a map in each
			definitions = append(definitions, o)
			name, _, _ := unstructured.NestedString(o, "metadata", "name")
			wait = append(wait, "crd/"+name)
		}
	}
	Apply(t, cluster, definitions...)
	harness.Eventually(t, "the API server to serve the CustomResourceDefinitions", func(context.Context) error {
		// kubectl fails while there are no conditions.
		_, err := cluster.Kubectl(t, wait...)
		return err
	})
}

// WebhooksAt returns the webhook configurations among objects, with a URL in place of each Service, and names that
// begin with that of the component.
func WebhooksAt(objects []Object, component, url string, authorities []byte) []Object {
	var all []Object
	for _, o := range objects {
		if o["kind"] != "MutatingWebhookConfiguration" && o["kind"] != "ValidatingWebhookConfiguration" {
			continue
		}
		o["metadata"] = Object{"name": component, "labels": Object{label: component}}
		webhooks, _ := o["webhooks"].([]any)
		for _, webhook := range webhooks {
			w, _ := webhook.(Object)
			path, _, _ := unstructured.NestedString(w, "clientConfig", "service", "path")
			w["clientConfig"] = Object{"url": url + path, "caBundle": base64.StdEncoding.EncodeToString(authorities)}
		}
		all = append(all, o)
	}
	return all
}

// label is on the webhook configurations of a component.
const label = "example.com/component"

// WriteCertificates makes a certificate for Localhost in a directory, which it makes as well, and returns who vouches
// for it.
func WriteCertificates(t *testing.T, dir string) []byte {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey(Localhost, []net.IP{net.ParseIP(Localhost)}, nil)
	expect.NoError(t, err)
	expect.NoError(t, os.MkdirAll(dir, 0o700))
	for name, content := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	return certificate
}

// Apply makes objects, or changes those that are there.
func Apply(t *testing.T, cluster *harness.Cluster, objects ...Object) {
	t.Helper()
	var all bytes.Buffer
	for _, o := range objects {
		content, err := yaml.Marshal(o)
		expect.NoError(t, err)
		all.WriteString("---\n" + string(content))
	}
	file := filepath.Join(t.TempDir(), "objects.yaml")
	expect.NoError(t, os.WriteFile(file, all.Bytes(), 0o600))
	// A CRD may be larger than the annotation of what was applied last.
	cluster.Tool(t, "kubectl", "apply", "--server-side", "--force-conflicts", "-f", file)
}

// Run starts a component, waits until its readiness URL answers, and ends it with the test.
func Run(t *testing.T, cluster *harness.Cluster, command *exec.Cmd, ready string) {
	t.Helper()
	var log harness.Output
	command.Env = append(command.Environ(), "KUBECONFIG="+filepath.Join(cluster.Dir, "kubeconfig"))
	command.Stdout, command.Stderr = &log, &log
	expect.NoError(t, command.Start())
	ended := make(chan struct{})
	var failure error
	go func() {
		failure = command.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		if err := command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("end %s: %v", command.Path, err)
		}
		<-ended
		if t.Failed() {
			t.Logf("%s (%v) said:\n%s", command.Path, failure, log.String())
		}
	})
	harness.Eventually(t, command.Path+" to be ready", func(ctx context.Context) error {
		select {
		case <-ended:
			t.Fatalf("%s ended before it was ready: %v", command.Path, failure)
		default:
		}
		return answers(ctx, ready)
	})
}

// answers asks a URL.
func answers(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return errors.Join(err, response.Body.Close())
}

// DeleteWebhooks deletes the webhook configurations of a component.
func DeleteWebhooks(t *testing.T, cluster *harness.Cluster, component string) {
	t.Helper()
	cluster.Tool(t, "kubectl", "delete", "validatingwebhookconfigurations,mutatingwebhookconfigurations",
		"-l", label+"="+component)
}

// Address is that of a port of Localhost.
func Address(port int) string { return fmt.Sprintf("%s:%d", Localhost, port) }

// FreePort returns a port of Localhost that nobody listens on.
func FreePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", Localhost+":0")
	expect.NoError(t, err)
	defer listener.Close()
	port, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("no port in %v", listener.Addr())
	}
	return port.Port
}
