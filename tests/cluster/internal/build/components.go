// SPDX-License-Identifier: Apache-2.0

package build

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Newest is the Kubernetes of a cluster for which none is named.
const Newest = "1.37"

// kubernetes are the versions of Kubernetes that can be built, and the directory of each under
// components/.
func kubernetes() map[string]string {
	return map[string]string{Newest: "kubernetes", "1.36": "kubernetes-1.36"}
}

// Component is one set of programs built together from a Go module of its own
// under components/, so that the versions one program was tested with do not
// move those of another.
type Component struct {
	// Name is the prefix in the cache, and the directory under components/ unless Dir is.
	Name string
	// Dir is the directory under components/ of a component that there are several versions of.
	Dir string
	// Packages are the main packages to build, as `go build` takes them.
	Packages []string
	// Links maps further names to programs that choose what they are by the
	// name they are started with.
	Links map[string]string
	// Module is the module whose version the programs report; empty where
	// they report none.
	Module string
	// Variables are the -X settings for a version of Module.
	Variables func(version string) map[string]string
	// Tags are build tags besides those that all have, by which a program needs no C library.
	Tags []string
	// Cgo says that the programs need a C compiler. They are linked
	// statically all the same, so that what is in the cache runs on a machine
	// that lacks the libraries.
	Cgo bool
	// Needs is what has to be installed before the component can be built.
	Needs []Need
	// Note is shown while it is built, for components that take long.
	Note string
}

// Need is something from the operating system that a build uses.
type Need struct {
	// Check is a command that succeeds where the need is met.
	Check []string
	// Package is the Debian package that meets it.
	Package string
}

// directory is that of its sources, under components/.
func (c Component) directory() string { return cmp.Or(c.Dir, c.Name) }

// Components are what a cluster of that Kubernetes is made of, such as 1.36, or the newest for
// "". They are in the order they are built: the long one first, because its packages are used
// by none of the others and a failure in it should show early.
func Components(version string) ([]Component, error) {
	dir, ok := kubernetes()[cmp.Or(version, Newest)]
	if !ok {
		return nil, fmt.Errorf("there is no Kubernetes %q to build: name one of %s", version,
			strings.Join(slices.Sorted(maps.Keys(kubernetes())), ", "))
	}
	return []Component{
		{
			Name:     "kubernetes",
			Dir:      dir,
			Packages: []string{"."},
			Links: map[string]string{
				"etcd":                    "kubernetes",
				"kube-apiserver":          "kubernetes",
				"kube-controller-manager": "kubernetes",
				"kube-scheduler":          "kubernetes",
				"kubelet":                 "kubernetes",
				"kubectl":                 "kubernetes",
			},
			Module:    "k8s.io/kubernetes",
			Variables: kubernetesVariables,
			Note:      "etcd, control plane, kubelet and kubectl: 5 to 10 minutes on 2 cores the first time",
		},
		{
			Name: "containerd",
			Packages: []string{
				".",
				"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
			},
			Links:  map[string]string{"ctr": "containerd"},
			Module: "github.com/containerd/containerd/v2",
			Variables: func(version string) map[string]string {
				return map[string]string{"github.com/containerd/containerd/v2/version.Version": version}
			},
			Note: "about a minute",
		},
		{
			Name:     "runc",
			Packages: []string{"github.com/opencontainers/runc"},
			Module:   "github.com/opencontainers/runc",
			Variables: func(version string) map[string]string {
				return map[string]string{"main.version": strings.TrimPrefix(version, "v")}
			},
			// Without seccomp every pod fails: containerd gives each sandbox
			// the runtime's default profile.
			Tags: []string{"seccomp"},
			Cgo:  true,
			Needs: []Need{
				{Check: []string{"gcc", "--version"}, Package: "gcc"},
				{Check: []string{"test", "-e", "/usr/include/stdlib.h"}, Package: "libc6-dev"},
				{Check: []string{"pkg-config", "--version"}, Package: "pkg-config"},
				{Check: []string{"pkg-config", "--exists", "libseccomp"}, Package: "libseccomp-dev"},
			},
		},
		{
			Name: "cni",
			Packages: []string{
				"github.com/containernetworking/plugins/plugins/main/ptp",
				"github.com/containernetworking/plugins/plugins/ipam/host-local",
			},
		},
		{
			Name:     "images",
			Packages: []string{"./pause", "./gpu-probe"},
		},
	}, nil
}

// kubernetesVariables sets the version in both places Kubernetes keeps it;
// without them it calls itself v0.0.0-master.
func kubernetesVariables(version string) map[string]string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	variables := map[string]string{}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		variables[pkg+".gitVersion"] = version
		variables[pkg+".gitMajor"] = major
		variables[pkg+".gitMinor"] = minor
		variables[pkg+".gitTreeState"] = "clean"
	}
	return variables
}
