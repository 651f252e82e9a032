// SPDX-License-Identifier: Apache-2.0

// Package ocihook reads what a container runtime tells its hooks, as the OCI's runtime
// specification has it.
package ocihook

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Container is the container that a hook is run for.
type Container struct {
	ID string `json:"id"`
	// PID is its first process, in the runtime's PID namespace.
	PID    int    `json:"pid"`
	Bundle string `json:"bundle"`
	// Annotations are the runtime's: no pod writes them.
	Annotations map[string]string `json:"annotations"`
	// Hooks are those that the runtime runs after the container was created and before its
	// program starts (createRuntime).
	Hooks []Hook `json:"-"`
}

// Pod names the container's pod, as containerd or CRI-O have it; empty where neither has.
func (c Container) Pod() (namespace, name, uid string) {
	named := func(containerd, crio string) string { return cmp.Or(c.Annotations[containerd], c.Annotations[crio]) }
	return named("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"),
		named("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"),
		named("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid")
}

// Hook is a hook of a container.
type Hook struct {
	Args []string `json:"args"`
	Env  []string `json:"env"`
}

// Read reads the container's state, and of its configuration the hooks.
func Read(state io.Reader) (Container, error) {
	var c Container
	if err := json.NewDecoder(state).Decode(&c); err != nil {
		return c, fmt.Errorf("read the container's state from the standard input: %w", err)
	}
	content, err := os.ReadFile(filepath.Join(c.Bundle, "config.json"))
	if err != nil {
		return c, fmt.Errorf("read the container's configuration: %w", err)
	}
	var config struct {
		Hooks struct {
			CreateRuntime []Hook `json:"createRuntime"`
		} `json:"hooks"`
	}
	if err := json.Unmarshal(content, &config); err != nil {
		return c, fmt.Errorf("read the container's configuration from bundle %s: %w", c.Bundle, err)
	}
	c.Hooks = config.Hooks.CreateRuntime
	return c, nil
}
