// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/consumption"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/rightsize"
)

// withPod is the cluster of oneGPU, with the pod itself, which asked by a template.
func withPod() inspect.Input {
	in := oneGPU(0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("three")}}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: ptr.To("p-gpu")}}
	in.Bound = []*corev1.Pod{pod, {ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "without-gpus"}}}
	return in
}

// From what was read of the cluster and of Prometheus to what is advised.
func TestRightsizeOfWhatWasRead(t *testing.T) {
	of := consumption.Series{Namespace: "a", Pod: "p", Claim: "p-gpu", UUID: "GPU-0"}
	const week = 7 * 24 * time.Hour
	period := consumption.Period{Notes: []string{"Prometheus says something."},
		Granted: []consumption.Granted{{Series: of, MostGiB: 3, Present: week, Seen: week, Age: week}},
		Used:    []consumption.Used{{Series: of, MostGiB: 1.2}}}
	o, out, errOut := written()
	known := consumption.Know(withPod(), &period, "7d")
	expect.Equal(t, []rightsize.Advice{}, rightsize.Of(known, 0.2, "b").Advice, "advice of another namespace")
	report := rightsize.Of(known, 0.2, "")
	expect.NoError(t, o.printNoting(report, report.Print, report.Notes))
	want := `Looked 7d back. Needs are peaks and 20 % more, in whole GiB of each GPU.

NAMESPACE  WORKLOAD  PODS  SEEN  HAS(GiB)  PEAK(GiB)  NEEDS(GiB)  ADVICE
a          pod/p     1     1w    3         1.2        2           shrink: it never used more than 1.2 GiB

shrink pod/p -n a, resourceclaimtemplate/three request gpu, from 3 to 2 GiB:
  write 2Gi for the capacity memory of request gpu into the manifest of resourceclaimtemplate/three, which does not ` +
		"change: `kubectl replace --force -n a -f`" + ` it, and have its pods made again

All of it gives 1 GiB back.
`
	if out.String() != want || errOut.String() != "Prometheus says something.\n" {
		t.Errorf("it prints\n%s\nand beside it\n%s\nwant\n%s", out, errOut, want)
	}
}

func TestUsageOfWhatWasRead(t *testing.T) {
	in := withPod()
	on := inspect.ClaimOn{Namespace: "a", Claim: "p-gpu"}
	in.Used = map[string]inspect.NodeUse{"n1": {Claims: map[inspect.ClaimOn]int64{on: 1 << 30},
		Peaks: map[inspect.ClaimOn]int64{on: 2 << 30}}}
	known := consumption.Know(in, nil, "")
	rows := consumption.Sum(known.Shares(""), consumption.ByWorkload).Rows
	if len(rows) != 1 || rows[0].Workload != "pod/p" || *rows[0].GrantedGiB != 3 || *rows[0].UsedGiB != 1 ||
		*rows[0].PeakGiB != 2 || known.Since != "" || len(known.Notes) != 0 {
		t.Errorf("got %+v, since %q, notes %q", rows, known.Since, known.Notes)
	}
	in.Bound = nil
	if known = consumption.Know(in, nil, ""); len(known.Notes) != 1 {
		t.Errorf("without the right to list pods it notes %q", known.Notes)
	}
}

func TestUsageErrors(t *testing.T) {
	fail(t, map[string]string{
		"usage -o yaml":        "^--output yaml: not json",
		"usage --by node":      "^--by node: not one of namespace, workload, pod",
		"usage --since 7d":     "^nodes know of now alone: name a Prometheus with --prometheus",
		"usage n1":             `^unknown command "n1" for "kubectl inspect cgpu usage"`,
		"usage":                "^(list|read) ",
		"rightsize":            "^nodes know no peaks of a day: name a Prometheus that scrapes the driver with --prometheus",
		"rightsize --since 5h": "^nodes know no peaks of a day",
		"rightsize --prometheus http://p --since 5h":     "^--since 5h: nothing is advised on less than a day",
		"rightsize --prometheus http://p --since long":   "^--since long: not a duration such as 24h or 7d",
		"rightsize --prometheus http://p --headroom 0.2": "^--headroom 0.2: not a part such as 20%",
		"rightsize --prometheus http://p --headroom -5%": "^--headroom -5%: not a part such as 20%",
		"rightsize --prometheus p:9090":                  "^--prometheus p:9090: not a URL such as http://localhost:9090",
	})
}
