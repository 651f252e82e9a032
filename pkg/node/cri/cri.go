// SPDX-License-Identifier: Apache-2.0

// Package cri asks a node's container runtime, by the Container Runtime Interface (CRI),
// whether it finds CDI specs that are written to a directory. It only asks.
package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// timeout bounds what a runtime is asked: it answers from memory.
const timeout = 5 * time.Second

// Sockets are where container runtimes serve CRI that say in their status where they
// look for CDI specs: containerd, and that of k3s.
func Sockets() []string {
	return []string{"/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock"}
}

// Runtime is what a container runtime says of itself.
type Runtime struct {
	// Name is as nodes have it in status.nodeInfo.containerRuntimeVersion:
	// "containerd://2.1.4".
	Name string
	// CDIDisabled says that the runtime does not look at CDI specs at all.
	CDIDisabled bool
	// SpecDirs are the directories in which it looks for them, nil if it does not say.
	SpecDirs []string
}

// Ask asks the runtime that serves CRI at the socket of this path.
func Ask(ctx context.Context, socket string) (Runtime, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return Runtime{}, fmt.Errorf("connect with the container runtime at %s: %w", socket, err)
	}
	defer connection.Close()
	client := criv1.NewRuntimeServiceClient(connection)
	version, err := client.Version(ctx, &criv1.VersionRequest{})
	if err != nil {
		return Runtime{}, fmt.Errorf("ask the container runtime at %s what it is: %w", socket, err)
	}
	status, err := client.Status(ctx, &criv1.StatusRequest{Verbose: true})
	if err != nil {
		return Runtime{}, fmt.Errorf("ask the container runtime at %s how it is configured: %w", socket, err)
	}
	r, err := read(status.GetInfo())
	if err != nil {
		return Runtime{}, fmt.Errorf("the container runtime at %s says how it is configured: %w", socket, err)
	}
	// containerd says "v2.1.4" of itself, and the kubelet "containerd://2.1.4".
	r.Name = version.GetRuntimeName() + "://" + strings.TrimPrefix(version.GetRuntimeVersion(), "v")
	return r, nil
}

// read reads the part of a runtime's status that is for people. containerd has its
// configuration there; what is not in it is not known.
func read(info map[string]string) (Runtime, error) {
	text, is := info["config"]
	if !is {
		return Runtime{}, nil
	}
	var config struct {
		// containerd 2.4 has no switch any more.
		EnableCDI   *bool    `json:"enableCDI"`
		CDISpecDirs []string `json:"cdiSpecDirs"`
	}
	if err := json.Unmarshal([]byte(text), &config); err != nil {
		return Runtime{}, err
	}
	return Runtime{CDIDisabled: config.EnableCDI != nil && !*config.EnableCDI, SpecDirs: config.CDISpecDirs}, nil
}

// Finds reports why the runtime would find no CDI specs in a directory; nil where it
// does, or where it does not say. same reports whether two paths lead to one directory.
func (r Runtime) Finds(dir string, same func(a, b string) bool) error {
	switch {
	case r.CDIDisabled:
		return fmt.Errorf("the container runtime %s has CDI switched off, so that no container gets a GPU: "+
			"set enable_cdi = true in its configuration and restart it", r.Name)
	case r.SpecDirs == nil || slices.ContainsFunc(r.SpecDirs, func(d string) bool { return d == dir || same(d, dir) }):
		return nil
	}
	return fmt.Errorf("CDI_DIR: the container runtime %s looks for CDI specs in %s, and not in %s, so that no container "+
		"gets a GPU: set CDI_DIR, and the DaemonSet's mount, to one of these, or add %s to cdi_spec_dirs in the runtime's "+
		"configuration",
		r.Name, strings.Join(r.SpecDirs, ", "), dir, dir)
}
