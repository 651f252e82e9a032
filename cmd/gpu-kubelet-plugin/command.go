// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v3"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/cmd/gpu-kubelet-plugin/flags"
	"github.com/gpushare/dra-driver-gpushare/internal/procs"
	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/internal/program/given"
	"github.com/gpushare/dra-driver-gpushare/internal/program/gpuflags"
	"github.com/gpushare/dra-driver-gpushare/internal/program/settings"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/podresources"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/driver"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/health"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/inventory"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/limitwatch"
	"github.com/gpushare/dra-driver-gpushare/pkg/probes"
)

func command() *cli.Command {
	return &cli.Command{
		Name:  "gpu-kubelet-plugin",
		Usage: "publish this node's NVIDIA GPUs through Dynamic Resource Allocation and prepare claims on them",
		Flags: flags.Flags(),
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
			Flags: []cli.Flag{&cli.BoolFlag{Name: "wait", Usage: "then run on until told to end: for a first pod"}},
			Action: func(ctx context.Context, c *cli.Command) error {
				if node := c.String("node-name"); node != "" {
					fmt.Printf("On node %s:\n", node)
				}
				fmt.Println("This container was given:")
				if err := given.Print(os.Stdout, os.Environ(), os.DirFS("/dev")); err != nil || !c.Bool("wait") {
					return err
				}
				<-ctx.Done()
				return nil
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
	nodeName, err := gpuflags.NodeName(c)
	if err != nil {
		return err
	}
	refused := make(chan error, 1)
	ctx, err = settings.Watch(ctx, c.String("settings-dir"), settings.Poll, os.Getenv, flags.Flags, refused)
	if err != nil {
		return err
	}
	limitsOffBy, limitsErr := claim.ParseLimitsOffBy(c.String("limits-lifted-by"))
	ignored, ignoredErr := health.ParseXIDs(c.String("health-ignored-xids"))
	evict, evictErr := audit.ParseKinds(c.String("audit-evict"))
	if err := errors.Join(limitsErr, ignoredErr, evictErr); err != nil {
		return err
	}
	registry := metrics.New("gpu-kubelet-plugin")
	metrics.ClientGo(registry)
	config, err := program.ClientConfig(c.String("kubeconfig"), "gpu-kubelet-plugin")
	if err != nil {
		return err
	}
	client, err := program.Client(config, float32(c.Float("kube-api-qps")), c.Int("kube-api-burst"))
	if err != nil {
		return err
	}
	var statuses kubernetes.Interface
	if c.Bool("claim-status") {
		if statuses, err = program.Client(config, statusQPS, statusBurst); err != nil {
			return err
		}
	}
	audits, err := program.Client(config, auditQPS, auditBurst)
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(c.StringSlice("library-search-path")) {
		// nvcdi looks for the driver's programs where PATH says, in the driver root. Beside such libraries are theirs.
		if err := os.Setenv("PATH", filepath.Join(dir, "../bin")+":"+os.Getenv("PATH")); err != nil {
			return fmt.Errorf("look for the driver's programs beside %s: %w", dir, err)
		}
	}
	where := directories(c)
	pluginDir := where.PluginDir
	gpus := gpuflags.Source(c)
	gpus.Profiles = c.String("mig-instances") == inventory.MIGDynamic
	hook, check, limit := c.String("cdi-hook"), c.String("mps-check"), c.String("memory-limit-hook")
	hookOnHost := driver.InstalledProgram(hook, pluginDir)
	if driver.IsOnHost(hook, c.String("host-root")) {
		hook, hookOnHost = "", hook
	}
	err = driver.Run(ctx, driver.Config{
		NodeName:     nodeName,
		PodUID:       where.PodUID,
		Client:       client,
		PluginDir:    pluginDir,
		RegistrarDir: where.RegistrarDir,
		CDIDir:       c.String("cdi-dir"),
		ReadyFile:    c.String("ready-file"),
		Busy:         procs.New().Busy,
		Programs:     []string{hook, check, limit},
		PodResources: podresources.Client{Socket: c.String("pod-resources-socket"),
			Own: cache.ObjectName{Namespace: c.String("pod-namespace"), Name: c.String("pod-name")}},
		Cgroups: filepath.Join(c.String("host-root"), "sys/fs/cgroup"),
		Isolation: isolation.Config{
			CGPU:    c.String("isolation-cgpu"),
			CoreMem: c.String("isolation-core-mem"),
			MPS:     c.String("isolation-mps"),
			Share:   c.String("isolation-share"),
			Kernel: isolation.KernelConfig{Hook: driver.InstalledProgram(limit, pluginDir),
				CgroupRoot: filepath.Clean(c.String("cgroup-root")), Ledger: limitwatch.Ledger(pluginDir)},
			MPSDir:          c.String("mps-dir"),
			MPSOverheadMiB:  c.Int64("mps-memory-overhead"),
			MPSCheck:        driver.InstalledProgram(check, pluginDir),
			CGPUProc:        "/proc/cgpu_km",
			HostHAMiLibrary: c.String("hami-library"),
			HAMiLibrary:     filepath.Join(c.String("host-root"), c.String("hami-library")),
			HAMiDir:         filepath.Join(pluginDir, "hami"),
			KeepLimits:      !limitsOffBy.Anyone(),

			ContainersPerShare: c.Int("containers-per-share"),
		},
		NVIDIA:          c.Bool("nvidia-dra"),
		LimitsOffBy:     limitsOffBy,
		IgnoredXIDs:     ignored,
		UnhealthyEffect: resourceapi.DeviceTaintEffect(c.String("unhealthy-taint-effect")),
		GPUs: inventory.Options{
			SourceOptions: gpus,
			DevRoot:       c.String("dev-root"),
			HookPath:      hookOnHost,
			ReadInterval:  c.Duration("gpu-read-interval"),
		},
		Audit: driver.AuditConfig{
			Client:           audits,
			Interval:         c.Duration("audit-interval"),
			ExemptNamespaces: c.StringSlice("audit-exempt-namespaces"),
			Eviction: audit.Eviction{Kinds: evict, After: c.Duration("audit-evict-after"),
				OverBudgets: c.Bool("audit-evict-over-budgets")},
		},
		RequiredLabel: c.String("required-node-label"),
		WatchPods:     c.String("device-plugin-pods") == flags.WatchPods,

		StatusClient:   statuses,
		Refused:        refused,
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

// Requests per second, and in a burst, that write the status of claims, and by which the audit asks: nothing waits for
// them, and they keep nothing waiting.
const (
	statusQPS   = 5
	statusBurst = 10
	auditQPS    = 20
	auditBurst  = 40
)
