// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/sandbox"
)

// programsDir is where a node finds the cluster's programs.
const programsDir = "/opt/cluster"

// hostDirs are the directories of the machine that a node sees as they are: its
// programs and libraries, its devices and the kernel's view of it.
var hostDirs = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "dev", "sys"}

// ownDirs are the directories a node has to itself.
var ownDirs = []string{
	"boot", "home", "media", "mnt", "opt/cni/bin", "proc", "root", "srv",
	"etc/cdi", "etc/cni/net.d", "etc/kubernetes",
	"run/cdi", "run/nvidia", "run/lock",
	"var/cache", "var/lib/kubelet", containerdDir, "var/log", "var/spool",
}

// hostFiles are the files of the machine's /etc that programs from /usr look at; a
// node has its own copies.
var hostFiles = []string{"passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "protocols", "services"}

// kernelSettings are what kubelet and the pod network write for the whole machine.
// A node writes them to copies of its own, so the machine keeps its settings.
var kernelSettings = []string{
	"/proc/sys/vm/overcommit_memory",
	"/proc/sys/vm/panic_on_oom",
	"/proc/sys/kernel/panic",
	"/proc/sys/kernel/panic_on_oops",
	"/proc/sys/kernel/keys/root_maxkeys",
	"/proc/sys/kernel/keys/root_maxbytes",
	"/proc/sys/net/ipv4/ip_forward",
}

// makeNodeRoot writes the directory that becomes the node's root of the file
// system: a fresh machine with its programs configured and nothing run yet.
func (c *Cluster) makeNodeRoot(s *state, node *nodeState) error {
	root := c.nodeRoot(node.Name)
	for _, dir := range ownDirs {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("make the root of node %s: %w", node.Name, err)
		}
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		path := filepath.Join(root, dir)
		if err := errors.Join(os.MkdirAll(path, 0o755), os.Chmod(path, 0o777|os.ModeSticky)); err != nil {
			return fmt.Errorf("make the root of node %s: %w", node.Name, err)
		}
	}
	for _, component := range nodeComponents {
		if err := os.MkdirAll(filepath.Join(root, programsDir, component), 0o755); err != nil {
			return fmt.Errorf("make the root of node %s: %w", node.Name, err)
		}
	}
	if err := os.Symlink("../run", filepath.Join(root, "var/run")); err != nil {
		return fmt.Errorf("make the root of node %s: %w", node.Name, err)
	}
	if err := mirrorHostDirs(root); err != nil {
		return fmt.Errorf("make the root of node %s: %w", node.Name, err)
	}
	for _, dir := range s.Mounts {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("make the root of node %s: %w", node.Name, err)
		}
	}
	for _, name := range hostFiles {
		content, err := os.ReadFile(filepath.Join("/etc", name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(root, "etc", name), content, 0o644)
		}
		if err != nil {
			return fmt.Errorf("make the root of node %s: %w", node.Name, err)
		}
	}
	view, err := nodeCgroups(s.cgroup(node))
	if err != nil {
		return err
	}
	files, err := nodeFiles(s.Network, node, view.root, snapshotterFor(root))
	if err != nil {
		return err
	}
	configured := map[string]string{}
	for path, content := range files {
		configured[filepath.Join(root, path)] = content
	}
	if err := writeFiles(configured); err != nil {
		return err
	}
	return c.writeNodeCredentials(s, node, filepath.Join(root, "etc/kubernetes"))
}

// mirrorHostDirs makes a place for each of the machine's directories, and links
// where the machine has links.
func mirrorHostDirs(root string) error {
	for _, dir := range hostDirs {
		source, place := filepath.Join("/", dir), filepath.Join(root, dir)
		info, err := os.Lstat(source)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(source)
			if err != nil {
				return err
			}
			if err := os.Symlink(target, place); err != nil {
				return err
			}
		default:
			if err := os.Mkdir(place, 0o755); err != nil {
				return err
			}
		}
	}
	return nil
}

// hostBinds are the machine's directories that a node sees.
func hostBinds() ([]sandbox.Bind, error) {
	var binds []sandbox.Bind
	for _, dir := range hostDirs {
		info, err := os.Lstat(filepath.Join("/", dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look at /%s: %w", dir, err)
		}
		if err == nil && info.IsDir() {
			binds = append(binds, sandbox.Bind{Source: filepath.Join("/", dir), Target: filepath.Join("/", dir)})
		}
	}
	return binds, nil
}

func (c *Cluster) writeNodeCredentials(s *state, node *nodeState, dir string) error {
	ca, err := loadAuthority(c.path("pki"))
	if err != nil {
		return err
	}
	certificate, err := os.ReadFile(c.path("pki", "ca.crt"))
	if err != nil {
		return fmt.Errorf("make credentials of node %s: %w", node.Name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), certificate, 0o644); err != nil {
		return fmt.Errorf("make credentials of node %s: %w", node.Name, err)
	}
	err = ca.issue(filepath.Join(dir, "kubelet"), subject{
		User:      "system:node:" + node.Name,
		Groups:    []string{"system:nodes"},
		Names:     []string{node.Name},
		Addresses: []netip.Addr{s.Network.node(node.Number)},
	})
	if err != nil {
		return err
	}
	return writeKubeconfig(filepath.Join(dir, "kubelet.kubeconfig"), s.Network, c.path("pki", "ca.crt"),
		filepath.Join(dir, "kubelet"))
}

// seldomCollected has Go's garbage collector run a quarter as often in what the cluster
// runs: a dozen nodes and several clusters have two processors, and memory enough.
// containerd hands it down to its shims and to runc.
const seldomCollected = "GOGC=400"

// nodeComponents are what a node runs.
var nodeComponents = []string{"kubernetes", "containerd", "runc"}

// nodeSandbox describes the running node.
func (c *Cluster) nodeSandbox(s *state, node *nodeState) (sandbox.Spec, error) {
	binds, err := hostBinds()
	if err != nil {
		return sandbox.Spec{}, err
	}
	view, err := nodeCgroups(s.cgroup(node))
	if err != nil {
		return sandbox.Spec{}, err
	}
	binds = append(binds, view.binds...)
	for _, dir := range s.Mounts {
		binds = append(binds, sandbox.Bind{Source: dir, Target: dir})
	}
	path := "PATH="
	for _, component := range nodeComponents {
		dir := filepath.Join(programsDir, component)
		binds = append(binds, sandbox.Bind{Source: s.Components[component], Target: dir, ReadOnly: true})
		path += dir + ":"
	}
	path += "/usr/sbin:/usr/bin:/sbin:/bin"
	binds = append(binds, sandbox.Bind{Source: s.Components["cni"], Target: "/opt/cni/bin", ReadOnly: true})
	if state := filepath.Join(c.nodeRoot(node.Name), driverState); node.GPUs != "" {
		// A mount of its own: it is writable where a container sees the rest of the node
		// read-only, as settings of a real driver are.
		binds = append(binds, sandbox.Bind{Source: state, Target: driverState})
		group, err := c.bindUnified(s, node)
		if err != nil {
			return sandbox.Spec{}, err
		}
		binds = append(binds, group...)
	}

	return sandbox.Spec{
		Name:    node.Name,
		Root:    c.nodeRoot(node.Name),
		Binds:   binds,
		Shadows: kernelSettings,
		Services: []sandbox.Service{
			{
				Args: []string{programsDir + "/containerd/containerd", "--config=/etc/containerd/config.toml"},
				Env:  []string{path, seldomCollected},
				Log:  c.log(node.Name + "-containerd"),
			},
			{
				Args:  kubeletArgs(s.Network, node),
				Env:   []string{path, seldomCollected},
				Log:   c.log(node.Name + "-kubelet"),
				After: []string{"unix:" + containerdSocket, "tcp:" + s.Network.api().String() + ":443"},
			},
		},
	}, nil
}

// bindUnified shows a node with a simulated driver its own control group of version 2 below
// driverCgroups, by the path that the kernel tells of the processes in it. On a machine with control
// groups of version 1 that is the tree beside them, which runc and kubelet have their groups in, too.
// A machine may have none.
func (c *Cluster) bindUnified(s *state, node *nodeState) ([]sandbox.Bind, error) {
	mounted, err := mountedHierarchies()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(mounted, func(h hierarchy) bool { return h.unified })
	if i < 0 {
		return nil, nil
	}
	group := s.cgroup(node)
	target := filepath.Join(driverCgroups, group)
	if err := os.MkdirAll(filepath.Join(c.nodeRoot(node.Name), target), 0o755); err != nil {
		return nil, fmt.Errorf("make a place for the control groups of node %s: %w", node.Name, err)
	}
	return []sandbox.Bind{{Source: filepath.Join(mounted[i].path, group), Target: target}}, nil
}

func (c *Cluster) nodeRoot(name string) string { return c.path("nodes", name) }

// snapshotterFor chooses how containerd lays image and container over each other.
// The kernel refuses an overlay over an overlay, as in a container of Docker's.
func snapshotterFor(dir string) string {
	var info unix.Statfs_t
	if err := unix.Statfs(dir, &info); err == nil && info.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native"
	}
	return "overlayfs"
}
