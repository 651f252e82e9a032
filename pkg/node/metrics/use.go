// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
)

// useFamilies are what is used of the GPUs. Where that is not known they have no samples.
func useFamilies() []family {
	return []family{
		usedOfGPU("gpu_memory_used_bytes", "Memory of the GPU that is in use, by whomever.",
			func(u gpu.Use) (float64, bool) { return float64(u.UsedMiB) * mib, true }),
		usedOfGPU("gpu_sm_utilization_ratio", "Part of the time in which the GPU computed.",
			func(u gpu.Use) (float64, bool) { return ratio(u.SMPercent) }),
		usedOfGPU("gpu_processes", "Processes that compute on the GPU.",
			func(u gpu.Use) (float64, bool) { return float64(len(u.Processes)), true }),
		usedByClaim("claim_memory_used_bytes", "Memory of the GPU that the container's processes use.",
			func(u audit.ClaimUse) (float64, bool) { return float64(u.UsedMiB) * mib, true }),
		peakByClaim("claim_memory_peak_bytes",
			"Most memory of the GPU that the container's processes used since the plugin started."),
		usedByClaim("claim_sm_utilization_ratio", "Part of the GPU's time that the container had.",
			func(u audit.ClaimUse) (float64, bool) { return ratio(u.SMPercent) }),
		usedByClaim("claim_processes", "Processes of the container that compute on the GPU.",
			func(u audit.ClaimUse) (float64, bool) { return float64(u.Processes), true }),
		findings("audit_findings", "Findings of the audit now, by kind (docs/audit.md#findings).", prometheus.GaugeValue,
			func(s *audit.Snapshot, k audit.Kind) float64 { return float64(s.Holding[k]) }),
		findings("audit_findings_total", "Findings of the audit since the plugin started, by kind.",
			prometheus.CounterValue,
			func(s *audit.Snapshot, k audit.Kind) float64 { return float64(s.Found[k]) }),
	}
}

// ratio is a percentage as Prometheus has it.
func ratio(of *int) (float64, bool) {
	if of == nil {
		return 0, false
	}
	return float64(*of) / percent, true
}

func usedOfGPU(name, help string, value func(gpu.Use) (float64, bool)) family {
	desc := metrics.Desc(name, help, "gpu", "uuid")
	return family{desc, prometheus.GaugeValue, func(n Node, add func(float64, ...string)) {
		if n.Audit == nil {
			return
		}
		for _, u := range n.Audit.GPUs {
			if v, known := value(u); known {
				add(v, ID{u.Index, u.UUID}.labels()...)
			}
		}
	}}
}

func usedByClaim(name, help string, value func(audit.ClaimUse) (float64, bool)) family {
	desc := metrics.Desc(name, help, claimLabels...)
	return family{desc, prometheus.GaugeValue, func(n Node, add func(float64, ...string)) {
		if n.Audit == nil {
			return
		}
		for _, u := range n.Audit.Claims {
			if v, known := value(u); known {
				add(v, append([]string{u.Namespace, u.Pod, u.Container, u.Claim}, ID{u.Index, u.UUID}.labels()...)...)
			}
		}
	}}
}

// peakByClaim has what claims used that are prepared: the audit may not know yet that others are gone.
func peakByClaim(name, help string) family {
	desc := metrics.Desc(name, help, claimLabels...)
	return family{desc, prometheus.GaugeValue, func(n Node, add func(float64, ...string)) {
		if n.Audit == nil || len(n.Audit.Peaks) == 0 {
			return
		}
		prepared := make(map[types.NamespacedName]bool, len(n.Claims))
		for _, c := range n.Claims {
			prepared[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = true
		}
		is := func(namespace, name string) bool {
			return prepared[types.NamespacedName{Namespace: namespace, Name: name}]
		}
		for _, p := range n.Audit.Peaks {
			if p.By(is) {
				add(float64(p.MiB)*mib, append([]string{p.Namespace, p.Pod, p.Container, p.Claim},
					ID{p.Index, p.UUID}.labels()...)...)
			}
		}
	}}
}

func findings(name, help string, kind prometheus.ValueType, value func(*audit.Snapshot, audit.Kind) float64) family {
	return family{metrics.Desc(name, help, "kind"), kind, func(n Node, add func(float64, ...string)) {
		if n.Audit == nil {
			return
		}
		for _, k := range audit.Kinds() {
			add(value(n.Audit, k), string(k))
		}
	}}
}
