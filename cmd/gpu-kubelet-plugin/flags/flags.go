// SPDX-License-Identifier: Apache-2.0

// Package flags has the flags of gpu-kubelet-plugin, apart from the program, so that
// docs/reference.md is made of them: see internal/docs/generate.
package flags

import (
	"time"

	"github.com/urfave/cli/v3"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/internal/program/gpuflags"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit/watch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/podresources"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/inventory"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
)

var env = cli.EnvVars

// Flags are the program's. docs/reference.md has their words.
func Flags() []cli.Flag {
	flags := gpuflags.Flags()
	flags = append(flags, apiFlags()...)
	flags = append(flags, hostFlags()...)
	flags = append(flags, limitFlags()...)
	flags = append(flags, watchFlags()...)
	return append(flags, servingFlags()...)
}

// apiFlags say how the API server is reached, and as whom.
func apiFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "pod-uid", Sources: env("POD_UID"),
			Usage: "UID of this pod; with it two instances can run at once, which a rolling update needs"},
		&cli.StringFlag{Name: "pod-name", Sources: env("POD_NAME"),
			Usage: "name of this pod; with it a kubelet that does not list its pods yet is told from one that gave them " +
				"no GPUs"},
		&cli.StringFlag{Name: "pod-namespace", Sources: env("POD_NAMESPACE"), Usage: "namespace of this pod"},
		&cli.StringFlag{Name: "kubeconfig", Sources: env("KUBECONFIG"),
			Usage: "kubeconfig file; by default the pod's service account is used"},
		&cli.FloatFlag{Name: "kube-api-qps", Sources: env("KUBE_API_QPS"), Value: 200,
			Usage: "requests per second to the API server; each prepared claim costs one"},
		&cli.IntFlag{Name: "kube-api-burst", Sources: env("KUBE_API_BURST"), Value: 400,
			Validator: program.AtLeast(1),
			Usage:     "requests to the API server in a burst"},
	}
}

// hostFlags say where things are on the host.
func hostFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "plugins-dir", Sources: env("KUBELET_PLUGINS_DIR"), Value: kubeletplugin.KubeletPluginsDir,
			Usage: "the kubelet's plugin directory on the host; the DaemonSet's mount has to follow"},
		&cli.StringFlag{Name: "registrar-dir", Sources: env("KUBELET_REGISTRAR_DIR"),
			Value: kubeletplugin.KubeletRegistryDir,
			Usage: "directory on the host in which the kubelet looks for plugins; the DaemonSet's mount has to follow"},
		&cli.StringFlag{Name: "pod-resources-socket", Sources: env("KUBELET_POD_RESOURCES_SOCKET"),
			Value: podresources.DefaultSocket,
			Usage: "socket of the kubelet's PodResources API"},
		&cli.StringFlag{Name: "cdi-dir", Sources: env("CDI_DIR"), Value: "/var/run/cdi",
			Usage: "directory on the host in which the container runtime looks for CDI specs; the DaemonSet's mount has " +
				"to follow"},
		&cli.StringFlag{Name: "dev-root", Sources: env("NVIDIA_DEV_ROOT"), DefaultText: "the driver root",
			Usage: "host directory with dev/nvidia*"},
		&cli.DurationFlag{Name: "gpu-read-interval", Sources: env("GPU_READ_INTERVAL"),
			Value: inventory.DefaultReadInterval, Validator: program.AtLeast(time.Second),
			Usage: "how often the GPUs are read, at least 1s"},
		&cli.StringFlag{Name: "mig-instances", Sources: env("MIG_INSTANCES"), Value: inventory.MIGStatic,
			Validator: program.OneOf(inventory.MIGStatic, inventory.MIGDynamic),
			Usage: "MIG instances to offer: static, or dynamic, which makes them for claims (alpha, " +
				"docs/mig.md#dynamic-instances)"},
		&cli.BoolFlag{Name: "nvidia-dra", Sources: env("NVIDIA_DRA"),
			Usage: "serve claims written for NVIDIA's DRA driver; for the option nvidia-dra (docs/nvidia-dra.md)"},
		&cli.StringFlag{Name: "cdi-hook", Sources: env("NVIDIA_CDI_HOOK"), Value: "/usr/bin/gpu-cdi-hook",
			Usage: "CDI hook to install for the container runtime: gpu-cdi-hook, or NVIDIA's nvidia-cdi-hook; empty for " +
				"none"},
		&cli.StringFlag{Name: "mps-check", Sources: env("MPS_CHECK"), Value: "/usr/bin/gpu-mps-check",
			Usage: "program that keeps containers from starting while MPS would not limit them; empty for none"},
		&cli.StringFlag{Name: "memory-limit-hook", Sources: env("MEMORY_LIMIT_HOOK"), Value: "/usr/bin/gpu-memory-limit",
			Usage: "program that tells the kernel each container's limit of GPU memory; empty for no such limits " +
				"(docs/kernel-limits.md)"},
	}
}

// ContainersPerShare is how many containers have one share by default: a program and a few
// helpers, or pods that hand over to each other. A GPU of 16 GiB with a share for each GiB
// would have all clients that MPS takes (48) with three; more is left to who asks for it.
const ContainersPerShare = 4

// limitFlags say what keeps programs to their shares.
func limitFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "isolation-cgpu", Sources: env("ISOLATION_CGPU"), Value: isolation.Auto,
			Usage: "isolation of mode cgpu: auto, kernel, cgpu, mps or hami (docs/isolation.md#isolation-levels)"},
		&cli.StringFlag{Name: "isolation-core-mem", Sources: env("ISOLATION_CORE_MEM"), Value: isolation.Auto,
			Usage: "isolation of mode core_mem; values as for ISOLATION_CGPU"},
		&cli.StringFlag{Name: "isolation-mps", Sources: env("ISOLATION_MPS"), Value: isolation.Auto,
			Usage: "memory limits of mode mps: auto, kernel or mps"},
		&cli.StringFlag{Name: "isolation-share", Sources: env("ISOLATION_SHARE"), Value: mode.IsolationNone,
			Usage: "memory limits of mode share: none or kernel (docs/kernel-limits.md)"},
		&cli.StringFlag{Name: "cgroup-root", Sources: env("CGROUP_ROOT"), Value: memlimit.DefaultRoot,
			Usage: "where the host's control groups of version 2 are mounted (docs/kernel-limits.md)"},
		gpuflags.MPSDir(),
		&cli.Int64Flag{Name: "mps-memory-overhead", Sources: env("MPS_MEMORY_OVERHEAD_MIB"),
			Usage: "MiB to add to each memory limit for CUDA contexts"},
		&cli.IntFlag{Name: "containers-per-share", Sources: env("CONTAINERS_PER_SHARE"), Value: ContainersPerShare,
			Validator: program.AtLeast(0),
			Usage: "how many containers may use one share at a time; 0 for any number " +
				"(docs/isolation.md#requests-and-containers)"},
		&cli.StringFlag{Name: "hami-library", Sources: env("HAMI_LIBRARY"),
			Usage: "HAMi-core's libvgpu.so on the host, which you supply (docs/isolation.md#hami--hami-core)"},
		&cli.StringFlag{Name: "limits-lifted-by", Sources: env("LIMITS_LIFTED_BY"), Value: string(claim.LimitsOffByClaims),
			Usage:     "what can switch limits off: claims, classes or nodes (docs/isolation.md#lifting-the-limits)",
			Validator: program.Parsed(claim.ParseLimitsOffBy)},
	}
}

// watchFlags say what is watched of GPUs, processes and pods, and what comes of it.
func watchFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "health-ignored-xids", Sources: env("HEALTH_IGNORED_XIDS"),
			Value: health.FormatXIDs(health.DefaultIgnored()), Validator: program.Parsed(health.ParseXIDs),
			Usage: "XIDs that leave a GPU healthy, comma-separated (docs/health.md#causes)"},
		&cli.StringFlag{Name: "unhealthy-taint-effect", Sources: env("UNHEALTHY_TAINT_EFFECT"),
			Value:     string(resourceapi.DeviceTaintEffectNoSchedule),
			Validator: program.OneOf(resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute),
			Usage:     "taint of unhealthy GPUs: NoSchedule, or NoExecute, which also evicts (docs/health.md#effects)"},
		&cli.DurationFlag{Name: "audit-interval", Sources: env("AUDIT_INTERVAL"), Value: watch.DefaultInterval,
			Validator: checkAuditInterval,
			Usage:     "how often the audit looks, at least 1s; 0 for never (docs/audit.md)"},
		&cli.StringSliceFlag{Name: "audit-exempt-namespaces", Sources: env("AUDIT_EXEMPT_NAMESPACES"),
			Usage: "namespaces whose pods may use any GPU, comma-separated (docs/audit.md#exceptions)"},
		&cli.StringFlag{Name: "audit-evict", Sources: env("AUDIT_EVICT"), Validator: program.Parsed(audit.ParseKinds),
			Usage: "findings for which pods are evicted, comma-separated (docs/audit.md#evicting-pods)"},
		&cli.DurationFlag{Name: "audit-evict-after", Sources: env("AUDIT_EVICT_AFTER"), Value: time.Minute,
			Usage: "how long a finding lasts before the eviction"},
		&cli.BoolFlag{Name: "audit-evict-over-budgets", Sources: env("AUDIT_EVICT_OVER_BUDGETS"),
			Usage: "evict although a PodDisruptionBudget protects the pod"},
		&cli.StringFlag{Name: "device-plugin-pods", Sources: env("DEVICE_PLUGIN_PODS"), Value: noPods,
			Validator: program.OneOf(WatchPods, noPods),
			Usage:     "whether pods of a device plugin are watched: watch or none (docs/reference.md#device_plugin_pods)"},
		&cli.StringFlag{Name: "required-node-label", Sources: env("REQUIRED_NODE_LABEL"), Validator: checkLabelKey,
			Usage: "label key without which a node offers no GPUs (docs/migrate.md#migration-label)"},
		program.SettingsDirFlag(),
	}
}

// servingFlags say what the program shows of itself.
func servingFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "claim-status", Sources: env("CLAIM_STATUS"), Value: true,
			Usage: "show in status.devices what claims were granted (docs/metrics.md#the-status-of-claims)"},
		&cli.StringFlag{Name: "metrics-address", Sources: env("METRICS_ADDRESS"), Value: ":8480",
			Usage: "address of /metrics; 0 for none (docs/metrics.md)"},
		&cli.StringFlag{Name: "node-ip", Sources: env("NODE_IP"),
			Usage: "the node's address, for metrics-address"},
		&cli.StringFlag{Name: "ready-file", Sources: env("READY_FILE"),
			Usage: "file to create when the kubelet has registered the plugin, for the startup probe"},
	}
}
