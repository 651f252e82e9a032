// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// capabilityClass is what the kernel calls the device nodes by which a process may use a MIG instance.
const capabilityClass = "nvidia-caps"

// instanceBase is an instance of a GPU in MIG mode.
type instanceBase struct {
	id     gpu.InstanceID
	parent gpu.GPU
	// edits have the device node of the GPU, or err says why they do not.
	edits specs.ContainerEdits
	err   error
}

// addInstances adds the instances that can be handed out. Of the GPU a container gets the one device node that all
// of its instances are opened by; not those of DRM, by which graphics would see all of the GPU.
//
// nvcdi could make these edits, but it looks for what the kernel module tells in its own /proc, and leaves
// out capabilities whose device nodes do not exist: such a container has a GPU of which it can use nothing.
func (b *Base) addInstances(machine *gpu.Machine, opts BaseOptions) {
	b.procFS = opts.ProcFS
	b.instances = map[string]instanceBase{}
	for _, p := range machine.Partitioned {
		edits, err := opts.finish(specs.ContainerEdits{}, []string{gpuNode(p.Minor)})
		for _, i := range p.Instances {
			if i.LeftOut == "" {
				b.instances[i.UUID] = instanceBase{id: i.InstanceID, parent: p.GPU, edits: edits, err: err}
			}
		}
	}
}

// instanceEdits are the edits of an instance. Its capabilities are read again: they are the kernel module's.
func (b *Base) instanceEdits(uuid string, i instanceBase) (specs.ContainerEdits, error) {
	if i.err != nil {
		return specs.ContainerEdits{}, i.err
	}
	edits := i.edits
	capabilities, err := i.capabilities(b.procFS)
	if err != nil {
		return specs.ContainerEdits{}, fmt.Errorf("MIG device %s (GPU %d, %s) cannot be used: %w: see whether the "+
			"instance is still there (nvidia-smi mig -i %s -lgi) and what the kernel log says", uuid, i.parent.Index, i.id, err,
			i.parent.PCIBusID)
	}
	// The array is that of all instances of the GPU.
	edits.DeviceNodes = append(append([]*specs.DeviceNode{}, edits.DeviceNodes...), capabilities...)
	return edits, nil
}

// capabilities are the device nodes of the GPU instance and of the compute instance: both are needed. They need not
// exist on the host, where nvidia-modprobe makes them for the host's own programs; the container runtime makes
// them in the container.
func (i instanceBase) capabilities(procFS string) ([]*specs.DeviceNode, error) {
	major, err := capabilityMajor(procFS)
	if err != nil {
		return nil, err
	}
	gi := fmt.Sprintf("driver/nvidia/capabilities/gpu%d/mig/gi%d", i.parent.Minor, i.id.GI)
	var nodes []*specs.DeviceNode
	var missing []error
	for _, path := range []string{gi + "/access", fmt.Sprintf("%s/ci%d/access", gi, i.id.CI)} {
		node, err := capability(filepath.Join(procFS, path), major)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		nodes = append(nodes, node)
	}
	return nodes, errors.Join(missing...)
}

// capability is the device node of a capability, which a file of the kernel module describes in lines such as
// "DeviceFileMinor: 12" and "DeviceFileMode: 292".
func capability(path string, major int64) (*specs.DeviceNode, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the NVIDIA kernel module shows no such capability: %w", err)
	}
	values := map[string]int64{}
	for line := range strings.Lines(string(content)) {
		key, value, _ := strings.Cut(line, ":")
		if n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 32); err == nil {
			values[strings.TrimSpace(key)] = n
		}
	}
	minor, ok := values["DeviceFileMinor"]
	if !ok || minor <= 0 {
		return nil, fmt.Errorf("the capability %s of the NVIDIA kernel module has no minor number: %q", path, content)
	}
	node := &specs.DeviceNode{
		Path: fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor), Type: "c", Major: major, Minor: minor, Permissions: "rw",
	}
	if mode, ok := values["DeviceFileMode"]; ok {
		node.FileMode = new(os.FileMode(mode) & os.ModePerm)
	}
	return node, nil
}

// capabilityMajor is the major number of the capabilities' device nodes, another one each time that the kernel
// module is loaded.
func capabilityMajor(procFS string) (int64, error) {
	path := filepath.Join(procFS, "devices")
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading the kernel's list of devices: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 2 || fields[1] != capabilityClass {
			continue
		}
		major, err := strconv.ParseInt(fields[0], 10, 32)
		if err == nil && major > 0 {
			return major, nil
		}
	}
	return 0, fmt.Errorf("%s has no %s: the NVIDIA kernel module offers no MIG capabilities", path, capabilityClass)
}
