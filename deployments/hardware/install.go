// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/kube"
)

// install applies the manifests as a user does, after the settings that say where the
// machine has its NVIDIA driver.
func (b *bundle) install(ctx context.Context, k kube.Kubectl) error {
	if err := b.configure(ctx, k, nil); err != nil {
		return err
	}
	if _, err := k.Run(ctx, "create", "namespace", namespace); err != nil {
		return err
	}
	if err := b.deploy(ctx, k); err != nil {
		return err
	}
	return kube.Until(ctx, setUpLimit, "the ServiceAccount of namespace "+namespace, func(ctx context.Context) error {
		_, err := k.In(namespace).Run(ctx, "get", "serviceaccount", "default")
		return err
	})
}

// configure writes the driver's settings, these among them.
func (b *bundle) configure(ctx context.Context, k kube.Kubectl, more map[string]string) error {
	settings := b.driver.Settings()
	if b.simulated != "" {
		settings["SYSFS_ROOT"] = "/host" + b.sysfs()
	}
	maps.Copy(settings, more)
	configured, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "gpu-kubelet-plugin",
			"namespace": "kube-system"}, "data": settings,
	})
	if err != nil {
		return err
	}
	return k.Apply(ctx, string(configured))
}

// deploy applies the manifests, and waits until the node's part of the driver is there.
func (b *bundle) deploy(ctx context.Context, k kube.Kubectl) error {
	if _, err := k.Run(ctx, "apply", "-f", b.path("driver.yaml")); err != nil {
		return err
	}
	system := k.In("kube-system")
	if _, err := system.Run(ctx, "rollout", "status", "daemonset/gpu-kubelet-plugin", "--timeout=110s"); err != nil {
		return err
	}
	_, err := system.Run(ctx, "wait", "daemonset/gpu-mps-supervisor",
		"--for=jsonpath={.status.numberAvailable}=1", "--timeout=110s")
	return err
}

// withdraw takes the node's part of the driver away: it has the GPUs open.
func (b *bundle) withdraw(ctx context.Context, k kube.Kubectl) error {
	_, err := k.In("kube-system").Run(ctx, "delete", "daemonset/gpu-kubelet-plugin", "daemonset/gpu-mps-supervisor",
		"--cascade=foreground", "--timeout=60s")
	return err
}
