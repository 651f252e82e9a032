// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/internal/program/cardflags"
	"github.com/gpushare/dra-driver-gpushare/internal/program/given"
	"github.com/gpushare/dra-driver-gpushare/internal/program/settings"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/audit/watch"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin/podresources"
	"github.com/gpushare/dra-driver-gpushare/pkg/driver"
	"github.com/gpushare/dra-driver-gpushare/pkg/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/inventory"
	"github.com/gpushare/dra-driver-gpushare/pkg/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/probes"
)

func command() *cli.Command {
	env := cli.EnvVars
	return &cli.Command{
		Name:  "gpu-kubelet-plugin",
		Usage: "publish this node's NVIDIA GPUs through Dynamic Resource Allocation and prepare claims on them",
		Flags: append(cardflags.Flags(),
			&cli.StringFlag{Name: "pod-uid", Sources: env("POD_UID"),
				Usage: "UID of this pod; with it two instances can run at once, which a rolling update needs"},
			&cli.StringFlag{Name: "kubeconfig", Sources: env("KUBECONFIG"),
				Usage: "kubeconfig file; by default the pod's service account is used"},
			&cli.FloatFlag{Name: "kube-api-qps", Sources: env("KUBE_API_QPS"), Value: 200,
				Usage: "requests per second to the API server; each claim that is prepared costs one"},
			&cli.IntFlag{Name: "kube-api-burst", Sources: env("KUBE_API_BURST"), Value: 400,
				Usage: "requests to the API server in a burst"},
			&cli.StringFlag{Name: "plugins-dir", Sources: env("KUBELET_PLUGINS_DIR"), Value: kubeletplugin.KubeletPluginsDir,
				Usage: "the kubelet's plugin directory; sockets and state lie in a directory of it"},
			&cli.StringFlag{Name: "registrar-dir", Sources: env("KUBELET_REGISTRAR_DIR"),
				Value: kubeletplugin.KubeletRegistryDir, Usage: "directory in which the kubelet looks for plugins"},
			&cli.StringFlag{Name: "pod-resources-socket", Sources: env("KUBELET_POD_RESOURCES_SOCKET"),
				Value: podresources.DefaultSocket,
				Usage: "the kubelet's PodResources socket, which is asked where pods of NVIDIA's device plugin still run"},
			&cli.StringFlag{Name: "cdi-dir", Sources: env("CDI_DIR"), Value: "/var/run/cdi",
				Usage: "directory in which the container runtime looks for CDI specs"},
			&cli.StringFlag{Name: "dev-root", Sources: env("NVIDIA_DEV_ROOT"),
				Usage: "directory that has dev/nvidia*, on the host; by default the driver root"},
			&cli.DurationFlag{Name: "gpu-read-interval", Sources: env("GPU_READ_INTERVAL"),
				Value: inventory.DefaultReadInterval, Validator: checkReadInterval,
				Usage: "how often the GPUs are read, and so how late at most one that broke is seen"},
			&cli.StringFlag{Name: "cdi-hook", Sources: env("NVIDIA_CDI_HOOK"), Value: "/usr/bin/gpu-cdi-hook",
				Usage: "the program gpu-cdi-hook, or NVIDIA's nvidia-cdi-hook, which is copied to where the host's container " +
					"runtime can start it; empty to do without"},
			&cli.StringFlag{Name: "mps-check", Sources: env("MPS_CHECK"), Value: "/usr/bin/gpu-mps-check",
				Usage: "the program gpu-mps-check, which is copied to where the host's container runtime can start it, and " +
					"keeps containers from starting while MPS would not limit them; empty to do without"},
			&cli.StringFlag{Name: "isolation-cgpu", Sources: env("ISOLATION_CGPU"), Value: isolation.Auto,
				Usage: "what enforces memory limits in mode cgpu: auto, cgpu, mps or hami"},
			&cli.StringFlag{Name: "isolation-core-mem", Sources: env("ISOLATION_CORE_MEM"), Value: isolation.Auto,
				Usage: "what enforces memory and compute limits in mode core_mem: auto, cgpu, mps or hami"},
			&cli.StringFlag{Name: "mps-dir", Sources: env("MPS_DIR"), Value: mps.DefaultHostDir,
				Usage: "directory on the host that is shared with gpu-mps-supervisor"},
			&cli.Int64Flag{Name: "mps-memory-overhead", Sources: env("MPS_MEMORY_OVERHEAD_MIB"),
				Usage: "MiB to add to each memory limit under MPS, where a process' CUDA context counts against it"},
			&cli.StringFlag{Name: "hami-library", Sources: env("HAMI_LIBRARY"),
				Usage: "HAMi-core's libvgpu.so on the host, which you supply"},
			&cli.StringFlag{Name: "limits-lifted-by", Sources: env("LIMITS_LIFTED_BY"), Value: string(claim.LiftersClaims),
				Usage: "what can lift the limits of shares, beside the node label cgpu.disable.isolation: claims (and " +
					"CGPU_DISABLE of their containers, and DeviceClasses), classes (DeviceClasses alone) or nodes (nothing else)",
				Validator: checkLifters},
			&cli.StringFlag{Name: "health-ignored-xids", Sources: env("HEALTH_IGNORED_XIDS"),
				Value: health.FormatXIDs(health.DefaultIgnored()),
				Usage: "comma-separated numbers of the XIDs that programs cause, and that say nothing of the GPU",
				Validator: func(list string) error {
					_, err := health.ParseXIDs(list)
					return err
				}},
			&cli.StringFlag{Name: "unhealthy-taint-effect", Sources: env("UNHEALTHY_TAINT_EFFECT"),
				Value: string(resourceapi.DeviceTaintEffectNoSchedule), Validator: checkTaintEffect,
				Usage: "effect of the taint of GPUs that are unhealthy: NoSchedule keeps new pods away, NoExecute evicts those " +
					"that run, too"},
			&cli.DurationFlag{Name: "audit-interval", Sources: env("AUDIT_INTERVAL"), Value: watch.DefaultInterval,
				Validator: checkAuditInterval,
				Usage: "how often to compare what processes hold of the GPUs with what their containers were granted; 0 for " +
					"never"},
			&cli.StringSliceFlag{Name: "audit-exempt-namespaces", Sources: env("AUDIT_EXEMPT_NAMESPACES"),
				Usage: "comma-separated namespaces whose pods may use GPUs without a claim, beside that of the driver"},
			&cli.StringFlag{Name: "audit-evict", Sources: env("AUDIT_EVICT"),
				Usage: "comma-separated findings for which pods are evicted: over-share, no-grant, beside-mps; empty for none",
				Validator: func(list string) error {
					_, err := audit.ParseKinds(list)
					return err
				}},
			&cli.DurationFlag{Name: "audit-evict-after", Sources: env("AUDIT_EVICT_AFTER"), Value: time.Minute,
				Usage: "for how long a finding lasts before the pod is evicted"},
			&cli.StringFlag{Name: "device-plugin-pods", Sources: env("DEVICE_PLUGIN_PODS"), Value: watchPods,
				Usage: "watch: pods that a device plugin started may run on the nodes, and are watched; none: there are none, " +
					"and pods are not listed", Validator: checkPods},
			&cli.StringFlag{Name: "required-node-label", Sources: env("REQUIRED_NODE_LABEL"),
				Usage: "key of a label, of any value, without which a node offers no GPUs: for the time in which nodes move " +
					"from device plugins to this driver", Validator: checkLabelKey},
			&cli.StringFlag{Name: "settings-dir", Sources: env("SETTINGS_DIR"),
				Usage: "directory with the ConfigMap that the environment was made of, as a volume: when it changes the program " +
					"ends, to be started anew with it; empty for never"},
			&cli.BoolFlag{Name: "claim-status", Sources: env("CLAIM_STATUS"), Value: true,
				Usage: "write into status.devices of prepared claims which GPUs they have, how much, and whether they are well"},
			&cli.StringFlag{Name: "metrics-address", Sources: env("METRICS_ADDRESS"), Value: ":8480",
				Usage: "address to serve /metrics, /readyz and /healthz; without a host it is that of the node, where that is " +
					"told; 0 for none"},
			&cli.StringFlag{Name: "node-ip", Sources: env("NODE_IP"),
				Usage: "the node's address, for metrics-address"},
			&cli.StringFlag{Name: "ready-file", Sources: env("READY_FILE"),
				Usage: "file to make as soon as the kubelet has registered this instance; what the command ready looks for"},
		),
		Commands: []*cli.Command{{
			Name:  "ready",
			Usage: "succeed if the instance with this ready file serves, for a probe",
			Action: func(_ context.Context, c *cli.Command) error {
				return driver.CheckReady(c.String("ready-file"))
			},
		}, {
			Name:  "healthy",
			Usage: "succeed if the instance of this pod answers on its sockets, for a probe",
			Action: func(ctx context.Context, c *cli.Command) error {
				return driver.CheckHealthy(ctx, directories(c))
			},
		}, {
			Name:  "given",
			Usage: "print which GPUs this container was given, and what it is told of them; fail if none: for helm test",
			Action: func(_ context.Context, c *cli.Command) error {
				fmt.Printf("On node %s this container was given:\n", c.String("node-name"))
				return given.Print(os.Stdout, os.Environ(), os.DirFS("/dev"))
			},
		}},
		Action: run,
	}
}

func run(ctx context.Context, c *cli.Command) error {
	if c.Args().Present() {
		return fmt.Errorf("unexpected argument %q: there are only flags", c.Args().First())
	}
	if err := program.SetUpLogging(ctx, c.Int("v")); err != nil {
		return err
	}
	ctx, err := settings.Watch(ctx, c.String("settings-dir"), settings.Poll, os.Getenv)
	if err != nil {
		return err
	}
	lifters, err := claim.ParseLifters(c.String("limits-lifted-by"))
	if err != nil {
		return err
	}
	ignored, err := health.ParseXIDs(c.String("health-ignored-xids"))
	if err != nil {
		return err
	}
	evict, err := audit.ParseKinds(c.String("audit-evict"))
	if err != nil {
		return err
	}
	registry := metrics.New("gpu-kubelet-plugin")
	metrics.ClientGo(registry)
	client, err := newClient(c, float32(c.Float("kube-api-qps")), c.Int("kube-api-burst"))
	if err != nil {
		return err
	}
	var statuses kubernetes.Interface
	if c.Bool("claim-status") {
		if statuses, err = newClient(c, statusQPS, statusBurst); err != nil {
			return err
		}
	}
	where := directories(c)
	pluginDir := where.PluginDir
	hook, check := c.String("cdi-hook"), c.String("mps-check")
	err = driver.Run(ctx, driver.Config{
		NodeName:     c.String("node-name"),
		PodUID:       where.PodUID,
		Client:       client,
		PluginDir:    pluginDir,
		RegistrarDir: where.RegistrarDir,
		CDIDir:       c.String("cdi-dir"),
		ReadyFile:    c.String("ready-file"),
		Programs:     []string{hook, check},
		PodResources: podresources.Client(c.String("pod-resources-socket")),
		Cgroups:      filepath.Join(c.String("host-root"), "sys/fs/cgroup"),
		Isolation: isolation.Config{
			CGPU:            c.String("isolation-cgpu"),
			CoreMem:         c.String("isolation-core-mem"),
			MPSDir:          c.String("mps-dir"),
			MPSOverheadMiB:  c.Int64("mps-memory-overhead"),
			MPSCheck:        driver.InstalledProgram(check, pluginDir),
			CGPUProc:        "/proc/cgpu_km",
			HostHAMiLibrary: c.String("hami-library"),
			HAMiLibrary:     filepath.Join(c.String("host-root"), c.String("hami-library")),
			HAMiDir:         filepath.Join(pluginDir, "hami"),
			KeepLimits:      !lifters.Anyone(),
		},
		Lifters:         lifters,
		IgnoredXIDs:     ignored,
		UnhealthyEffect: resourceapi.DeviceTaintEffect(c.String("unhealthy-taint-effect")),
		Cards: inventory.Options{
			Options:            cardflags.Source(c),
			DevRoot:            c.String("dev-root"),
			LibrarySearchPaths: c.StringSlice("library-search-path"),
			HookPath:           driver.InstalledProgram(hook, pluginDir),
			ReadInterval:       c.Duration("gpu-read-interval"),
		},
		Audit: driver.AuditConfig{
			Interval:         c.Duration("audit-interval"),
			ExemptNamespaces: c.StringSlice("audit-exempt-namespaces"),
			Eviction:         audit.Eviction{Kinds: evict, After: c.Duration("audit-evict-after")},
		},
		RequiredLabel: c.String("required-node-label"),
		WatchPods:     c.String("device-plugin-pods") == watchPods,

		StatusClient:   statuses,
		Registry:       registry,
		MetricsAddress: probes.OnNode(c.String("metrics-address"), c.String("node-ip")),
	})
	if errors.Is(context.Cause(ctx), settings.ErrChanged) {
		// The kubelet starts the container again, with the new settings.
		return nil
	}
	return err
}

// directories say where an instance has its sockets.
func directories(c *cli.Command) driver.Config {
	return driver.Config{
		PodUID:       types.UID(c.String("pod-uid")),
		PluginDir:    filepath.Join(c.String("plugins-dir"), v1alpha1.DriverName),
		RegistrarDir: c.String("registrar-dir"),
	}
}

// checkLifters refuses what the setting cannot mean: with a typo in it limits would be
// anybody's to lift.
func checkLifters(value string) error {
	_, err := claim.ParseLifters(value)
	return err
}

// checkReadInterval refuses what would do nothing but read.
func checkReadInterval(interval time.Duration) error {
	if interval < time.Second {
		return fmt.Errorf("%s is less than a second", interval)
	}
	return nil
}

// checkAuditInterval refuses what would do nothing but read.
func checkAuditInterval(interval time.Duration) error {
	if interval == 0 {
		return nil
	}
	return checkReadInterval(interval)
}

// Values of device-plugin-pods.
const (
	watchPods = "watch"
	noPods    = "none"
)

func checkPods(value string) error {
	if value != watchPods && value != noPods {
		return fmt.Errorf("%q is neither %s nor %s", value, watchPods, noPods)
	}
	return nil
}

func checkTaintEffect(value string) error {
	switch resourceapi.DeviceTaintEffect(value) {
	case resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute:
		return nil
	}
	return fmt.Errorf("%q is neither %s nor %s", value, resourceapi.DeviceTaintEffectNoSchedule,
		resourceapi.DeviceTaintEffectNoExecute)
}

// checkLabelKey refuses what no label can be called: no node would ever have it.
func checkLabelKey(key string) error {
	if key == "" {
		return nil
	}
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		return fmt.Errorf("%q cannot be the key of a label: %s", key, strings.Join(problems, "; "))
	}
	return nil
}

// Requests per second, and in a burst, that write the status of claims: nothing waits for
// them, and they keep nothing waiting.
const (
	statusQPS   = 5
	statusBurst = 10
)

func newClient(c *cli.Command, qps float32, burst int) (kubernetes.Interface, error) {
	config, err := program.ClientConfig(c.String("kubeconfig"), "gpu-kubelet-plugin")
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, fmt.Errorf("%w: run as a pod with a service account, or give --kubeconfig", err)
	}
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = qps, burst
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+
		runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the API client: %w", err)
	}
	return client, nil
}
