// SPDX-License-Identifier: Apache-2.0

// Package flags has the flags of gpu-compat-controller, apart from the program, so that
// docs/reference.md is made of them: see internal/docs/generate.
package flags

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/defragment"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/probes"
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
			Usage: "how long the leader may be silent before another replica takes over, 5s to 3m"},
		&cli.BoolFlag{Name: "node-labels", Sources: env("NODE_LABELS"), Value: true,
			Usage: "label nodes aliyun.accelerator/nvidia_* (docs/gpu-models.md#node-labels); off for some autoscalers " +
				"(docs/autoscaling.md#the-label-of-the-gpu-model)"},
		&cli.BoolFlag{Name: "node-features", Sources: env("NODE_FEATURES"),
			Usage: "label nodes nvidia.com/gpu.product … where GPU Feature Discovery does not run " +
				"(docs/other-manifests.md#node-labels)"},
		&cli.BoolFlag{Name: "device-classes", Sources: env("DEVICE_CLASSES"), Value: true,
			Usage: "manage the DeviceClasses of GPU models (docs/gpu-models.md)"},
		&cli.DurationFlag{Name: "class-grace", Sources: env("CLASS_GRACE"), Value: 10 * time.Minute,
			Validator: checkTime,
			Usage:     "how long a DeviceClass of a GPU model stays without such GPUs"},
		&cli.DurationFlag{Name: "template-grace", Sources: env("TEMPLATE_GRACE"), Value: 10 * time.Minute,
			Validator: checkTime,
			Usage:     "how long a claim template stays without its legacy pods (docs/legacy.md#converted-pods)"},
		&cli.StringFlag{Name: "legacy-policy", Sources: env("LEGACY_POLICY"), Value: controller.LegacyPolicy,
			Usage: "policy without which nodes show no amounts; empty for never (docs/migrate.md#tools-made-for-ack)"},
		&cli.BoolFlag{Name: "pod-annotations", Sources: env("POD_ANNOTATIONS"), Value: true,
			Usage: "write ACK's annotations on legacy pods (docs/migrate.md#tools-made-for-ack)"},
		&cli.BoolFlag{Name: "pod-annotations-v1", Sources: env("POD_ANNOTATIONS_V1"),
			Usage: "write their first version, too: ALIYUN_COM_GPU_MEM_*"},
		&cli.BoolFlag{Name: "pod-syncs", Sources: env("POD_SYNCS"), Value: true,
			Usage: "have the kubelet retry claims within seconds, not after 60 to 90 (docs/internals/settings.md#pod_syncs)"},
		&cli.BoolFlag{Name: "preemption", Sources: env("PREEMPTION"),
			Usage: "evict pods for waiting ones of higher priority; needs the option preemption (docs/preemption.md)"},
		&cli.BoolFlag{Name: "best-node", Sources: env("BEST_NODE"),
			Usage: "nominate the best node for pods with GPUs; needs the option best-node (docs/packing.md)"},
		&cli.StringFlag{Name: "node-placement", Sources: env("NODE_PLACEMENT"), Value: string(score.Best),
			Validator: program.OneOf(score.Best, score.Binpack, score.Spread),
			Usage: "best node of pods without the label: best, binpack or spread " +
				"(docs/packing.md)"},
		&cli.StringFlag{Name: "defragment", Sources: env("DEFRAGMENT"), Value: string(defragment.Off),
			Validator: program.OneOf(defragment.Off, defragment.DryRun, defragment.Evict),
			Usage: "evict pods so that they move to other nodes: none, dry-run (only report) or evict; needs the option " +
				"defragment (docs/packing.md#defragmentation)"},
		&cli.IntFlag{Name: "defragment-moves", Sources: env("DEFRAGMENT_MOVES"), Value: 10, Validator: checkMoves,
			Usage: "how many pods to evict for that in an hour, 100 at most"},
		program.SettingsDirFlag(),
		&cli.DurationFlag{Name: "sync-deadline", Sources: env("SYNC_DEADLINE"), Value: 10 * time.Minute,
			Validator: checkTime,
			Usage: "how long a part may wait to read the cluster before the process ends; 0 for ever " +
				"(docs/troubleshooting.md#gpu-compat-controller-is-not-ready)"},
		&cli.StringFlag{Name: "health-address", Sources: env("HEALTH_ADDRESS"), Value: ":8081",
			Validator: checkAddress,
			Usage:     "address of /readyz, /status and /livez; the Deployment's probes have to follow; 0 for none"},
		&cli.StringFlag{Name: "metrics-address", Sources: env("METRICS_ADDRESS"), Value: ":8481",
			Usage: "address of /metrics; 0 for none (docs/metrics.md)"},
		program.LogFlag(),
	}
}

// checkTime refuses what no time can be.
func checkTime(d time.Duration) error {
	if d < 0 {
		return errors.New("a time cannot be negative")
	}
	return nil
}

// checkMoves refuses what is none, or too many to be written down.
func checkMoves(number int) error {
	if number < 1 || number > 100 {
		return fmt.Errorf("%d: want 1 to 100", number)
	}
	return nil
}

// checkAddress refuses what nothing can be served at, on any node. That of metrics is not
// checked: the program works without them.
func checkAddress(address string) error {
	if probes.Off(address) {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return fmt.Errorf("%q: %w", address, err)
	}
	return nil
}
