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
	"github.com/gpushare/dra-driver-gpushare/internal/program/cardflags"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit/watch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/podresources"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/inventory"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
)

var env = cli.EnvVars

// Flags are the program's. docs/reference.md has their words.
func Flags() []cli.Flag {
	flags := cardflags.Flags()
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
		&cli.StringFlag{Name: "kubeconfig", Sources: env("KUBECONFIG"),
			Usage: "kubeconfig file; by default the pod's service account is used"},
		&cli.FloatFlag{Name: "kube-api-qps", Sources: env("KUBE_API_QPS"), Value: 200,
			Usage: "requests per second to the API server; each claim that is prepared costs one"},
		&cli.IntFlag{Name: "kube-api-burst", Sources: env("KUBE_API_BURST"), Value: 400,
			Usage: "requests to the API server in a burst"},
	}
}

// hostFlags say where things are on the host.
func hostFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "plugins-dir", Sources: env("KUBELET_PLUGINS_DIR"), Value: kubeletplugin.KubeletPluginsDir,
			Usage: "the kubelet's plugin directory on the host; sockets and state lie in a directory of it " +
				"(docs/reference.md#directories-of-the-host)"},
		&cli.StringFlag{Name: "registrar-dir", Sources: env("KUBELET_REGISTRAR_DIR"),
			Value: kubeletplugin.KubeletRegistryDir,
			Usage: "directory of the host in which the kubelet looks for plugins " +
				"(docs/reference.md#directories-of-the-host)"},
		&cli.StringFlag{Name: "pod-resources-socket", Sources: env("KUBELET_POD_RESOURCES_SOCKET"),
			Value: podresources.DefaultSocket,
			Usage: "the socket of the kubelet's PodResources API, which is asked while pods of NVIDIA's device plugin " +
				"still run"},
		&cli.StringFlag{Name: "cdi-dir", Sources: env("CDI_DIR"), Value: "/var/run/cdi",
			Usage: "directory of the host in which the container runtime looks for CDI specs " +
				"(docs/reference.md#directories-of-the-host)"},
		&cli.StringFlag{Name: "dev-root", Sources: env("NVIDIA_DEV_ROOT"), DefaultText: "the driver root",
			Usage: "directory on the host that has dev/nvidia*"},
		&cli.DurationFlag{Name: "gpu-read-interval", Sources: env("GPU_READ_INTERVAL"),
			Value: inventory.DefaultReadInterval, Validator: checkReadInterval,
			Usage: "how often the GPUs are read, and so how late at most one that broke is seen; at least 1s " +
				"(docs/reference.md#gpu_read_interval)"},
		&cli.StringFlag{Name: "cdi-hook", Sources: env("NVIDIA_CDI_HOOK"), Value: "/usr/bin/gpu-cdi-hook",
			Usage: "CDI hook to install for the container runtime: the program gpu-cdi-hook, or NVIDIA's nvidia-cdi-hook, " +
				"which is copied to where the host's container runtime can start it; empty to do without " +
				"(docs/reference.md#nvidia_cdi_hook)"},
		&cli.StringFlag{Name: "mps-check", Sources: env("MPS_CHECK"), Value: "/usr/bin/gpu-mps-check",
			Usage: "the program gpu-mps-check, which is copied to where the host's container runtime can start it, and " +
				"keeps containers from starting while MPS would not limit them; empty to do without " +
				"(docs/reference.md#mps_check)"},
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
			Usage: "what enforces memory limits in mode cgpu: auto, cgpu, mps or hami " +
				"(docs/reference.md#isolation_cgpu-isolation_core_mem)"},
		&cli.StringFlag{Name: "isolation-core-mem", Sources: env("ISOLATION_CORE_MEM"), Value: isolation.Auto,
			Usage: "what enforces memory and compute limits in mode core_mem: auto, cgpu, mps or hami " +
				"(docs/reference.md#isolation_cgpu-isolation_core_mem)"},
		cardflags.MPSDir(),
		&cli.Int64Flag{Name: "mps-memory-overhead", Sources: env("MPS_MEMORY_OVERHEAD_MIB"),
			Usage: "MiB to add to each memory limit under MPS, where a process' CUDA context counts against it"},
		&cli.IntFlag{Name: "containers-per-share", Sources: env("CONTAINERS_PER_SHARE"), Value: ContainersPerShare,
			Validator: checkContainers,
			Usage: "how many containers may have the limits of one share at the same time, for each could take all of it; 0 " +
				"for any number (docs/isolation.md#requests-and-containers)"},
		&cli.StringFlag{Name: "hami-library", Sources: env("HAMI_LIBRARY"),
			Usage: "HAMi-core's libvgpu.so on the host, which you supply (docs/isolation.md#hami--hami-core)"},
		&cli.StringFlag{Name: "limits-lifted-by", Sources: env("LIMITS_LIFTED_BY"), Value: string(claim.LiftersClaims),
			Usage: "what can lift the limits of shares, beside the node label cgpu.disable.isolation: claims (and " +
				"CGPU_DISABLE of their containers, and DeviceClasses), classes (DeviceClasses alone) or nodes (nothing else) " +
				"(docs/reference.md#limits_lifted_by)",
			Validator: checkLifters},
	}
}

// watchFlags say what is watched of GPUs, processes and pods, and what comes of it.
func watchFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "health-ignored-xids", Sources: env("HEALTH_IGNORED_XIDS"),
			Value: health.FormatXIDs(health.DefaultIgnored()), Validator: checkXIDs,
			Usage: "comma-separated numbers of the XIDs that programs cause, and that say nothing of the GPU " +
				"(docs/health.md#what-makes-a-gpu-unhealthy)"},
		&cli.StringFlag{Name: "unhealthy-taint-effect", Sources: env("UNHEALTHY_TAINT_EFFECT"),
			Value: string(resourceapi.DeviceTaintEffectNoSchedule), Validator: checkTaintEffect,
			Usage: "effect of the taint of GPUs that are unhealthy: NoSchedule keeps new pods away, NoExecute evicts those " +
				"that run, too (docs/health.md#what-happens)"},
		&cli.DurationFlag{Name: "audit-interval", Sources: env("AUDIT_INTERVAL"), Value: watch.DefaultInterval,
			Validator: checkAuditInterval,
			Usage: "how often the audit compares what processes hold of the GPUs with what their containers were granted; at " +
				"least 1s, 0 for never (docs/audit.md)"},
		&cli.StringSliceFlag{Name: "audit-exempt-namespaces", Sources: env("AUDIT_EXEMPT_NAMESPACES"),
			Usage: "comma-separated namespaces whose pods may use every GPU without a claim, beside that of the driver " +
				"(docs/audit.md#what-is-not-a-finding)"},
		&cli.StringFlag{Name: "audit-evict", Sources: env("AUDIT_EVICT"), Validator: checkFindings,
			Usage: "comma-separated findings for which pods are evicted: over-share, no-grant, beside-mps; empty for none " +
				"(docs/audit.md#evicting-pods)"},
		&cli.DurationFlag{Name: "audit-evict-after", Sources: env("AUDIT_EVICT_AFTER"), Value: time.Minute,
			Usage: "for how long a finding lasts before the pod is evicted"},
		&cli.BoolFlag{Name: "audit-evict-over-budgets", Sources: env("AUDIT_EVICT_OVER_BUDGETS"),
			Usage: "evict pods for findings although a PodDisruptionBudget keeps them (docs/audit.md#evicting-pods)"},
		&cli.StringFlag{Name: "device-plugin-pods", Sources: env("DEVICE_PLUGIN_PODS"), Value: noPods,
			Validator: checkPods,
			Usage: "watch: pods that a device plugin started may run on the nodes, and are watched, which takes the " +
				"permissions of deployments/options/device-plugin-pods; none: pods are not listed " +
				"(docs/reference.md#device_plugin_pods)"},
		&cli.StringFlag{Name: "required-node-label", Sources: env("REQUIRED_NODE_LABEL"), Validator: checkLabelKey,
			Usage: "key of a label, of any value, without which a node offers no GPUs: for the time in which nodes move " +
				"from device plugins to this driver (docs/migrate.md#what-keeps-the-two-apart)"},
		program.SettingsDirFlag(),
	}
}

// servingFlags say what the program shows of itself.
func servingFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "claim-status", Sources: env("CLAIM_STATUS"), Value: true,
			Usage: "show in status.devices of prepared claims which GPUs they have, how much, and whether they are well " +
				"(docs/metrics.md#the-status-of-claims)"},
		&cli.StringFlag{Name: "metrics-address", Sources: env("METRICS_ADDRESS"), Value: ":8480",
			Usage: "address to serve /metrics, /readyz and /healthz; without a host it is that of the node, where that is " +
				"told; 0 for none (docs/reference.md#metrics_address)"},
		&cli.StringFlag{Name: "node-ip", Sources: env("NODE_IP"),
			Usage: "the node's address, for metrics-address"},
		&cli.StringFlag{Name: "ready-file", Sources: env("READY_FILE"),
			Usage: "file to make as soon as the kubelet has registered this instance, for the startup probe; what the " +
				"command ready looks for (docs/reference.md#ready_file)"},
	}
}

func checkXIDs(list string) error {
	_, err := health.ParseXIDs(list)
	return err
}

func checkFindings(list string) error {
	_, err := audit.ParseKinds(list)
	return err
}
