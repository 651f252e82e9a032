// SPDX-License-Identifier: Apache-2.0

// Package flags has the flags of gpu-compat-controller, apart from the program, so that
// docs/reference.md is made of them: see internal/docs/generate.
package flags

import (
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
)

// Flags are the program's. docs/reference.md has their words.
func Flags() []cli.Flag {
	env := cli.EnvVars
	return []cli.Flag{
		&cli.StringFlag{Name: "kubeconfig", Sources: env("KUBECONFIG"),
			Usage: "kubeconfig file; by default the pod's service account is used"},
		&cli.StringFlag{Name: "namespace", Sources: env("POD_NAMESPACE"), Value: "kube-system",
			Usage: "namespace of the Lease by which the replicas choose the one that works"},
		&cli.StringFlag{Name: "identity", Sources: env("POD_NAME"),
			Usage: "name of this replica in the Lease; by default the host's name"},
		&cli.DurationFlag{Name: "leader-elect-lease-duration", Sources: env("LEADER_ELECT_LEASE_DURATION"),
			Value: manager.DefaultLeaseDuration, Validator: manager.CheckLeaseDuration,
			Usage: "how long the replica that works may be silent before another takes over; whole seconds from 5s to 3m " +
				"(docs/reference.md#leader_elect_lease_duration)"},
		&cli.BoolFlag{Name: "node-labels", Sources: env("NODE_LABELS"), Value: true,
			Usage: "label nodes by their GPUs, aliyun.accelerator/nvidia_* (docs/gpu-models.md#node-labels); off for some " +
				"autoscalers (docs/autoscaling.md#the-label-of-the-gpu-model)"},
		&cli.BoolFlag{Name: "device-classes", Sources: env("DEVICE_CLASSES"), Value: true,
			Usage: "create and delete the DeviceClasses of GPU models; without it none is touched (docs/gpu-models.md)"},
		&cli.DurationFlag{Name: "class-grace", Sources: env("CLASS_GRACE"), Value: 10 * time.Minute,
			Usage: "how long a DeviceClass of a GPU model stays when there are no such GPUs any more " +
				"(docs/reference.md#class_grace)"},
		&cli.DurationFlag{Name: "template-grace", Sources: env("TEMPLATE_GRACE"), Value: 10 * time.Minute,
			Usage: "how long a ResourceClaimTemplate that was made for legacy pods stays when there are no such pods any " +
				"more (docs/legacy.md#what-becomes-of-the-pod)"},
		&cli.StringFlag{Name: "legacy-policy", Sources: env("LEGACY_POLICY"), Value: controller.LegacyPolicy,
			Usage: "ValidatingAdmissionPolicy that refuses pods which ask for aliyun.com/gpu-mem and the like and hold no " +
				"claim: nodes show these amounts in their status while it is enforced for every pod; empty for never, also " +
				"those that are shown already (docs/reference.md#legacy_policy)"},
		&cli.BoolFlag{Name: "pod-annotations", Sources: env("POD_ANNOTATIONS"), Value: true,
			Usage: "write on pods that asked for GPUs in ACK's manner, in ACK's annotations, which GPUs they were given " +
				"(docs/legacy-tools.md)"},
		&cli.BoolFlag{Name: "pod-annotations-v1", Sources: env("POD_ANNOTATIONS_V1"),
			Usage: "write the annotations of the first version, too: ALIYUN_COM_GPU_MEM_*"},
		&cli.BoolFlag{Name: "evict-refused", Sources: env("EVICT_REFUSED"),
			Usage: "evict pods that cannot start because others hold the GPU they were allocated, where a controller makes " +
				"them anew; it takes the permissions of deployments/options/evict-refused, and without it they are only told, " +
				"in an Event (docs/troubleshooting.md#a-gpu-that-others-hold)"},
		&cli.BoolFlag{Name: "pod-syncs", Sources: env("POD_SYNCS"), Value: true,
			Usage: "have the kubelet look again, within seconds, at pods that have claims of the driver and no sandbox: it " +
				"tries claims again that it could not prepare, which it does by itself after a minute or more " +
				"(docs/reference.md#pod_syncs)"},
		&cli.BoolFlag{Name: "preemption", Sources: env("PREEMPTION"),
			Usage: "evict pods for pods of higher priority that wait for GPUs, which the scheduler does not do; it takes " +
				"the permissions of deployments/options/preemption (docs/preemption.md)"},
		program.SettingsDirFlag(),
		&cli.DurationFlag{Name: "sync-deadline", Sources: env("SYNC_DEADLINE"), Value: 10 * time.Minute,
			Usage: "how long a part of the controller may wait for what it has to know of the cluster, while the others " +
				"work, before the process ends and another replica tries; 0 for ever (docs/reference.md#sync_deadline)"},
		&cli.StringFlag{Name: "health-address", Sources: env("HEALTH_ADDRESS"), Value: ":8081",
			Usage: "address to serve /readyz and /status, which say what each part of the controller waits for, and /livez; " +
				"empty or 0 for none (docs/reference.md#health_address)"},
		&cli.StringFlag{Name: "metrics-address", Sources: env("METRICS_ADDRESS"), Value: ":8481",
			Usage: "address to serve /metrics; 0 for none (docs/reference.md#metrics_address)"},
		program.LogFlag(),
	}
}
