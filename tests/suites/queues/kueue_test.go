// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package queues

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness/component"
)

// The environment names the program Kueue, and a file with what its chart installs.
const programEnv, chartEnv = "KUEUE", "KUEUE_CHART"

// withCertificates runs Kueue with the certificate of its metrics where it looks for one, in a mount namespace of its
// own: there is no setting for the path.
const withCertificates = `mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics && cp -r "$1" /etc/kueue/metrics/certs
exec "$2" "--config=$3"`

// startKueue runs Kueue until the test ends, with its chart's settings, changed by those of the test.
func startKueue(t *testing.T, settings ...object) {
	t.Helper()
	dir := t.TempDir()
	certificates := filepath.Join(dir, "certs")
	authorities := component.WriteCertificates(t, certificates)
	chart, configuration := readChart(t)
	webhooks, health := component.FreePort(t), component.FreePort(t)
	maps.Copy(configuration, object{
		"health":                 object{"healthProbeBindAddress": component.Address(health)},
		"metrics":                object{"bindAddress": component.Address(component.FreePort(t))},
		"webhook":                object{"host": component.Localhost, "port": webhooks, "certDir": certificates},
		"leaderElection":         object{"leaderElect": false},
		"internalCertManagement": object{"enable": false},
	})
	// Its lists of what waits would take certificates of their own.
	gates := object{"VisibilityOnDemand": false}
	for _, more := range settings {
		maps.Copy(configuration, more)
		asked, _ := more["featureGates"].(object)
		maps.Copy(gates, asked)
	}
	configuration["featureGates"] = gates

	program := os.Getenv(programEnv)
	if program == "" {
		t.Fatalf("%s does not name Kueue: `make lane LANE=queues` builds it and says where it is", programEnv)
	}
	content, err := yaml.Marshal(configuration)
	expect.NoError(t, err)
	file := filepath.Join(dir, "configuration.yaml")
	expect.NoError(t, os.WriteFile(file, content, 0o600))
	component.Define(t, cluster, chart)
	command := exec.Command("sh", "-e", "-c", withCertificates, "sh", certificates, program, file)
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	component.Run(t, cluster, command, "http://"+component.Address(health)+"/readyz")
	apply(t, component.WebhooksAt(chart, "kueue", "https://"+component.Address(webhooks), authorities)...)
	t.Cleanup(func() {
		// Kueue has to let go of them.
		kubectl(t, "delete", "clusterqueues,resourceflavors", "--all", "--timeout=2m")
		component.DeleteWebhooks(t, cluster, "kueue")
	})
}
