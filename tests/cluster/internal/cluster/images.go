// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/oci"
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
		nodes := s.Nodes
		if name != "" {
			node := s.node(name)
			if node == nil {
				return fmt.Errorf("load images: there is no node %q in %s", name, c.Dir)
			}
			nodes = []*nodeState{node}
		}
		return c.loadImages(ctx, s, nodes, archives)
	})
}

func (c *Cluster) loadImages(ctx context.Context, s *state, nodes []*nodeState, archives []string) error {
	for _, node := range nodes {
		if !node.Init.Alive() {
			c.Progress("node %s does not run: no images loaded", node.Name)
			continue
		}
		for _, archive := range archives {
			loaded, err := c.loadImage(ctx, s, node, archive)
			if err != nil {
				return err
			}
			if loaded {
				c.Progress("node %s: loaded %s", node.Name, filepath.Base(archive))
			}
		}
	}
	return nil
}

func (c *Cluster) loadImage(ctx context.Context, s *state, node *nodeState, archive string) (loaded bool, err error) {
	digest, err := fileDigest(archive)
	if err != nil {
		return false, fmt.Errorf("load image: %w", err)
	}
	if node.Images[filepath.Base(archive)] == digest {
		return false, nil
	}
	ctr := filepath.Join(s.Components["containerd"], "ctr")
	cmd := exec.CommandContext(ctx, ctr, "--address", node.containerdSocket(), "--namespace", "k8s.io", "images", "import",
		archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		return false, &StepError{
			Step: fmt.Sprintf("load image %s on node %s", archive, node.Name),
			Log:  c.log(node.Name + "-containerd"),
			Err:  fmt.Errorf("%w: %s", err, bytes.TrimSpace(out)),
		}
	}
	return true, c.update(s, func() { node.Images[filepath.Base(archive)] = digest })
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
