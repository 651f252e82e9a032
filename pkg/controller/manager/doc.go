// SPDX-License-Identifier: Apache-2.0

// Package manager is what the controllers of gpu-compat-controller have in common: the
// queue whose keys a controller reconciles, fair between namespaces; the election of the
// replica that works; and the health checks, by which the kubelet's probes, and people,
// learn what a controller waits for.
package manager
