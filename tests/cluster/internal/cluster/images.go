// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/oci"
	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/proc"
)

// writeImages packs the images every node has.
func (c *Cluster) writeImages(s *state) error {
	for _, image := range []struct {
		name, program string
		// What else the program is called in the image.
		names []string
	}{
		{name: pauseImage, program: "pause"},
		{name: probeImage, program: "gpu-probe", names: []string{"python"}},
	} {
		var files []oci.File
		for _, name := range append([]string{image.program}, image.names...) {
			files = append(files, oci.File{Path: "/" + name, Source: filepath.Join(s.Components["images"], image.program),
				Mode: 0o755})
		}
		archive := oci.Image{Name: image.name, Entrypoint: []string{"/" + image.program}, Env: []string{"PATH=/"},
			Files: files}
		if err := oci.Write(c.path("images", image.program+".tar"), archive); err != nil {
			return err
		}
	}
	return nil
}

// LoadImages loads archives into the containerd of a node, or of every running node
// where name is empty. What a node has already is not loaded again.
func (c *Cluster) LoadImages(ctx context.Context, archives []string, name string) error {
	if err := checkRoot(); err != nil {
		return err
	}
	return c.change(ctx, func(ctx context.Context, s *state) error {
		load := func(node *nodeState) error { return c.loadImages(ctx, s, []*nodeState{node}, archives) }
		if name != "" {
			return c.onNode(s, name, load)
		}
		for _, name := range s.nodeNames() {
			// It is no error when a node is removed meanwhile.
			if err := c.onNode(s, name, load); err != nil && !errors.Is(err, errNoNode) {
				return err
			}
		}
		return nil
	})
}

// loadImages loads archives into nodes, as many at a time as there are processors.
func (c *Cluster) loadImages(ctx context.Context, s *state, nodes []*nodeState, archives []string) error {
	digests, err := fileDigests(archives)
	if err != nil {
		return fmt.Errorf("load images: %w", err)
	}
	var group sync.WaitGroup
	errs, turns := make([]error, len(nodes)), make(chan struct{}, runtime.NumCPU())
	for i, node := range nodes {
		if !node.Init.Alive() {
			c.Progress("node %s does not run: no images loaded", node.Name)
			continue
		}
		group.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			for j, archive := range archives {
				errs[i] = errors.Join(errs[i], c.loadImage(ctx, s, node, archive, digests[j]))
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

func (c *Cluster) loadImage(ctx context.Context, s *state, node *nodeState, archive, digest string) error {
	if node.Images[filepath.Base(archive)] == digest {
		return nil
	}
	if err := importImage(ctx, s, node.Init, archive); err != nil {
		return &StepError{
			Step: fmt.Sprintf("load image %s on node %s", archive, node.Name),
			Log:  c.log(node.Name + "-containerd"),
			Err:  err,
		}
	}
	c.Progress("node %s: loaded %s", node.Name, filepath.Base(archive))
	return c.update(s, func() { node.Images[filepath.Base(archive)] = digest })
}

// importImage loads an archive into the containerd of a sandbox.
func importImage(ctx context.Context, s *state, first proc.Process, archive string) error {
	ctr := filepath.Join(s.Components["containerd"], "ctr")
	cmd := exec.CommandContext(ctx, ctr, "--address", socketIn(first), "--namespace", "k8s.io", "images", "import",
		archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// fileDigests are the digests of files, in their order.
func fileDigests(paths []string) ([]string, error) {
	digests := make([]string, 0, len(paths))
	for _, path := range paths {
		digest, err := fileDigest(path)
		if err != nil {
			return nil, err
		}
		digests = append(digests, digest)
	}
	return digests, nil
}

func fileDigest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
