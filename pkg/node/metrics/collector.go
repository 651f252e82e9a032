// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// lookMost is how long a scrape waits for what the node has.
const lookMost = 2 * time.Second

// family is a metric of a NodeCollector, and how its samples follow from the node.
type family struct {
	desc    *prometheus.Desc
	kind    prometheus.ValueType
	samples func(n Node, add func(value float64, labels ...string))
}

// NodeCollector shows what a node has at the moment of a scrape.
type NodeCollector struct {
	ctx      context.Context
	look     func(context.Context) (Node, error)
	families []family
	success  *prometheus.Desc
}

// NewNodeCollector returns a collector that looks at the node for each scrape, while the
// context lives, for its log. look returns what it can beside an error.
func NewNodeCollector(ctx context.Context, look func(context.Context) (Node, error)) *NodeCollector {
	return &NodeCollector{ctx: ctx, look: look, families: nodeFamilies(),
		success: metrics.Desc("look_success",
			"1 if everything could be read for this scrape, else 0: see the log.")}
}

// Describe implements prometheus.Collector.
func (c *NodeCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.success
	for _, f := range c.families {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c *NodeCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(c.ctx, lookMost)
	defer cancel()
	n, err := c.look(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Not all that the node has could be read for the metrics")
	}
	out <- prometheus.MustNewConstMetric(c.success, prometheus.GaugeValue, metrics.Bool(err == nil))
	for _, f := range c.families {
		f.samples(n, func(value float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(f.desc, f.kind, value, labels...)
		})
	}
}

// labels are those of a GPU: its index, as nvidia-smi counts, and its UUID.
func (c ID) labels() []string { return []string{strconv.Itoa(c.Index), c.UUID} }

// nodeFamilies are the metrics of a node.
func nodeFamilies() []family {
	var out []family
	out = append(out, gpuFamilies()...)
	out = append(out, claimFamilies()...)
	out = append(out, useFamilies()...)
	return append(out, stateFamilies()...)
}

// ofGPU is a gauge with a sample for each GPU of which value knows one.
func ofGPU(name, help string, value func(GPU) (float64, bool)) family {
	return family{metrics.Desc(name, help, "gpu", "uuid"), prometheus.GaugeValue,
		func(n Node, add func(float64, ...string)) {
			for _, g := range n.GPUs {
				if v, known := value(g); known {
					add(v, g.labels()...)
				}
			}
		}}
}

func gpuFamilies() []family {
	read := func(value func(GPU) float64) func(GPU) (float64, bool) {
		return func(g GPU) (float64, bool) { return value(g), g.CapacityBytes > 0 }
	}
	return []family{
		{metrics.Desc("gpu_info", "1 for each GPU, with its model as a label.", "gpu", "uuid", "model"),
			prometheus.GaugeValue,
			func(n Node, add func(float64, ...string)) {
				for _, g := range n.GPUs {
					if g.Model != "" {
						add(1, append(g.labels(), g.Model)...)
					}
				}
			}},
		{metrics.Desc("gpu_memory_limits", "1 for each GPU, with who counts its memory for the kernel's limits: dmem, "+
			"misc or none (docs/kernel-limits.md).", "gpu", "uuid", "kind"),
			prometheus.GaugeValue,
			func(n Node, add func(float64, ...string)) {
				for _, g := range n.GPUs {
					if kind, known := n.MemoryLimits[g.UUID]; known {
						add(1, append(g.labels(), cmp.Or(kind, "none"))...)
					}
				}
			}},
		ofGPU("gpu_memory_capacity_bytes", "Memory of the GPU.", read(func(g GPU) float64 { return g.CapacityBytes })),
		ofGPU("gpu_memory_granted_bytes", "Memory of the GPU that prepared claims were granted.",
			read(func(g GPU) float64 { return g.GrantedBytes })),
		ofGPU("gpu_memory_reserved_bytes",
			"Memory of the GPU that pods of a device plugin or another DRA driver have.",
			read(func(g GPU) float64 { return g.ReservedBytes })),
		ofGPU("gpu_cores_granted_ratio", "Part of the GPU's compute that prepared claims were granted.",
			read(func(g GPU) float64 { return g.CoresRatio })),
		ofGPU("gpu_shares_granted", "Prepared claims' shares of the GPU.",
			read(func(g GPU) float64 { return float64(g.Shares) })),
		ofGPU("gpu_healthy", "1 if the GPU's health lets it take claims, else 0 (docs/health.md).",
			func(g GPU) (float64, bool) { return metrics.Bool(g.Unhealthy == ""), true }),
		{metrics.Desc("gpu_unhealthy_info", "1 for a GPU that is unhealthy "+
			"(docs/health.md#causes) or left out: Lost, Unreadable.",
			"gpu", "uuid", "reason"), prometheus.GaugeValue,
			func(n Node, add func(float64, ...string)) {
				for _, g := range n.GPUs {
					if g.Unhealthy != "" {
						add(1, append(g.labels(), g.Unhealthy)...)
					}
				}
			}},
	}
}

// claimLabels are the labels of what is a container's of a GPU.
var claimLabels = []string{"namespace", "pod", "container", "claim", "gpu", "uuid"}

func claimFamilies() []family {
	granted := func(name, help string, value func(Claim) float64) family {
		return family{metrics.Desc(name, help, claimLabels...), prometheus.GaugeValue,
			func(n Node, add func(float64, ...string)) {
				for _, c := range n.Claims {
					add(value(c), append([]string{c.Namespace, c.Pod, c.Container, c.Name}, c.labels()...)...)
				}
			}}
	}
	return []family{
		granted("claim_memory_granted_bytes", "Memory that the claim was granted.",
			func(c Claim) float64 { return c.GrantedBytes }),
		granted("claim_cores_granted_ratio", "Part of a GPU's compute that the claim was granted.",
			func(c Claim) float64 { return c.CoresRatio }),
		{metrics.Desc("claims_prepared", "Prepared claims in the mode.", "mode"),
			prometheus.GaugeValue, func(n Node, add func(float64, ...string)) {
				for _, m := range append(mode.Dynamic.ServedModes(), mode.Topology, mode.MIG) {
					add(float64(n.Prepared[m]), string(m))
				}
			}},
	}
}

func stateFamilies() []family {
	single := func(name, help string, value func(Node) float64) family {
		return family{metrics.Desc(name, help), prometheus.GaugeValue,
			func(n Node, add func(float64, ...string)) { add(value(n)) }}
	}
	return []family{
		{metrics.Desc("devices", "Devices that the node publishes, healthy or unhealthy.", "mode", "model",
			"health"), prometheus.GaugeValue,
			func(n Node, add func(float64, ...string)) {
				count := map[Device]int{}
				for _, d := range n.Devices {
					count[d]++
				}
				for d, number := range count {
					health := "unhealthy"
					if d.Healthy {
						health = "healthy"
					}
					add(float64(number), string(d.Mode), d.Model, health)
				}
			}},
		single("publish_behind_seconds", "For how long a change has not been published.",
			func(n Node) float64 { return n.Behind }),
		single("mode_switch_waiting_seconds", "For how long the node has waited to change its mode "+
			"(docs/modes.md).", func(n Node) float64 { return n.SwitchWaiting }),
		{metrics.Desc("mps_daemon_ready",
			"1 if the GPU's MPS daemon answers, else 0.", "gpu",
			"uuid"),
			prometheus.GaugeValue, func(n Node, add func(float64, ...string)) {
				for _, d := range n.Daemons {
					add(metrics.Bool(d.Ready), d.labels()...)
				}
			}},
		{metrics.Desc("mps_daemon_restarts_total", "How often the GPU's MPS daemon was restarted.", "gpu", "uuid"),
			prometheus.CounterValue,
			func(n Node, add func(float64, ...string)) {
				for _, d := range n.Daemons {
					add(float64(d.Restarts), d.labels()...)
				}
			}},
	}
}
