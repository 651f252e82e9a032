// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/klog/v2"
)

// fillMemory reads the GPU's memory. One that has none of its own, as GB10,
// uses the host's: that is its size, and it is not divided into shares.
func (r *Reader) fillMemory(ctx context.Context, c *cachedGPU) error {
	memory, err := ask(ctx, c.Calls, "reading the memory", c.handle.GetMemoryInfo)
	if err == nil {
		c.gpu.MemoryMiB = int64(memory.Total >> 20)
		return nil
	}
	if !unsupported(err) {
		return err
	}
	kib, hostErr := number64(filepath.Join(r.opts.ProcFS, "meminfo"), "MemTotal")
	if hostErr != nil {
		return fmt.Errorf("%w; and that of the host, which a GPU uses that has none: %w", err, hostErr)
	}
	c.gpu.MemoryMiB, c.gpu.HostMemory = kib>>10, true
	return nil
}

// reserved reads how much of its memory the driver keeps for itself, in MiB; 0 where that is not
// told. Drivers that lack the function, those before 510, count that as no part of the memory:
// a T4 has 15109 MiB with them, and 15360 with later ones. What was told once stays: limits
// that were given use it.
func (r *Reader) reserved(ctx context.Context, c *cachedGPU) (int64, error) {
	const function = "nvmlDeviceGetMemoryInfo_v2"
	switch {
	case c.told.uuid == c.gpu.UUID && c.told.reservedMiB > 0:
		return c.told.reservedMiB, nil
	case c.gpu.HostMemory || !r.has(function):
		return 0, nil
	}
	memory, err := ask(ctx, c.Calls, "reading the reserved memory", c.handle.GetMemoryInfo_v2)
	switch {
	case err == nil && memory.Reserved < memory.Total:
		return int64((memory.Reserved + 1<<20 - 1) >> 20), nil
	case gone(err):
		return 0, err
	}
	klog.FromContext(ctx).V(4).Info("A GPU does not tell how much of its memory the driver keeps", "uuid", c.gpu.UUID,
		"reserved", memory.Reserved, "err", err)
	return 0, nil
}

// minor reads N of the GPU's device node /dev/nvidiaN. Where NVML does not tell
// it, the kernel module may. A GPU without such a node, as under WSL, cannot be
// given to a container apart from others.
func (r *Reader) minor(ctx context.Context, c *cachedGPU) (int, error) {
	minor, err := ask(ctx, c.Calls, "reading the minor number", c.handle.GetMinorNumber)
	if !unsupported(err) {
		return minor, err
	}
	n, fileErr := number64(filepath.Join(r.opts.ProcFS, "driver/nvidia/gpus", c.gpu.PCIBusID, "information"),
		"Device Minor")
	switch {
	case fileErr == nil:
		return int(n), nil
	case r.onWSL():
		return 0, errWSL
	}
	return 0, fmt.Errorf("%w; and from the kernel module: %w", err, fileErr)
}

// errWSL is the failure of each GPU under WSL: containers with any of them are given the
// one device node /dev/dxg, and with it all.
var errWSL = errors.New("the node runs in Windows Subsystem for Linux (WSL), where GPUs have no device nodes of " +
	"their own, so that none can be given to a container apart from others: this driver does not support it")

// onWSL reports whether the kernel is that of the Windows Subsystem for Linux.
func (r *Reader) onWSL() bool {
	release, err := os.ReadFile(filepath.Join(r.opts.ProcFS, "sys/kernel/osrelease"))
	return err == nil && strings.Contains(strings.ToLower(string(release)), "microsoft")
}

// number64 is the number behind "key:" in a file of such lines, as procfs has
// them. What follows it, such as a unit, is ignored.
func number64(file, key string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		fields := strings.Fields(rest)
		if strings.TrimSpace(name) != key || len(fields) == 0 {
			continue
		}
		n, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %s: %w", file, key, err)
		}
		return n, nil
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return 0, fmt.Errorf("%s does not have %q", file, key)
}
