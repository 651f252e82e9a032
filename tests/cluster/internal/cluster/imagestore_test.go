// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
	"testing"
)

// A node has the layers of the store and what is in them, and a database of its own.
func TestCopyImageStore(t *testing.T) {
	const (
		blob     = "io.containerd.content.v1.content/blobs/sha256/abc"
		layer    = "io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/tmp"
		program  = layer + "/program"
		link     = layer + "/link"
		layers   = "io.containerd.snapshotter.v1.overlayfs/metadata.db"
		database = "io.containerd.metadata.v1.bolt/meta.db"
		id       = ownID + "/uuid"
	)
	c, node := &Cluster{Dir: t.TempDir()}, &nodeState{Node: Node{Name: "n"}}
	store, copied := filepath.Join(c.storeRoot(), containerdDir), filepath.Join(c.nodeRoot("n"), containerdDir)
	for _, name := range []string{blob, program, layers, database, id} {
		if err := writeFiles(map[string]string{filepath.Join(store, name): name}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("program", filepath.Join(store, link)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(store, layer), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}

	if err := c.copyImageStore(node); err != nil {
		t.Fatal(err)
	}
	for name, same := range map[string]bool{blob: true, program: true, link: true, layers: false, database: false} {
		ours, err := os.Stat(filepath.Join(store, name))
		if err != nil {
			t.Fatal(err)
		}
		nodes, err := os.Stat(filepath.Join(copied, name))
		if err != nil {
			t.Fatal(err)
		}
		if os.SameFile(ours, nodes) != same {
			t.Errorf("%s: the node's is the store's: %t, want %t", name, !same, same)
		}
	}
	if target, err := os.Readlink(filepath.Join(copied, link)); err != nil || target != "program" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	if info, err := os.Stat(filepath.Join(copied, layer)); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("the layer's directory is %v, %v", info, err)
	}
	if _, err := os.Stat(filepath.Join(copied, id)); err == nil {
		t.Error("the node's containerd has the ID of the store's")
	}
}
