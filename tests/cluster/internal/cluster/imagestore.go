// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/proc"
	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/sandbox"
)

// The image store is what a containerd has on disk into which images were loaded, and which
// runs no more. A node begins with a copy: a dozen of them need not load the same images each.
const (
	// containerdDir is the store in the root of a node, and in that of the store's own sandbox.
	containerdDir = "var/lib/containerd"
	// storedImages is a file in the latter, of the store's images by file name. It is there
	// when they are.
	storedImages = "images.json"
	// ownID is the part of the store that tells one containerd from another.
	ownID = "io.containerd.grpc.v1.introspection"
)

func (c *Cluster) storeRoot() string { return c.path("image-store") }

// ensureImageStore makes the image store one of these archives, and gives their digests by
// file name.
func (c *Cluster) ensureImageStore(ctx context.Context, s *state, archives []string) (map[string]string, error) {
	digests, err := fileDigests(archives)
	if err != nil {
		return nil, fmt.Errorf("load images: %w", err)
	}
	wanted := map[string]string{}
	for i, archive := range archives {
		wanted[filepath.Base(archive)] = digests[i]
	}
	record := filepath.Join(c.storeRoot(), storedImages)
	content, err := os.ReadFile(record)
	if err == nil {
		var have map[string]string
		if err = json.Unmarshal(content, &have); err == nil && maps.Equal(have, wanted) {
			return wanted, nil
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read what images are stored in %s: %w", record, err)
	}
	if err := c.makeImageStore(ctx, s, archives); err != nil {
		return nil, err
	}
	if content, err = json.Marshal(wanted); err != nil {
		return nil, fmt.Errorf("write what images are stored: %w", err)
	}
	return wanted, writeFiles(map[string]string{record: string(content)})
}

// makeImageStore runs a containerd until it has the images.
func (c *Cluster) makeImageStore(ctx context.Context, s *state, archives []string) (err error) {
	root := c.storeRoot()
	if err := errors.Join(s.Store.Kill(ctx), removeAll(root)); err != nil {
		return fmt.Errorf("make the image store again: %w", err)
	}
	programs := filepath.Join(programsDir, "containerd")
	for _, dir := range []string{"etc", "proc", "run", "tmp", containerdDir, programs} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("make the image store: %w", err)
		}
	}
	if err := mirrorHostDirs(root); err != nil {
		return fmt.Errorf("make the image store: %w", err)
	}
	config := "/etc/containerd.toml"
	if err := writeFiles(map[string]string{filepath.Join(root, config): storeConfig()}); err != nil {
		return err
	}
	binds, err := hostBinds()
	if err != nil {
		return err
	}
	log := c.log("image-store")
	spec := sandbox.Spec{
		Name:  "image-store",
		Root:  root,
		Binds: append(binds, sandbox.Bind{Source: s.Components["containerd"], Target: programs, ReadOnly: true}),
		Services: []sandbox.Service{{
			Args: []string{programs + "/containerd", "--config=" + config},
			Env:  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", seldomCollected},
			Log:  log,
		}},
	}
	err = sandbox.Start(ctx, spec, log, func(first proc.Process) error {
		return c.update(s, func() { s.Store = first })
	})
	if err != nil {
		return &StepError{Step: "start the containerd of the image store", Log: log, Err: err}
	}
	// What it has written is whole whenever it is killed, as after a loss of power.
	defer func() { err = errors.Join(err, s.Store.Kill(ctx)) }()
	if err := waitContainerd(ctx, s.Store); err != nil {
		return &StepError{Step: "wait for the containerd of the image store", Log: log, Err: err}
	}
	for _, archive := range archives {
		if err := importImage(ctx, s, s.Store, archive); err != nil {
			return &StepError{Step: "load image " + archive, Log: log, Err: err}
		}
	}
	return nil
}

// storeConfig is of a containerd that runs no containers.
func storeConfig() string {
	return lines(
		`version = 3`,
		`root = `+quote("/"+containerdDir),
		`state = "/run/containerd"`,
		`disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]`,
		`[grpc]`,
		`  address = `+quote(containerdSocket),
	)
}

// copyImageStore gives a node a copy of the image store. Of what containerd never writes to
// again, the layers and what is in them, the node has the same files.
func (c *Cluster) copyImageStore(node *nodeState) error {
	source, target := filepath.Join(c.storeRoot(), containerdDir), filepath.Join(c.nodeRoot(node.Name), containerdDir)
	err := filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		place := filepath.Join(target, relative)
		switch {
		case entry.IsDir() && entry.Name() == ownID:
			return filepath.SkipDir
		case entry.IsDir():
			return copyDir(path, place, entry)
		case neverWritten(relative):
			return os.Link(path, place)
		case entry.Type().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(place, content, 0o600)
		}
		return fmt.Errorf("%s is %s: want a file or a directory", path, entry.Type())
	})
	if err != nil {
		return fmt.Errorf("give node %s its images: %w", node.Name, err)
	}
	return nil
}

// neverWritten reports whether a file of containerd's is a layer, or in one.
func neverWritten(path string) bool {
	plugin, rest, _ := strings.Cut(path, string(filepath.Separator))
	kind, _, inside := strings.Cut(rest, string(filepath.Separator))
	return inside && (kind == "blobs" && plugin == "io.containerd.content.v1.content" ||
		kind == "snapshots" && strings.HasPrefix(plugin, "io.containerd.snapshotter.v1."))
}

// copyDir makes a directory as another one is: one of a layer is seen in containers.
func copyDir(source, target string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("look for the owner of %s: the system does not say", source)
	}
	err = errors.Join(os.MkdirAll(target, 0o755), os.Chown(target, int(owner.Uid), int(owner.Gid)),
		// After Chown, which takes away bits of the mode.
		unix.Chmod(target, owner.Mode&0o7777))
	if err != nil {
		return err
	}
	return copyAttribute(source, target, "trusted.overlay.opaque")
}

// copyAttribute gives a file an extended attribute that another one may have.
func copyAttribute(source, target, name string) error {
	value := make([]byte, 64)
	size, err := unix.Lgetxattr(source, name, value)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err == nil {
		err = unix.Lsetxattr(target, name, value[:size], 0)
	}
	if err != nil {
		return fmt.Errorf("copy attribute %s of %s: %w", name, source, err)
	}
	return nil
}
