// SPDX-License-Identifier: Apache-2.0

package consumption_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/consumption"
)

func printed(t *testing.T, r *consumption.Report) string {
	t.Helper()
	var out strings.Builder
	expect.NoError(t, r.Print(&out))
	return out.String()
}

// share is what somebody has of a GPU: GiB granted, MiB used, and at the most.
func share(gpu int, granted, used, peak int64) inspect.Share {
	return inspect.Share{GPU: gpu, MemoryGiB: granted, UsedMiB: &used, PeakMiB: &peak}
}

// cluster has two pods of a Deployment, one of them with two GPUs, one that a device plugin started, and a claim.
func cluster() (*inspect.Table, consumption.Workloads) {
	table := &inspect.Table{Nodes: []inspect.Node{
		{Name: "n1", Holders: []inspect.Holder{
			{Namespace: "team", Pods: []string{"infer-7d9f-a"}, Shares: []inspect.Share{share(0, 4, 1024, 2048),
				share(1, 4, 512, 512)}},
			{Namespace: "old", Pods: []string{"acks"}, Shares: []inspect.Share{{MemoryGiB: 2}}},
		}},
		{Name: "n2", Holders: []inspect.Holder{
			{Namespace: "team", Pods: []string{"infer-7d9f-b"}, Shares: []inspect.Share{share(0, 4, 0, 1024)}},
			{Namespace: "team", Claims: []string{"idle"}, Shares: []inspect.Share{share(2, 16, 0, 0)}},
		}},
	}}
	return table, consumption.NewWorkloads([]*corev1.Pod{owned("infer-7d9f-a", "ReplicaSet/infer-7d9f", "7d9f"),
		owned("infer-7d9f-b", "ReplicaSet/infer-7d9f", "7d9f")})
}

func TestWhatIsUsedNow(t *testing.T) {
	for name, test := range map[string]struct {
		by        consumption.By
		namespace string
		want      string
	}{
		"by workload": {consumption.ByWorkload, "", `
NAMESPACE  WORKLOAD            PODS  GRANTED(GiB)  USED(GiB)  PEAK(GiB)
team       resourceclaim/idle  0     16.0          0.0        0.0
team       deployment/infer    2     12.0          1.5        3.5
old        pod/acks            1     2.0           -          -
`},
		"by namespace": {consumption.ByNamespace, "", `
NAMESPACE  PODS  GRANTED(GiB)  USED(GiB)  PEAK(GiB)
team       2     28.0          1.5        3.5
old        1     2.0           -          -
`},
		"by pod, of one namespace": {consumption.ByPod, "team", `
NAMESPACE  WORKLOAD            POD           GRANTED(GiB)  USED(GiB)  PEAK(GiB)
team       resourceclaim/idle  -             16.0          0.0        0.0
team       deployment/infer    infer-7d9f-a  8.0           1.5        2.5
team       deployment/infer    infer-7d9f-b  4.0           0.0        1.0
`},
	} {
		t.Run(name, func(t *testing.T) {
			table, workloads := cluster()
			got := printed(t, consumption.Sum(consumption.Now(table, workloads, test.namespace), test.by))
			expect.Equal(t, strings.TrimPrefix(test.want, "\n"), got, "table")
		})
	}
}

func of(pod, container, claim string) consumption.Series {
	return consumption.Series{Namespace: "team", Pod: pod, Container: container, Claim: claim, UUID: "GPU-0"}
}

// had is a share of so many GiB that somebody had for so many hours, of which it was seen what was used.
func had(s consumption.Series, gib, hours float64) consumption.Granted {
	long := time.Duration(hours * float64(time.Hour))
	return consumption.Granted{Series: s, MostGiB: gib, GiBHours: gib * hours, Present: long, Seen: long, Age: long}
}

// Pods that follow each other add up by time; the largest of them says what one needs.
func TestWhatWasUsed(t *testing.T) {
	unseen := had(of("blind", "", "blind-gpu"), 2, 10)
	unseen.Seen = 9 * time.Hour
	period := consumption.Period{
		Granted: []consumption.Granted{had(of("infer-7d9f-a", "", "a-gpu"), 4, 12),
			had(of("infer-55c8f97bb-9zzzz", "", "z-gpu"), 8, 6), had(of("", "", "shared"), 1, 24), unseen,
			had(of("never", "", "never-gpu"), 3, 1)},
		Used: []consumption.Used{
			{Series: of("infer-7d9f-a", "main", "a-gpu"), MostGiB: 2, P99GiB: 1.5, GiBHours: 6},
			{Series: of("infer-7d9f-a", "side", "a-gpu"), MostGiB: 1, P99GiB: 1, GiBHours: 1},
			// The audit takes what is left of a pod that is gone for nobody's, a claim's users may be several.
			{Series: of("", "", "other,z-gpu"), MostGiB: 7, P99GiB: 1, GiBHours: 2},
			{Series: of("one", "main", "shared"), MostGiB: 0.5, P99GiB: 0.5, GiBHours: 3},
			{Series: of("two", "main", "shared"), MostGiB: 0.5, P99GiB: 0.5, GiBHours: 3},
		},
	}
	_, workloads := cluster()
	r := consumption.Sum(consumption.Shares(period.Users(workloads)), consumption.ByWorkload)
	r.Since = "1d"
	want := `NAMESPACE  WORKLOAD              PODS  GRANTED(GiB·h)  USED(GiB·h)  ` +
		`POD GRANTED(GiB)  POD P99(GiB)  POD PEAK(GiB)
team       deployment/infer      2     96.0            9.0          8.0               2.5           7.0
team       resourceclaim/shared  0     24.0            6.0          1.0               1.0           1.0
team       pod/blind             1     20.0            -            2.0               -             -
team       pod/never             1     3.0             0.0          3.0               0.0           0.0
`
	expect.Equal(t, want, printed(t, r), "table")
}

// The fields of the JSON form are an interface.
func TestReportAsJSON(t *testing.T) {
	r := consumption.Sum([]consumption.Share{{Workload: consumption.Workload{Namespace: "team", Kind: "job", Name: "j"},
		Pod: "p", Amounts: consumption.Amounts{GrantedGiB: ptr.To(3.0)}}}, consumption.ByPod)
	want := `{"by":"pod","rows":[{"namespace":"team","workload":"job/j","pod":"p","pods":1,"grantedGiB":3}]}`
	if got, err := json.Marshal(r); err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}
