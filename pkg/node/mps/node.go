// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
)

const (
	// nodeName is the directory, in a Dir, of the daemon that serves all of the node's GPUs,
	// and allName the directory in it that is for all of them.
	nodeName = "mps-node"
	allName  = "all"
)

// OfNode is the Dir of the node's one daemon for all of its GPUs: each has the same
// files there as in d, and all have the same daemon, with one pipe directory:
//
//	wanted                    as long as there is to be such a daemon
//	<UUID>/…                  as in a Dir, but for the following
//	all/pipe, daemon, log     those of the daemon
func (d Dir) OfNode() Dir { return Dir(filepath.Join(string(d.root()), nodeName)) }

// Other is where the same GPUs may be served by the other kind of daemon.
func (d Dir) Other() Dir {
	if d.ofNode() {
		return d.root()
	}
	return d.OfNode()
}

// Shared is the directory that plugin, supervisor and control program share: the one that is
// mounted.
func (d Dir) Shared() string { return string(d.root()) }

func (d Dir) ofNode() bool { return filepath.Base(string(d)) == nodeName }

func (d Dir) root() Dir {
	if d.ofNode() {
		return Dir(filepath.Dir(string(d)))
	}
	return d
}

// daemon is the directory of the daemon that serves the GPU.
func (d Dir) daemon(uuid string) string {
	if d.ofNode() {
		return d.gpu(allName)
	}
	return d.gpu(uuid)
}

func (d Dir) wantedFile() string { return filepath.Join(string(d.OfNode()), "wanted") }

// NodeDaemonWanted reports whether there is to be a daemon for all of the node's GPUs.
func (d Dir) NodeDaemonWanted() (bool, error) {
	_, err := os.Lstat(d.wantedFile())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look whether one MPS control daemon is wanted for all GPUs: %w", err)
	}
	return true, nil
}

// WantNodeDaemon is for the plugin: it sets what NodeDaemonWanted returns. A file keeps that,
// because clients outlive the plugin.
func (d Dir) WantNodeDaemon(want bool) error {
	var err error
	if want {
		err = os.MkdirAll(string(d.OfNode()), 0o755)
		if err == nil {
			err = atomicfile.Write(d.wantedFile(), nil, 0o644, false)
		}
	} else {
		err = atomicfile.Remove(d.wantedFile())
	}
	if err != nil {
		return fmt.Errorf("tell gpu-mps-supervisor whether one MPS control daemon is wanted for all GPUs: %w", err)
	}
	return nil
}
