// SPDX-License-Identifier: Apache-2.0

// Command containerd is containerd and its client ctr in one executable. The name it is
// started by (a symbolic link) chooses which one it is.
//
// Most of what the two link is the same: it is there once, which is what the archive of
// `make gpu-bundle` has room for. The shim is a program of its own, because each pod has a
// process of it.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	containerd "github.com/containerd/containerd/v2/cmd/containerd/command"
	ctr "github.com/containerd/containerd/v2/cmd/ctr/app"
)

func main() {
	run := containerd.App().Run
	if filepath.Base(os.Args[0]) == "ctr" {
		run = ctr.New().Run
	}
	if err := run(context.Background(), os.Args); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[0], err)
		os.Exit(1)
	}
}
