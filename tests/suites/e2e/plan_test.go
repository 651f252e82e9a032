// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// secret is where a user keeps secrets, and is in no bundle.
const secret = "correct-horse-battery-staple"

// trainers is a user's Deployment: of 15 GiB of each of four GPUs there is room for one of 8.
const trainers = `
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {password: ` + secret + `}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {password: ` + secret + `}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: train, annotations: {note: ` + secret + `}}
spec:
  replicas: 5
  selector: {matchLabels: {app: train}}
  template:
    metadata: {labels: {app: train}, annotations: {note: ` + secret + `}}
    spec:
      nodeSelector: {kubernetes.io/hostname: old}
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 1
      imagePullSecrets: [{name: ` + secret + `}]
      containers:
      - name: main
        image: ` + harness.ProbeImage + `
        imagePullPolicy: Never
        env: [{name: PASSWORD, value: ` + secret + `}]
        resources: {limits: {aliyun.com/gpu-mem: 8}}
`

// What a plan says of a Deployment comes to pass when it is created, on the node and the GPUs
// that it says; then there is as much left as it said. A bundle of all that has no secrets.
func TestAPlanComesToPassAndABundleKeepsSecrets(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "old")
	packedNode(t, "old", 4)
	ns := cluster.Namespace(t)
	file := filepath.Join(t.TempDir(), "train.yaml")
	expect.NoError(t, os.WriteFile(file, []byte(trainers), 0o600))

	before := ns.Planned(t, "", "-f", file)
	if before.Fits != 4 || before.Waits != 1 || len(before.Skipped) != 2 {
		t.Fatalf("planned: %d fit, %d wait, %v are skipped", before.Fits, before.Waits, before.Skipped)
	}
	if pods, err := ns.Client.CoreV1().Pods(ns.Name).List(t.Context(), metav1.ListOptions{}); err != nil ||
		len(pods.Items) > 0 {
		t.Fatalf("a plan makes pods: %v, %v", pods.Items, err)
	}
	ns.MustKubectl(t, "apply", "-f", file)
	harness.Eventually(t, "the Deployment's pods to be where they were planned", func(ctx context.Context) error {
		return ns.AsPlanned(ctx, before)
	})

	for memory, want := range map[string]bool{"7": true, "8": false} {
		pod := fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: more}, spec: {nodeSelector: {kubernetes.io/hostname: old},
			containers: [{name: main, image: i, resources: {limits: {aliyun.com/gpu-mem: %s}}}]}}`, memory)
		pod = strings.ReplaceAll(pod, "\t", " ")
		if after := ns.Planned(t, pod, "-f", "-"); after.AllFit() != want {
			t.Errorf("%s GiB more: %+v", memory, after.Pods)
		}
	}
	bundled(t, ns)
}

// bundled looks into a bundle.
func bundled(t *testing.T, ns *harness.Namespace) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "report.tar.gz")
	cluster.Inspect(t, "bundle", "-o", name)
	file, err := os.Open(name)
	expect.NoError(t, err)
	defer file.Close() //nolint:errcheck // It is read only.
	zipped, err := gzip.NewReader(file)
	expect.NoError(t, err)
	wanted := map[string]string{"README.txt": "Left out: ", "nodes.yaml": "name: old",
		"resourceslices.yaml": "gpu-0-share",
		"pods.yaml":           "namespace: " + ns.Name, "resourceclaims.yaml": "namespace: " + ns.Name,
		"doctor.txt":  "checks",
		"inspect.txt": "GPU Memory(GiB)", "driver/daemonsets.yaml": "gpu-kubelet-plugin", "driver/policies.yaml": "gpushare-"}
	logs := 0
	for archive := tar.NewReader(zipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		expect.NoError(t, err)
		data, err := io.ReadAll(archive)
		expect.NoError(t, err)
		_, path, _ := strings.Cut(header.Name, "/")
		if strings.Contains(string(data), secret) {
			t.Errorf("%s has the secret", path)
		}
		if want := wanted[path]; !strings.Contains(string(data), want) {
			t.Errorf("%s does not have %q:\n%s", path, want, data)
		}
		delete(wanted, path)
		if strings.HasPrefix(path, "logs/") && len(data) > 0 {
			logs++
		}
	}
	if len(wanted) > 0 || logs == 0 {
		t.Errorf("it has %d logs, and lacks %v", logs, wanted)
	}
}
