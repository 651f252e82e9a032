// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/bundle"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/manifests"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

const asksFor = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: " +
	"{aliyun.com/gpu-mem: AMOUNT}}}]}\n"

func TestPlanPrintsAndEndsByTheVerdict(t *testing.T) {
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	for amount, test := range map[string]struct {
		output  string
		want    string
		waiting bool
	}{
		"8":  {"", "The pod would find room.\n", false},
		"16": {"json", `"waits": 1`, true},
		"15": {"json", `"node": "n1"`, false},
	} {
		table := oneGPU(-3)
		table.Slices[0].Spec.Pool.ResourceSliceCount = 1
		r := manifests.Reader{Namespace: "a"}
		expect.NoError(t, r.Read("m.yaml", strings.NewReader(strings.Replace(asksFor, "AMOUNT", amount, 1))))
		streams, _, out, errOut := genericiooptions.NewTestIOStreams()
		_, o := newCommand(streams, terminal{})
		o.output = test.output
		err := o.printPlan(t.Context(), plan.Input{
			Snapshot: scheduling.Snapshot{Classes: classes, Slices: table.Slices,
				Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}},
			Manifests: r.Manifests(), Now: time.Unix(0, 0), Notes: []string{"You may not."},
		})
		if errors.Is(err, errFindings) != test.waiting || !test.waiting && err != nil {
			t.Errorf("%s GiB: it ends with %v", amount, err)
		}
		if !strings.Contains(out.String(), test.want) {
			t.Errorf("%s GiB: it prints\n%s\nwant %s", amount, out, test.want)
		}
		if test.output == "" && errOut.String() != "You may not.\n" || test.output != "" && errOut.Len() > 0 {
			t.Errorf("beside it, it says %q", errOut)
		}
	}
}

// What was not searched to the end is neither all that fits nor what waits.
func TestAPlanOfWhichNotAllIsKnownFails(t *testing.T) {
	classes, err := deviceclasses.All()
	expect.NoError(t, err)
	table := oneGPU(-3)
	table.Slices[0].Spec.Pool.ResourceSliceCount = 1
	r := manifests.Reader{Namespace: "a"}
	expect.NoError(t, r.Read("m.yaml", strings.NewReader(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: share.gpu.aliyun.com, selectors: [
  {cel: {expression: "lists.range(900).all(x, lists.range(100).all(y, x + y >= 0))"}}]}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: main, image: train, resources: {claims: [{name: gpu}]}}]
  resourceClaims: [{name: gpu, resourceClaimName: c}]
`)))
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	_, o := newCommand(streams, terminal{})
	err = o.printPlan(t.Context(), plan.Input{Now: time.Unix(0, 0), Manifests: r.Manifests(),
		Snapshot: scheduling.Snapshot{Classes: classes, Slices: table.Slices,
			Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}}})
	if err == nil || errors.Is(err, errFindings) || !strings.Contains(err.Error(), "not searched to the end") ||
		!strings.Contains(out.String(), "0 of 1 pods would find room, 0 would wait; of 1 it is not known") {
		t.Errorf("got %v\n%s", err, out)
	}
}

func TestAPlanOfNothingFails(t *testing.T) {
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	_, o := newCommand(streams, terminal{})
	err := o.printPlan(t.Context(), plan.Input{Now: time.Unix(0, 0), Manifests: plan.Manifests{
		Skipped: []plan.Skipped{{Object: "PyTorchJob/p", Why: "it is not known"}}}})
	if err == nil || errors.Is(err, errFindings) || !strings.Contains(out.String(), "Skipped: PyTorchJob/p") {
		t.Errorf("got %v\n%s", err, out)
	}
}

func TestPlanErrors(t *testing.T) {
	t.Setenv("KUBECONFIG", "/nonexistent")
	good := filepath.Join(t.TempDir(), "m.yaml")
	expect.NoError(t, os.WriteFile(good, []byte(strings.Replace(asksFor, "AMOUNT", "1", 1)), 0o600))
	for arguments, want := range map[string]string{
		"plan":                           "name manifests with -f",
		"plan -f " + good + " -o xml":    "--output xml: not json",
		"plan train.yaml":                `unknown command "train.yaml" for "kubectl inspect cgpu plan"`,
		"plan -f /nonexistent.yaml":      "read the manifests: stat /nonexistent.yaml",
		"plan -f " + good:                "read what the scheduler uses: ",
		"plan --from-ack --machine n1=x": "--from-ack plans on a cluster's nodes: leave out --machine",
		"plan --machine n1=x -f " + good: "machine n1=x: read the machine file: open x: ",
		"plan --from-ack":                "read what the scheduler uses: ",
		"bundle -o report.zip":           "--output report.zip: the archive's name has to end in .tar.gz",
		"bundle":                         "list ",
	} {
		t.Run(arguments, func(t *testing.T) {
			t.Chdir(t.TempDir())
			streams, _, _, _ := genericiooptions.NewTestIOStreams()
			c, _ := newCommand(streams, terminal{})
			c.SetArgs(append(strings.Fields(arguments), "--server", "http://127.0.0.1:1"))
			err := c.Execute()
			if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s", err, want)
			}
			if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
				t.Errorf("it leaves %v, %v", left, err)
			}
		})
	}
}

func TestBundleIsForItsWriterAlone(t *testing.T) {
	name := filepath.Join(t.TempDir(), "report.tar.gz")
	in := bundle.Input{Snapshot: &doctor.Snapshot{}, Now: time.Unix(0, 0)}
	expect.NoError(t, writeBundle(name, in))
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	expect.Error(t, writeBundle(name, in), "exists")
}
