// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package queues

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// The environment names the program Kueue, and a file with what its chart installs.
const programEnv, chartEnv = "KUEUE", "KUEUE_CHART"

// localhost is where Kueue serves: like the API server, it is a process of this machine.
const localhost = "127.0.0.1"

// withCertificates runs Kueue with the certificate of its metrics where it looks for one, in a mount namespace of its
// own: there is no setting for the path.
const withCertificates = `mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics && cp -r "$1" /etc/kueue/metrics/certs
exec "$2" "--config=$3"`

// startKueue runs Kueue until the test ends, with its chart's settings, changed by those of the test.
func startKueue(t *testing.T, settings ...object) {
	t.Helper()
	dir := t.TempDir()
	certificates := filepath.Join(dir, "certs")
	authorities := writeCertificates(t, certificates)
	chart := readChart(t)
	webhooks, health := freePort(t), freePort(t)
	configuration := maps.Clone(chart.configuration)
	maps.Copy(configuration, object{
		"health":                 object{"healthProbeBindAddress": address(health)},
		"metrics":                object{"bindAddress": address(freePort(t))},
		"webhook":                object{"host": localhost, "port": webhooks, "certDir": certificates},
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

	apply(t, chart.definitions...)
	kubectl(t, "wait", "crd", "-l", chartLabel, "--for=condition=Established", "--timeout=1m")
	run(t, dir, certificates, configuration, "http://"+address(health)+"/readyz")
	apply(t, chart.webhooksAt("https://"+address(webhooks), authorities)...)
	t.Cleanup(func() {
		// Kueue has to let go of them.
		kubectl(t, "delete", "clusterqueues,resourceflavors", "--all", "--timeout=2m")
		kubectl(t, "delete", "validatingwebhookconfigurations,mutatingwebhookconfigurations", "-l", chartLabel)
	})
}

// run starts the program, and waits until it is ready.
func run(t *testing.T, dir, certificates string, configuration object, ready string) {
	t.Helper()
	program := os.Getenv(programEnv)
	if program == "" {
		t.Fatalf("%s does not name Kueue: `make lane LANE=queues` builds it and says where it is", programEnv)
	}
	content, err := yaml.Marshal(configuration)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "configuration.yaml")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	var log harness.Output
	command := exec.Command("sh", "-e", "-c", withCertificates, "sh", certificates, program, file)
	command.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(cluster.Dir, "kubeconfig"))
	command.Stdout, command.Stderr = &log, &log
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var failure error
	go func() {
		failure = command.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		if err := command.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("end Kueue: %v", err)
		}
		<-ended
		if failure != nil || t.Failed() {
			t.Logf("Kueue (%v) said:\n%s", failure, log.String())
		}
	})
	harness.Eventually(t, "Kueue to be ready", func(ctx context.Context) error {
		select {
		case <-ended:
			t.Fatalf("Kueue ended before it was ready: %v", failure)
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

func address(port int) string { return fmt.Sprintf("%s:%d", localhost, port) }

// freePort is one that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", localhost+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("no port in %v", listener.Addr())
	}
	return port.Port
}
