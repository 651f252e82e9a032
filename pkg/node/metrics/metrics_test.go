// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// machine has two GPUs of 15 GiB units, the second of which is unhealthy, and one that was
// left out.
func machine() *gpu.Machine {
	return &gpu.Machine{
		GPUs: []gpu.GPU{
			{Index: 0, UUID: "GPU-a", Model: "Tesla-V100", MemoryMiB: 16130},
			{Index: 1, UUID: "GPU-b", Model: "Tesla-V100", MemoryMiB: 16130},
		},
		Faults: []gpu.Fault{{Index: 2, UUID: "GPU-c", Reason: gpu.FaultLost, Message: "gone"}},
	}
}

func share(index int, units, cores int64, container *string) claim.Grant {
	g := machine().GPUs[index]
	return claim.Grant{Mode: mode.Share, Units: units, CoresPercent: cores, Slots: 1,
		GPU:    claim.GPU{Index: index, UUID: g.UUID, MemoryMiB: g.MemoryMiB},
		Config: v1alpha1.GpuConfig{Container: container}}
}

func holdings() Holdings {
	admin := share(0, 0, 0, nil)
	admin.Admin = true
	whole := share(1, 0, 0, nil)
	whole.Mode = mode.Exclusive
	return Holdings{
		Machine: machine(),
		Claims: []Granted{
			{usage.Claim{Namespace: "a", Name: "one", Grants: []claim.Grant{share(0, 3, 30, ptr.To("train")),
				share(0, 1, 10, ptr.To("train")), share(0, 2, 0, ptr.To("serve"))}}, []string{"pod"}},
			{usage.Claim{Namespace: "b", Name: "two", Grants: []claim.Grant{whole}}, []string{"x", "y"}},
			{usage.Claim{Namespace: "c", Name: "watch", Grants: []claim.Grant{admin}}, nil},
		},
		Reserved: func(uuid string) held.GPU {
			if uuid != "GPU-a" {
				return held.GPU{}
			}
			return held.GPU{Taken: held.Taken{Amount: gpu.Amount{Units: 5}}}
		},
		Unhealthy: map[string]health.Unhealthy{"GPU-b": {Reason: "xid-79"}},
		Audit: &audit.Snapshot{
			GPUs: []gpu.Use{{Index: 0, UUID: "GPU-a", UsedMiB: 4096, SMPercent: ptr.To(75), Processes: make([]gpu.Process, 2)},
				{Index: 1, UUID: "GPU-b", UsedMiB: 1}},
			Claims: []audit.ClaimUse{{Namespace: "a", Pod: "pod", Container: "train", Claim: "one", UUID: "GPU-a",
				UsedMiB: 2048, SMPercent: ptr.To(50), Processes: 1}},
			// The second's claim is not prepared any more.
			Peaks: []audit.ClaimPeak{{Namespace: "a", Pod: "pod", Container: "train", Claim: "one", UUID: "GPU-a", MiB: 3072},
				{Namespace: "a", Pod: "pod", Container: "train", Claim: "gone", UUID: "GPU-a", MiB: 1}},
			Holding: map[audit.Kind]int{audit.OverShare: 1}, Found: map[audit.Kind]int64{audit.OverShare: 4},
		},
	}
}

// node is a node of which there is something to say in each metric.
func node() Node {
	n := NodeOf(holdings())
	n.Publishing = Publishing{Behind: 1.5, SwitchWaiting: 7}
	n.Daemons = []Daemon{{ID: ID{0, "GPU-a"}, Ready: true, Restarts: 3}}
	n.Devices = []Device{{mode.Share, "Tesla-V100", true}, {mode.Share, "Tesla-V100", true},
		{mode.Share, "Tesla-V100", false}}
	return n
}

// collect compares what a collector shows of some metrics.
func collect(t *testing.T, c prometheus.Collector, want string, names ...string) {
	t.Helper()
	for i, name := range names {
		names[i] = "gpushare_" + name
	}
	expect.NoError(t, testutil.CollectAndCompare(c, strings.NewReader(want), names...))
}

func collectorOf(t *testing.T, n Node, err error) *NodeCollector {
	return NewNodeCollector(t.Context(), func(context.Context) (Node, error) { return n, err })
}

// 6 of 15 units of 16130 MiB are granted, each share rounded down as its limit is.
func TestWhatIsGranted(t *testing.T) {
	mib := func(units int64) float64 { return float64(16130*units/15) * (1 << 20) }
	n := node()
	expect.Equal(t, mib(3)+mib(1)+mib(2), n.GPUs[0].GrantedBytes, "bytes of GPU 0 that are granted")
	n.Audit = nil
	collect(t, collectorOf(t, n, nil), fmt.Sprintf(`
# HELP gpushare_claim_memory_granted_bytes Memory that the claim was granted.
# TYPE gpushare_claim_memory_granted_bytes gauge
gpushare_claim_memory_granted_bytes{claim="one",container="serve",gpu="0",namespace="a",pod="pod",uuid="GPU-a"} %g
gpushare_claim_memory_granted_bytes{claim="one",container="train",gpu="0",namespace="a",pod="pod",uuid="GPU-a"} %g
gpushare_claim_memory_granted_bytes{claim="two",container="",gpu="1",namespace="b",pod="",uuid="GPU-b"} %g
# HELP gpushare_claims_prepared Prepared claims in the mode.
# TYPE gpushare_claims_prepared gauge
gpushare_claims_prepared{mode="cgpu"} 0
gpushare_claims_prepared{mode="core-mem"} 0
gpushare_claims_prepared{mode="exclusive"} 1
gpushare_claims_prepared{mode="mig"} 0
gpushare_claims_prepared{mode="mps"} 0
gpushare_claims_prepared{mode="share"} 2
gpushare_claims_prepared{mode="topology"} 0
# HELP gpushare_devices Devices that the node publishes, healthy or unhealthy.
# TYPE gpushare_devices gauge
gpushare_devices{health="healthy",mode="share",model="Tesla-V100"} 2
gpushare_devices{health="unhealthy",mode="share",model="Tesla-V100"} 1
# HELP gpushare_gpu_cores_granted_ratio Part of the GPU's compute that prepared claims were granted.
# TYPE gpushare_gpu_cores_granted_ratio gauge
gpushare_gpu_cores_granted_ratio{gpu="0",uuid="GPU-a"} 0.4
gpushare_gpu_cores_granted_ratio{gpu="1",uuid="GPU-b"} 1
# HELP gpushare_gpu_healthy 1 if the GPU's health lets it take claims, else 0 (docs/health.md).
# TYPE gpushare_gpu_healthy gauge
gpushare_gpu_healthy{gpu="0",uuid="GPU-a"} 1
gpushare_gpu_healthy{gpu="1",uuid="GPU-b"} 0
gpushare_gpu_healthy{gpu="2",uuid="GPU-c"} 0
# HELP gpushare_gpu_unhealthy_info 1 for a GPU that is unhealthy (docs/health.md#causes) or left out: Lost, Unreadable.
# TYPE gpushare_gpu_unhealthy_info gauge
gpushare_gpu_unhealthy_info{gpu="1",reason="xid-79",uuid="GPU-b"} 1
gpushare_gpu_unhealthy_info{gpu="2",reason="Lost",uuid="GPU-c"} 1
# HELP gpushare_gpu_memory_reserved_bytes Memory of the GPU that pods of a device plugin or another DRA driver have.
# TYPE gpushare_gpu_memory_reserved_bytes gauge
gpushare_gpu_memory_reserved_bytes{gpu="0",uuid="GPU-a"} %g
gpushare_gpu_memory_reserved_bytes{gpu="1",uuid="GPU-b"} 0
`, mib(2), mib(3)+mib(1), float64(16130<<20), mib(5)),
		"claim_memory_granted_bytes", "claims_prepared", "devices", "gpu_cores_granted_ratio", "gpu_healthy",
		"gpu_unhealthy_info", "gpu_memory_reserved_bytes", "gpu_memory_used_bytes", "claim_memory_used_bytes",
		"audit_findings_total")
}

// Of a GPU in MIG mode memory and compute are its instances', so that sums over a node are right; one that cannot be
// handed out has none.
func TestInstances(t *testing.T) {
	h := holdings()
	h.Machine.Partitioned = []gpu.Partitioned{{GPU: gpu.GPU{Index: 3, UUID: "GPU-m", Model: "A100", MemoryMiB: 81920},
		Instances: []gpu.Instance{
			{UUID: "MIG-1", Profile: "3g.40gb", MemoryMiB: 40192}, {UUID: "MIG-2", Profile: "1g.10gb", MemoryMiB: 9728},
			{Profile: "1g.10gb", MemoryMiB: 9728, LeftOut: "it has no compute instance"},
		}}}
	h.Unhealthy["MIG-2"] = health.Unhealthy{Reason: "xid-94"}
	h.Claims = append(h.Claims, Granted{usage.Claim{Namespace: "d", Name: "mig", Grants: []claim.Grant{
		{Mode: mode.MIG, GPU: claim.GPU{Index: 3, UUID: "MIG-1", MemoryMiB: 40192}}}}, []string{"pod"}})
	var got []GPU
	for _, g := range NodeOf(h).GPUs {
		if g.Index == 3 {
			got = append(got, g)
		}
	}
	want := []GPU{
		{ID: ID{3, "GPU-m"}, Model: "A100"},
		{ID: ID{3, "MIG-1"}, Model: "A100-MIG-3g.40gb", CapacityBytes: 40192 << 20, GrantedBytes: 40192 << 20,
			CoresRatio: 1, Shares: 1},
		{ID: ID{3, "MIG-2"}, Model: "A100-MIG-1g.10gb", CapacityBytes: 9728 << 20, Unhealthy: "xid-94"},
	}
	expect.Equal(t, want, got, "GPU 3")
	collect(t, collectorOf(t, NodeOf(h), nil), `
# HELP gpushare_claims_prepared Prepared claims in the mode.
# TYPE gpushare_claims_prepared gauge
gpushare_claims_prepared{mode="cgpu"} 0
gpushare_claims_prepared{mode="core-mem"} 0
gpushare_claims_prepared{mode="exclusive"} 1
gpushare_claims_prepared{mode="mig"} 1
gpushare_claims_prepared{mode="mps"} 0
gpushare_claims_prepared{mode="share"} 2
gpushare_claims_prepared{mode="topology"} 0
`, "claims_prepared")
	h.Unhealthy["GPU-m"] = health.Unhealthy{Reason: "xid-79"}
	for _, g := range NodeOf(h).GPUs {
		if g.Index == 3 && g.Unhealthy == "" {
			t.Errorf("%+v is healthy, and its GPU is not", g)
		}
	}
}

// What is used is shown where the audit knows it, and is absent, not 0, where it does not.
func TestWhatIsUsed(t *testing.T) {
	collect(t, collectorOf(t, node(), nil), `
# HELP gpushare_audit_findings_total Findings of the audit since the plugin started, by kind.
# TYPE gpushare_audit_findings_total counter
gpushare_audit_findings_total{kind="beside-mps"} 0
gpushare_audit_findings_total{kind="client-slots"} 0
gpushare_audit_findings_total{kind="gone-pod"} 0
gpushare_audit_findings_total{kind="no-grant"} 0
gpushare_audit_findings_total{kind="no-pod"} 0
gpushare_audit_findings_total{kind="over-share"} 4
gpushare_audit_findings_total{kind="past-limit"} 0
# HELP gpushare_claim_memory_peak_bytes Most memory of the GPU that the container's processes used since the plugin started.
# TYPE gpushare_claim_memory_peak_bytes gauge
gpushare_claim_memory_peak_bytes{claim="one",container="train",gpu="0",namespace="a",pod="pod",uuid="GPU-a"} 3.221225472e+09
# HELP gpushare_claim_memory_used_bytes Memory of the GPU that the container's processes use.
# TYPE gpushare_claim_memory_used_bytes gauge
gpushare_claim_memory_used_bytes{claim="one",container="train",gpu="0",namespace="a",pod="pod",uuid="GPU-a"} 2.147483648e+09
# HELP gpushare_gpu_sm_utilization_ratio Part of the time in which the GPU computed.
# TYPE gpushare_gpu_sm_utilization_ratio gauge
gpushare_gpu_sm_utilization_ratio{gpu="0",uuid="GPU-a"} 0.75
`, "audit_findings_total", "claim_memory_peak_bytes", "claim_memory_used_bytes", "gpu_sm_utilization_ratio")
}

// An error is shown, and so is what could be read beside it.
func TestWhatCannotBeRead(t *testing.T) {
	collect(t, collectorOf(t, node(), errors.New("no disk")), `
# HELP gpushare_look_success 1 if everything could be read for this scrape, else 0: see the log.
# TYPE gpushare_look_success gauge
gpushare_look_success 0
# HELP gpushare_mps_daemon_restarts_total How often the GPU's MPS daemon was restarted.
# TYPE gpushare_mps_daemon_restarts_total counter
gpushare_mps_daemon_restarts_total{gpu="0",uuid="GPU-a"} 3
`, "look_success", "mps_daemon_restarts_total")
	collect(t, collectorOf(t, NodeOf(Holdings{}), nil), "", "gpu_healthy", "gpu_memory_capacity_bytes")
}

// Metrics of a claim and of its GPU are joined by the GPU's index and UUID, also after a boot in which the GPU has
// another index than when it was granted.
func TestClaimOfAGPUWithAnotherIndex(t *testing.T) {
	granted := share(1, 3, 0, nil)
	granted.GPU.Index = 2
	n := NodeOf(Holdings{Machine: machine(), Claims: []Granted{{usage.Claim{Grants: []claim.Grant{granted}}, nil}}})
	if len(n.Claims) != 1 || n.Claims[0].ID != n.GPUs[1].ID {
		t.Errorf("claims %+v, want one of the GPU %+v", n.Claims, n.GPUs[1].ID)
	}
}

// registry has a sample of everything of the driver that its programs show.
func registry(t *testing.T) *prometheus.Registry {
	t.Helper()
	r := metrics.New("test")
	n := node()
	n.MemoryLimits = map[string]string{"GPU-a": "dmem"}
	r.MustRegister(collectorOf(t, n, nil))
	p := NewPlugin(r)
	p.Prepared(time.Millisecond, "")
	p.Unprepared(time.Millisecond, "in-use")
	p.Called("NodePrepareResources", time.Millisecond, nil)
	p.Published(time.Second)
	p.PublishFailed()
	p.StatusWritten(nil)
	c := metrics.NewController(r, func(see func(string, error)) { see("waiting", errors.New("waits")) })
	c.TemplateLag(time.Second)
	c.AnnotationLag(time.Second)
	c.Reconciled("waiting", time.Second, errors.New("no"))
	c.SetSurplus(func() map[string]int64 { return map[string]int64{"n1": 1} })
	c.SetStranded(func() map[string]float64 { return map[string]float64{"n1": 0.5} })
	c.Nominated("right")
	c.Moved("planned")
	return r
}

// This is what "promtool check metrics" does.
func TestConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(registry(t))
	expect.NoError(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// docs/metrics.md has a row for each metric of the driver's own, with its labels. The type follows from the name.
func TestDocumented(t *testing.T) {
	families, err := registry(t).Gather()
	expect.NoError(t, err)
	var want []string
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), metrics.Namespace+"_") {
			want = append(want, row(f))
			expect.Equal(t, typeOf(f.GetName()), strings.ToLower(f.GetType().String()),
				"the type of %s, which docs/metrics.md gives by its name", f.GetName())
		}
	}
	slices.Sort(want)
	page, err := os.ReadFile("../../../docs/metrics.md")
	expect.NoError(t, err)
	var got []string
	for _, found := range regexp.MustCompile("(?m)^(\\| `gpushare_[^|]*\\|[^|]*)\\|.*$").FindAllStringSubmatch(
		string(page), -1) {
		got = append(got, strings.TrimSpace(found[1]))
	}
	slices.Sort(got)
	expect.Equal(t, want, got, "metrics, with labels")
}

// row is the beginning of a metric's row.
func row(f *dto.MetricFamily) string {
	var labels []string
	for _, l := range f.GetMetric()[0].GetLabel() {
		labels = append(labels, "`"+l.GetName()+"`")
	}
	return strings.TrimSpace(fmt.Sprintf("| `%s` | %s", f.GetName(), strings.Join(labels, ", ")))
}

// typeOf is the type that docs/metrics.md gives to metrics with names of this kind.
func typeOf(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_duration_seconds"), strings.HasSuffix(name, "_lag_seconds"):
		return "histogram"
	}
	return "gauge"
}
