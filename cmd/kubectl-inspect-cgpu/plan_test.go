// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/bundle"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/manifests"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
)

const asksFor = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: " +
	"{aliyun.com/gpu-mem: AMOUNT}}}]}\n"

// planned are manifests to plan on the cluster of a table.
func planned(t *testing.T, table inspect.Input, text string) plan.Input {
	t.Helper()
	r := manifests.Reader{Namespace: "a"}
	expect.NoError(t, r.Read("m.yaml", strings.NewReader(text)))
	return plan.Input{Snapshot: snapshot(t, table), Manifests: r.Manifests(), Now: time.Unix(0, 0)}
}

func TestPlanPrintsAndEndsByTheVerdict(t *testing.T) {
	for amount, test := range map[string]struct {
		output  string
		want    string
		waiting bool
	}{
		"8":  {"", "The pod would find room.\n", false},
		"16": {"json", `"waits": 1`, true},
		"15": {"json", `"node": "n1"`, false},
	} {
		in := planned(t, oneGPU(-3), strings.Replace(asksFor, "AMOUNT", amount, 1))
		in.Notes = []string{"You may not."}
		o, out, errOut := written()
		o.output = test.output
		err := o.printPlan(t.Context(), in)
		if errors.Is(err, errFindings) != test.waiting || !test.waiting && err != nil {
			t.Errorf("%s GiB: it ends with %v", amount, err)
		}
		expect.Says(t, out.String(), test.want)
		if test.output == "" && errOut.String() != "You may not.\n" || test.output != "" && errOut.Len() > 0 {
			t.Errorf("beside it, it says %q", errOut)
		}
	}
}

// What was not searched to the end is neither all that fits nor what waits.
func TestAPlanOfWhichNotAllIsKnownFails(t *testing.T) {
	in := planned(t, oneGPU(-3), `
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
`)
	o, out, _ := written()
	err := o.printPlan(t.Context(), in)
	if err == nil || errors.Is(err, errFindings) || !strings.Contains(err.Error(), "not searched to the end") ||
		!strings.Contains(out.String(), "0 of 1 pods would find room, 0 would wait; of 1 it is not known") {
		t.Errorf("got %v\n%s", err, out)
	}
}

func TestAPlanOfNothingFails(t *testing.T) {
	o, out, _ := written()
	err := o.printPlan(t.Context(), plan.Input{Now: time.Unix(0, 0), Manifests: plan.Manifests{
		Skipped: []plan.Skipped{{Object: "PyTorchJob/p", Why: "it is not known"}}}})
	if err == nil || errors.Is(err, errFindings) || !strings.Contains(out.String(), "Skipped: PyTorchJob/p") {
		t.Errorf("got %v\n%s", err, out)
	}
}

func TestPlanErrors(t *testing.T) {
	good := filepath.Join(t.TempDir(), "m.yaml")
	expect.NoError(t, os.WriteFile(good, []byte(strings.Replace(asksFor, "AMOUNT", "1", 1)), 0o600))
	fail(t, map[string]string{
		"plan":                           "^name manifests with -f",
		"plan -f " + good + " -o xml":    "^--output xml: not json",
		"plan train.yaml":                `^unknown command "train.yaml" for "kubectl inspect cgpu plan"`,
		"plan -f /nonexistent.yaml":      "^read the manifests: stat /nonexistent.yaml",
		"plan -f " + good:                "^read what the scheduler uses: ",
		"plan --from-ack --machine n1=x": "^--from-ack plans on a cluster's nodes: leave out --machine",
		"plan --machine n1=x -f " + good: "^machine n1=x: read the machine file: open x: ",
		"plan --from-ack":                "^read what the scheduler uses: ",
		"bundle -o report.zip":           "^--output report.zip: the archive's name has to end in .tar.gz",
		"bundle":                         "^list ",
	})
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
