// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package queues

import (
	"bytes"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// object is one of any kind.
type object = map[string]any

// chartLabel selects what Kueue's chart installs.
const chartLabel = "app.kubernetes.io/name=kueue"

// chart is what Kueue's chart installs, as far as Kueue needs it outside of a pod.
type chart struct {
	definitions, webhooks []object
	configuration         object
}

func readChart(t *testing.T) chart {
	t.Helper()
	content, err := os.ReadFile(os.Getenv(chartEnv))
	if err != nil {
		t.Fatalf("what %s names: %v: `make lane LANE=queues` makes it", chartEnv, err)
	}
	var c chart
	for _, o := range decode(t, content) {
		switch o["kind"] {
		case "CustomResourceDefinition":
			// All versions have the same fields that the tests use.
			at(o, "spec")["conversion"] = object{"strategy": "None"}
			c.definitions = append(c.definitions, o)
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			c.webhooks = append(c.webhooks, o)
		case "ConfigMap":
			text, _ := at(o, "data")["controller_manager_config.yaml"].(string)
			if err := yaml.Unmarshal([]byte(text), &c.configuration); err != nil {
				t.Fatalf("the configuration of Kueue's chart: %v", err)
			}
		}
	}
	if len(c.definitions) < 10 || len(c.webhooks) != 2 || len(c.configuration) == 0 {
		t.Fatalf("%s has %d CRDs, %d webhook configurations and a configuration with %d keys", os.Getenv(chartEnv),
			len(c.definitions), len(c.webhooks), len(c.configuration))
	}
	return c
}

// webhooksAt are the chart's webhooks, with a URL in place of a Service.
func (c chart) webhooksAt(url string, authorities []byte) []object {
	for _, configuration := range c.webhooks {
		webhooks, _ := configuration["webhooks"].([]any)
		for _, webhook := range webhooks {
			w, _ := webhook.(object)
			path, _ := at(w, "clientConfig", "service")["path"].(string)
			w["clientConfig"] = object{"url": url + path, "caBundle": base64.StdEncoding.EncodeToString(authorities)}
		}
	}
	return c.webhooks
}

// at is an object within another.
func at(o object, path ...string) object {
	for _, key := range path {
		o, _ = o[key].(object)
	}
	return o
}

func decode(t *testing.T, content []byte) []object {
	t.Helper()
	var all []object
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		var o object
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(o) > 0 {
			all = append(all, o)
		}
	}
}

// writeCertificates makes a certificate for localhost in a directory, and returns who vouches for it.
func writeCertificates(t *testing.T, dir string) []byte {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey(localhost, []net.IP{net.ParseIP(localhost)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"tls.crt": certificate, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate
}

// apply makes objects, or changes those that are there.
func apply(t *testing.T, objects ...object) {
	t.Helper()
	var all bytes.Buffer
	for _, o := range objects {
		content, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString("---\n" + string(content))
	}
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, all.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	// A CRD of Kueue's is larger than the annotation of what was applied last may be.
	kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", file)
}

// kubectl is what a user who types this sees.
func kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	environment, bin := cluster.Shell(t)
	command := exec.CommandContext(harness.Context(t), filepath.Join(bin, "kubectl"), arguments...)
	command.Env = environment
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %q: %v\n%s", arguments, err, output)
	}
	return string(output)
}
