// SPDX-License-Identifier: Apache-2.0

// Package ocihook reads what a container runtime tells its hooks, as the OCI's runtime
// specification has it.
package ocihook

import (
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
	// Hooks are those that the runtime runs after the container was created and before its
	// program starts (createRuntime).
	Hooks []Hook `json:"-"`
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
