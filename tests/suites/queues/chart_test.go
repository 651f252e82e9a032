// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package queues

import (
	"os"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness/component"
)

// object is one of any kind.
type object = component.Object

// readChart reads what Kueue's chart installs, and the configuration that is among it.
func readChart(t *testing.T) (objects []object, configuration object) {
	t.Helper()
	objects = component.Read(t, os.Getenv(chartEnv))
	for _, o := range objects {
		text, _ := at(o, "data")["controller_manager_config.yaml"].(string)
		expect.NoErrorf(t, yaml.Unmarshal([]byte(text), &configuration), "the configuration of Kueue's chart")
	}
	if len(configuration) == 0 {
		t.Fatalf("%s has no configuration", os.Getenv(chartEnv))
	}
	return objects, configuration
}

// at is an object within another.
func at(o object, path ...string) object {
	for _, key := range path {
		o, _ = o[key].(object)
	}
	return o
}

// apply makes objects, or changes those that are there.
func apply(t *testing.T, objects ...object) { component.Apply(t, cluster, objects...) }

// kubectl is what a user who types this sees.
func kubectl(t *testing.T, arguments ...string) string {
	t.Helper()
	return cluster.Tool(t, append([]string{"kubectl"}, arguments...)...)
}
