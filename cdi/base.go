// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/internal/driverlib"
	"github.com/gpushare/dra-driver-gpushare/internal/toolkitlog"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// controlNodes are the device nodes without which no CUDA program starts,
// whichever GPU it uses.
var controlNodes = []string{"/dev/nvidiactl", "/dev/nvidia-uvm"}

// disabledHooks are the hooks of the toolkit that containers do not get.
//
// Of the others, create-symlinks and update-ldcache make the driver's
// libraries findable, enable-cuda-compat does nothing without compatibility
// libraries in the image, disable-device-node-modification nothing without the
// kernel module, and update-application-profile writes one small file. All
// work on an image that holds nothing but a static program. update-ldcache
// needs the directory /etc, which every pod has, and ldconfig on the host.
var disabledHooks = []nvcdi.HookName{
	// It sets NVML memory limits on the container's cgroup as the container's
	// own environment asks: isolation is the driver's to decide, and where
	// NVML does not know such limits the container would not start.
	"apply-cuda-memory-limits",
}

// BaseOptions say where the NVIDIA driver is. The plugin and the container
// runtime see the node's file system under different paths: a plain field is
// as this process sees it, a Host field as the host sees it.
type BaseOptions struct {
	// DriverRoot is the directory that the driver is installed in, e.g.
	// "/host/run/nvidia/driver", "/run/nvidia/driver" on the host. Both
	// default to "/".
	DriverRoot, HostDriverRoot string
	// DevRoot is the directory that has the device nodes below "dev". It
	// defaults to DriverRoot, HostDevRoot to HostDriverRoot.
	DevRoot, HostDevRoot string
	// LibrarySearchPaths are further directories, as seen from DriverRoot, with the driver's
	// libraries.
	LibrarySearchPaths []string
	// HostHookPath is the program gpu-cdi-hook, or NVIDIA's nvidia-cdi-hook. If it is empty, no hooks
	// are used: then a container finds the driver's libraries only under their
	// versioned names, which is enough for no real CUDA program.
	HostHookPath string
	// ProcFS is the procfs in which the kernel module shows the capabilities of MIG instances, as this process sees it.
	// It defaults to "/proc".
	ProcFS string
}

// Base are the CDI edits that follow from the GPUs and the driver alone. All
// work is done when it is made, but for the capabilities of MIG instances; afterwards
// it only answers, and may be used concurrently. It holds for the driver version it was made with: after an
// upgrade, make another.
type Base struct {
	common  specs.ContainerEdits
	gpus    map[string]gpuBase
	devRoot string
	// hostDevRoot is only for messages.
	hostDevRoot string
	// instances are those of GPUs in MIG mode, by the UUIDs of their MIG devices.
	instances map[string]instanceBase
	procFS    string
}

// gpuBase is what one GPU has, or why it has nothing.
type gpuBase struct {
	minor int
	edits specs.ContainerEdits
	err   error
}

// NewBase asks nvcdi, which reads the driver root, for the edits of the machine's
// GPUs. Neither starts a process or asks the driver: of the GPUs it knows what
// is in machine.
//
// Only what concerns all GPUs is an error here, above all a driver root
// without the driver. A GPU without edits is an error of GPU and Check.
// A device node that does not exist yet is no error either but of Check, so
// that the GPU is usable as soon as the node is there.
//
// Its time is that of the file system that the driver root is on.
func NewBase(ctx context.Context, machine *gpu.Machine, opts BaseOptions) (base *Base, err error) {
	// A newer nvcdi may ask for what toldLibrary does not tell. It is not worth
	// the claims that this process serves.
	defer func() {
		if r := recover(); r != nil {
			base, err = nil, fmt.Errorf("making the base CDI edits: nvcdi panicked, which is a defect of this driver: %v", r)
		}
	}()
	return newBase(ctx, machine, opts.withDefaults())
}

func (o BaseOptions) withDefaults() BaseOptions {
	o.DriverRoot = filepath.Clean(cmp.Or(o.DriverRoot, "/"))
	o.HostDriverRoot = filepath.Clean(cmp.Or(o.HostDriverRoot, "/"))
	o.DevRoot = filepath.Clean(cmp.Or(o.DevRoot, o.DriverRoot))
	o.HostDevRoot = filepath.Clean(cmp.Or(o.HostDevRoot, o.HostDriverRoot))
	o.ProcFS = cmp.Or(o.ProcFS, "/proc")
	return o
}

func newBase(ctx context.Context, machine *gpu.Machine, opts BaseOptions) (*Base, error) {
	lib, err := opts.nvcdi(ctx, machine)
	if err != nil {
		return nil, fmt.Errorf("preparing nvcdi: %w", err)
	}
	common, err := lib.GetCommonEdits()
	if err != nil {
		return nil, fmt.Errorf("finding the driver's files in %s (%s on the host): %w: "+
			"point the driver root, or the library search paths, at the driver", opts.DriverRoot, opts.HostDriverRoot, err)
	}
	opts.addPrograms(common.ContainerEdits)
	b := &Base{gpus: make(map[string]gpuBase, len(machine.GPUs)), devRoot: opts.DevRoot, hostDevRoot: opts.HostDevRoot}
	if b.common, err = opts.finish(*common.ContainerEdits, controlNodes); err != nil {
		return nil, err
	}
	for _, g := range machine.GPUs {
		c := gpuBase{minor: g.Minor}
		c.edits, c.err = opts.gpuEdits(lib, g)
		b.gpus[g.UUID] = c
	}
	b.addInstances(machine, opts)
	return b, nil
}

func (o BaseOptions) nvcdi(ctx context.Context, machine *gpu.Machine) (nvcdi.Interface, error) {
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, err
	}
	disabled := disabledHooks
	if o.HostHookPath == "" {
		disabled = []nvcdi.HookName{nvcdi.AllHooks}
	}
	return nvcdi.New(
		nvcdi.WithLogger(toolkitlog.New(klog.FromContext(ctx))),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNvmlLib(toldLibrary{machine: machine}),
		nvcdi.WithDriverRoot(o.DriverRoot),
		nvcdi.WithDevRoot(o.DevRoot),
		nvcdi.WithLibrarySearchPaths(driverlib.Dirs(o.DriverRoot, o.LibrarySearchPaths)),
		nvcdi.WithNVIDIACDIHookPath(o.HostHookPath),
		nvcdi.WithLdconfigPath(o.ldconfig()),
		nvcdi.WithDisabledHooks(disabled...),
		nvcdi.WithDeviceNamers(namer),
		nvcdi.WithFeatureFlags(
			// A second source for the same facts, loaded from the driver root
			// past the NVML that was given.
			nvcdi.FeatureDisableNvsandboxUtils,
			// It mounts the node's MPS pipes into every container, which would
			// let them all past their isolation, and sockets of daemons, whose
			// restart would leave the mounts dangling.
			nvcdi.FeatureDisableIPCDiscoverer,
		),
	)
}

func (o BaseOptions) gpuEdits(lib nvcdi.Interface, g gpu.GPU) (specs.ContainerEdits, error) {
	devices, err := lib.GetDeviceSpecsByID(g.UUID)
	if err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("making the CDI edits of GPU %d (%s): %w", g.Index, g.UUID, err)
	}
	if len(devices) != 1 {
		return specs.ContainerEdits{}, fmt.Errorf("making the CDI edits of GPU %d (%s): nvcdi made %d devices of it",
			g.Index, g.UUID, len(devices))
	}
	return o.finish(devices[0].ContainerEdits, []string{gpuNode(g.Minor)})
}

func gpuNode(minor int) string { return fmt.Sprintf("/dev/nvidia%d", minor) }

// finish makes edits as nvcdi found them in this process' view into edits that
// the host's container runtime can use.
func (o BaseOptions) finish(edits specs.ContainerEdits, nodes []string) (specs.ContainerEdits, error) {
	// nvcdi leaves out device nodes that do not exist at the moment.
	for _, path := range nodes {
		if !slices.ContainsFunc(edits.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == path }) {
			edits.DeviceNodes = append(edits.DeviceNodes,
				&specs.DeviceNode{Path: path, HostPath: filepath.Join(o.DevRoot, path)})
		}
	}
	for _, n := range edits.DeviceNodes {
		// The container runtime reads the numbers when a container starts.
		// nvidia-uvm gets another one each time its module is loaded.
		n.Type, n.Major, n.Minor = "", 0, 0
	}
	// Apart, since one root may lie within the other.
	devices := &specs.Spec{ContainerEdits: specs.ContainerEdits{DeviceNodes: edits.DeviceNodes}}
	edits.DeviceNodes = nil
	files := &specs.Spec{ContainerEdits: edits}
	err := errors.Join(
		transform.Merge(
			root.New(root.WithRelativeTo("host"), root.WithRoot(o.DevRoot), root.WithTargetRoot(o.HostDevRoot)),
			transform.NewSimplifier(),
		).Transform(devices),
		transform.Merge(
			root.New(root.WithRelativeTo("host"), root.WithRoot(o.DriverRoot), root.WithTargetRoot(o.HostDriverRoot)),
			// nvcdi leaves this process' view in the links that it makes for
			// DRM device nodes.
			root.New(root.WithRelativeTo("container"), root.WithRoot(o.DevRoot), root.WithTargetRoot("/")),
			transform.NewSimplifier(),
		).Transform(files),
	)
	if err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("turning the CDI edits' paths into those of the host: %w", err)
	}
	files.ContainerEdits.DeviceNodes = devices.ContainerEdits.DeviceNodes
	return files.ContainerEdits, nil
}

// Common returns the edits that every container with a GPU needs. The caller
// must not change what they point to.
func (b *Base) Common() specs.ContainerEdits { return b.common }

// GPU returns the edits of one GPU, or of one MIG instance, without the common ones. The caller
// must not change what they point to. Of an instance these are the device node of its GPU and its two
// capabilities, without which it is an error.
func (b *Base) GPU(uuid string) (specs.ContainerEdits, error) {
	if i, ok := b.instances[uuid]; ok {
		return b.instanceEdits(uuid, i)
	}
	c, ok := b.gpus[uuid]
	if !ok {
		return specs.ContainerEdits{}, fmt.Errorf("GPU %s is unknown: it was not there when the driver was looked at last",
			uuid)
	}
	return c.edits, c.err
}

// Check reports whether a container with that GPU could start now: whether every
// device node of the common edits and of the GPU is there. It costs one stat
// per node. An error names the nodes and what the user can do.
func (b *Base) Check(uuid string) error {
	edits, err := b.GPU(uuid)
	if err != nil {
		return err
	}
	var missing []error
	for _, n := range slices.Concat(b.common.DeviceNodes, edits.DeviceNodes) {
		if n.Type != "" {
			// The container runtime makes it by these numbers.
			continue
		}
		if err := checkNode(filepath.Join(b.devRoot, n.Path)); err != nil {
			missing = append(missing, fmt.Errorf("device node %s: %w", filepath.Join(b.hostDevRoot, n.Path), err))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("GPU %s cannot be used: %w: run \"nvidia-modprobe -u -c %d\" on the node; if that fails, see "+
		"whether the NVIDIA kernel modules are loaded",
		uuid, errors.Join(missing...), b.minor(uuid))
}

func (b *Base) minor(uuid string) int {
	if i, ok := b.instances[uuid]; ok {
		return i.parent.Minor
	}
	return b.gpus[uuid].minor
}

func checkNode(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("is missing")
	case err != nil:
		return err
	case info.Mode()&fs.ModeCharDevice == 0:
		return fmt.Errorf("is no character device but %s", info.Mode())
	}
	return nil
}
