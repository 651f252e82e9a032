// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/urfave/cli/v3"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/gpushare/dra-driver-gpushare/cmd/gpu-compat-controller/flags"
	"github.com/gpushare/dra-driver-gpushare/internal/procs"
	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/internal/program/settings"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/defragment"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/metrics"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/probes"
)

// Requests to the API server per second, and in a burst: enough to label a large
// cluster's nodes within a minute.
const (
	apiQPS   = 50
	apiBurst = 100
)

// leaseOverdue is for how long the process may lead after its lease has ended: by then
// it should have ended itself.
const leaseOverdue = 20 * time.Second

// gcPercent takes the place of Go's 100, unless the environment has GOGC: half as much of the processor time goes into
// collecting garbage, for a heap that grows to three times what is in use instead of twice.
const gcPercent = 200

// scrapesAtOnce is how many scrapes are answered side by side.
const scrapesAtOnce = 4

func command() *cli.Command {
	return &cli.Command{
		Name: v1alpha1.ControllerName,
		Usage: "label nodes by their NVIDIA GPUs, keep a DeviceClass for each GPU model, make the claim templates of " +
			"legacy pods, tell pods why they wait, have kubelets retry soon what they could not prepare, get pods going again " +
			"whose GPU others hold, and show tools made for ACK what they look for",
		Flags:    flags.Flags(),
		Commands: []*cli.Command{classesCommand()},
		Action:   run,
	}
}

func run(ctx context.Context, c *cli.Command) error {
	if c.Args().Present() {
		return fmt.Errorf("unexpected argument %q: there are only flags and the command classes", c.Args().First())
	}
	if err := program.SetUpLogging(ctx, c.Int("v")); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	refused := make(chan error, 1)
	ctx, err := settings.Watch(ctx, c.String("settings-dir"), settings.Poll, os.Getenv, flags.Flags, refused)
	if err != nil {
		return err
	}
	identity, err := identity(c.String("identity"))
	if err != nil {
		return err
	}
	registry := metrics.New(v1alpha1.ControllerName)
	metrics.ClientGo(registry)
	metrics.WorkQueues(registry)
	config, err := clientConfig(c)
	if err != nil {
		return err
	}
	// What may be much at once, and what must not wait for it, has a client of its own: annotations of pods, what has
	// kubelets sync pods, Events, the claims of pods that wait, nominations, which the scheduler does not wait for, and
	// the lease, whose renewal must not be late.
	var client, lease, events, waiting, gangs, nominations kubernetes.Interface
	for _, c := range []struct {
		is    *kubernetes.Interface
		qps   float32
		burst int
	}{
		{&client, apiQPS, apiBurst}, {&lease, 5, 10}, {&events, 20, 50}, {&waiting, 20, 40}, {&gangs, 20, 40},
		{&nominations, 200, 400},
	} {
		if *c.is, err = program.Client(config, c.qps, c.burst); err != nil {
			return err
		}
	}
	var meta, annotations, syncs, nominate metadata.Interface
	for _, c := range []struct {
		is    *metadata.Interface
		qps   float32
		burst int
	}{{&meta, apiQPS, apiBurst}, {&annotations, 20, 20}, {&syncs, 50, 100}, {&nominate, 200, 400}} {
		if *c.is, err = program.Metadata(config, c.qps, c.burst); err != nil {
			return err
		}
	}
	go tellRefused(ctx, events, c.String("namespace"), identity, refused)
	checks := &probes.Checks{WhenNone: "this replica does not lead"}
	watchdog := leaderelection.NewLeaderHealthzAdaptor(leaseOverdue)
	if address := c.String("health-address"); !probes.Off(address) {
		if err := probes.Serve(ctx, address, probes.Handler(checks, watchdog.Check)); err != nil {
			return err
		}
	}
	counts := metrics.NewController(registry, checks.Each)
	if address := c.String("metrics-address"); !probes.Off(address) {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", metrics.Handler(registry))
		// Nothing of the controller's work depends on it.
		go probes.ServeWhenFree(ctx, address, probes.AtOnce(scrapesAtOnce, mux))
	}
	err = manager.Lead(ctx, manager.LeaderOptions{Client: lease, Namespace: c.String("namespace"),
		Lease: v1alpha1.ControllerName, Identity: identity, LeaseDuration: c.Duration("leader-elect-lease-duration"),
		Watchdog: watchdog},
		func(ctx context.Context) error {
			return controller.Run(ctx, controller.Options{
				Client: client, Metadata: meta, Annotations: annotations, Events: events, Syncs: syncs, Waiting: waiting,
				Gangs: gangs, Nominations: nominations, Nominate: nominate,
				NodeLabels: c.Bool("node-labels"), NodeFeatures: c.Bool("node-features"),
				DeviceClasses: c.Bool("device-classes"), ClassGrace: c.Duration("class-grace"),
				TemplateGrace: c.Duration("template-grace"),
				LegacyPolicy:  c.String("legacy-policy"), PodAnnotations: c.Bool("pod-annotations"),
				PodAnnotationsV1: c.Bool("pod-annotations-v1"),
				PodSyncs:         c.Bool("pod-syncs"), Namespace: c.String("namespace"),
				Preemption: c.Bool("preemption"), BestNode: c.Bool("best-node"),
				NodePlacement: score.Setting(c.String("node-placement")), Checks: checks,
				Defragment: defragment.Setting(c.String("defragment")), DefragmentMoves: c.Int("defragment-moves"),
				SyncDeadline: c.Duration("sync-deadline"), Metrics: counts, Busy: procs.New().Busy,
			})
		})
	if errors.Is(context.Cause(ctx), settings.ErrChanged) {
		// The kubelet starts the container again, with the new settings.
		return nil
	}
	return err
}

func identity(told string) (string, error) {
	if told != "" {
		return told, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find a name for this replica, or give --identity: %w", err)
	}
	return host, nil
}

func clientConfig(c *cli.Command) (*rest.Config, error) {
	config, err := program.ClientConfig(c.String("kubeconfig"), v1alpha1.ControllerName)
	if err != nil {
		return nil, err
	}
	// As Kubernetes' own controllers have it: each message of a watch would be packed, and unpacked, by itself.
	config.DisableCompression = true
	return config, nil
}
