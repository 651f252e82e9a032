// SPDX-License-Identifier: Apache-2.0

// Command gpu-memory-limit has NVIDIA's kernel driver hold a container to its shares of GPU
// memory, or keeps it from starting:
//
//	gpu-memory-limit set [FLAG…] UUID=MIB/MEMORY@INDEX…
//
// The container runtime runs it on the host, as a CDI hook (createRuntime), before each start
// of a container with such limits. It finds the container's control group by the process
// that the runtime names on the standard input, sets on it, for each GPU with that UUID, a
// limit of MIB of the GPU's MEMORY, and reads it back. It looks for the GPU at INDEX first, so
// that others, which may hang, are left alone. All that it uses is in its arguments, which
// follow from the claim: neither its environment nor the container's says anything,
// NVIDIA_GPU_MEMORY_LIMIT least of all.
//
//	gpu-memory-limit probe --library FILE
//
// fails unless it can run on the host and the NVIDIA driver has such limits.
//
// It loads the driver's NVML library, so it is a program of its own, linked with the host's C
// library, and not part of gpu-cdi-hook, which brings its own and runs on hosts of any kind.
// Nothing is lost by that: hooks of other stages could not share its process. It needs
// neither the plugin nor the API server.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/ocihook"
	nvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
)

// patience is how long the driver may take: the kubelet waits for two minutes, and tries again.
const patience = 30 * time.Second

func main() {
	time.AfterFunc(patience, func() {
		fmt.Fprintf(os.Stderr, "gpu-memory-limit: the container is not started: the NVIDIA driver, or another container's "+
			"start, did not answer within %s\n", patience)
		os.Exit(1)
	})
	h := hook{proc: "/proc", open: open, checkRoot: memlimit.CheckRoot}
	if err := h.run(os.Args, os.Stdin, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gpu-memory-limit:", err)
		os.Exit(1)
	}
}

// library is an *nvml.Library.
type library interface {
	GPU(uuid string, likely int) (memlimit.GPU, error)
	Close() error
}

type driver struct{ *nvml.Library }

func (d driver) GPU(uuid string, likely int) (memlimit.GPU, error) {
	return d.Library.GPU(uuid, likely)
}

func open(path string) (library, error) {
	l, err := nvml.Open(path)
	if err != nil {
		return nil, err
	}
	return driver{l}, nil
}

// hook is the program, with what is around it.
type hook struct {
	// proc is where the host's procfs is.
	proc string
	open func(path string) (library, error)
	// checkRoot reports control groups of another version than 2.
	checkRoot func(root string) error
}

func (h hook) run(args []string, stdin io.Reader, stderr io.Writer) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: %s set|probe …", args[0])
	}
	o, err := parse(args[2:])
	if err != nil {
		return err
	}
	switch args[1] {
	case "probe":
		l, err := h.open(o.library)
		if err != nil {
			return err
		}
		return l.Close()
	case "set":
		err := h.set(o, filepath.Base(args[0]), stdin)
		if err != nil && o.lifted {
			// It has no limits to be held to. Those of its pod's other containers may bind it.
			fmt.Fprintln(stderr, "gpu-memory-limit: a container without limits starts, though:", err)
			return nil
		}
		return err
	default:
		return fmt.Errorf("%q is neither set nor probe", args[1])
	}
}

// set limits the container that is described on stdin.
func (h hook) set(o options, program string, stdin io.Reader) (err error) {
	container, err := ocihook.Read(stdin)
	if err == nil {
		err = o.alone(container, program)
	}
	if err != nil {
		return fmt.Errorf("the container is not started: %w", err)
	}
	content, err := os.ReadFile(filepath.Join(h.proc, strconv.Itoa(container.PID), "cgroup"))
	if err != nil {
		return notHeld(o.gpus[0].UUID, fmt.Errorf("find the container's control group: %w", err))
	}
	leaf, err := podcgroup.LeafOf(content, o.kubelet, container.ID)
	if err == nil && o.root == memlimit.DefaultRoot {
		err = h.checkRoot(o.root)
	}
	if err != nil {
		return notHeld(o.gpus[0].UUID, err)
	}
	l, err := h.open(o.library)
	if err != nil {
		return notHeld(o.gpus[0].UUID, err)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	host := memlimit.Host{Root: o.root, Ledger: o.ledger}
	for _, gpu := range o.gpus {
		if err := apply(host, l, gpu, o.start(leaf, container.ID, gpu.mib)); err != nil {
			return notHeld(gpu.UUID, err)
		}
	}
	return nil
}

func apply(host memlimit.Host, l library, gpu limited, s memlimit.Start) error {
	handle, err := l.GPU(gpu.UUID, gpu.index)
	if err != nil {
		return err
	}
	if gpu.Kind, err = host.KindOf(handle); err != nil {
		return err
	}
	return host.Apply(handle, gpu.Target, s)
}

func notHeld(uuid string, err error) error {
	return fmt.Errorf("the container is not started, because nothing would hold it to its share of %s: %w: see "+
		"docs/kernel-limits.md", uuid, err)
}
