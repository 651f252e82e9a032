// SPDX-License-Identifier: Apache-2.0

package nvmllib_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/testneeds"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	gpunvml "github.com/gpushare/dra-driver-gpushare/pkg/gpu/nvml"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/nvmllib"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// workerRoot, in the environment, makes this program a worker on that driver root.
const workerRoot = "NVMLLIB_TEST_ROOT"

func TestMain(m *testing.M) {
	if root := os.Getenv(workerRoot); root != "" {
		if err := work(context.Background(), root); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

var build = sync.OnceValues(func() ([]byte, error) { return nvmllib.Build(context.Background()) })

// library is built once for all tests.
func library(t *testing.T) []byte {
	t.Helper()
	content, err := build()
	expect.NoError(t, err)
	return content
}

func load(t *testing.T, name string) *sim.Spec {
	t.Helper()
	spec, err := sim.Load(filepath.Join("..", "..", "..", "demo", "machines", name+".yaml"))
	expect.NoError(t, err)
	return spec
}

func writeRoot(t *testing.T, spec *sim.Spec, content []byte) (root string) {
	t.Helper()
	testneeds.DeviceNodes(t)
	root, err := filepath.EvalSymlinks(t.TempDir())
	expect.NoError(t, err)
	expect.NoError(t, spec.WriteRoot(root, sim.Part{Name: sim.NVMLLibrary, Content: content}))
	return root
}

// worker is a process that has opened the library of a driver root. No process can open
// two: the functions of the first are used for both.
type worker struct {
	t       *testing.T
	input   *json.Encoder
	answers *bufio.Scanner
}

// call is what a worker is asked for.
type call struct {
	What  string
	GPU   int
	Value int
	UUID  string
	Place gpu.Place
	Limits
}

// answer is what it says.
type answer struct {
	Error   string
	Machine *gpu.Machine
	Return  nvml.Return
	Numbers []int64
	Uses    []gpu.Use
	// Taken and InUse are whether the error is gpu.ErrPlaceTaken, or gpu.ErrInstanceInUse.
	Instances    []gpu.Instance
	Taken, InUse bool
}

func startWorker(t *testing.T, root string) *worker {
	t.Helper()
	return startWorkerIn(t, root, nil)
}

// startWorkerIn starts it with attributes of its own.
func startWorkerIn(t *testing.T, root string, attributes *syscall.SysProcAttr) *worker {
	t.Helper()
	cmd := exec.Command(os.Args[0]) // It ends when its input does.
	cmd.SysProcAttr = attributes
	cmd.Env = append(os.Environ(), workerRoot+"="+root)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	expect.NoError(t, err)
	output, err := cmd.StdoutPipe()
	expect.NoError(t, err)
	expect.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = input.Close()
		if err := cmd.Wait(); err != nil {
			t.Error("the worker:", err)
		}
	})
	answers := bufio.NewScanner(output)
	answers.Buffer(nil, 1<<20)
	return &worker{t: t, input: json.NewEncoder(input), answers: answers}
}

// begin asks without waiting for the answer.
func (w *worker) begin(c call) {
	w.t.Helper()
	expect.NoError(w.t, w.input.Encode(c))
}

func (w *worker) end() answer {
	w.t.Helper()
	if !w.answers.Scan() {
		w.t.Fatalf("the worker ended: %v", w.answers.Err())
	}
	var a answer
	expect.NoError(w.t, json.Unmarshal(w.answers.Bytes(), &a))
	return a
}

func (w *worker) ask(c call) answer {
	w.t.Helper()
	w.begin(c)
	return w.end()
}

func (w *worker) read() *gpu.Machine {
	w.t.Helper()
	a := w.ask(call{What: "read"})
	if a.Error != "" {
		w.t.Fatal(a.Error)
	}
	return a.Machine
}

// work answers, in the worker.
func work(ctx context.Context, root string) error {
	lib, openErr := gpunvml.Open(ctx, gpunvml.OpenOptions{DriverRoot: root})
	var reader *gpunvml.Reader
	if openErr == nil {
		reader = gpunvml.NewReader(lib, gpunvml.Options{SysFS: filepath.Join(root, sim.SysDir), CallTimeout: hung})
	}
	partitions := gpunvml.NewPartitions(gpunvml.OpenOptions{DriverRoot: root})
	uses := gpunvml.NewUses(gpunvml.OpenOptions{DriverRoot: root})
	var events nvml.EventSet
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		var a answer
		switch {
		case openErr != nil:
			a.Error = openErr.Error()
		case c.What == "read":
			machine, err := reader.Read(ctx)
			if a.Machine = machine; err != nil {
				a.Error = err.Error()
			}
		case c.What == "read profiles":
			machine, err := gpunvml.Read(ctx, lib, gpunvml.Options{SysFS: filepath.Join(root, sim.SysDir), Profiles: true})
			if a.Machine = machine; err != nil {
				a.Error = err.Error()
			}
		case strings.HasPrefix(c.What, "partition "):
			a = partition(ctx, partitions, c)
		case c.What == "uses":
			read, err := uses.Read(ctx)
			if a.Uses = read; err != nil {
				a.Error = err.Error()
			}
		default:
			a = one(lib, c, &events)
		}
		if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

// one makes the calls that pkg/gpu/nvml does not make.
func one(lib nvml.Interface, c call, events *nvml.EventSet) (a answer) {
	device, ret := lib.DeviceGetHandleByIndex(c.GPU)
	if ret != nvml.SUCCESS {
		return answer{Return: ret}
	}
	switch c.What {
	case "by UUID":
		_, a.Return = lib.DeviceGetHandleByUUID(c.UUID)
	case "get mode":
		var mode nvml.ComputeMode
		mode, a.Return = device.GetComputeMode()
		a.Numbers = []int64{int64(mode)}
	case "set mode":
		a.Return = device.SetComputeMode(nvml.ComputeMode(c.Value))
	case "processes":
		var processes []nvml.ProcessInfo
		processes, a.Return = device.GetComputeRunningProcesses()
		for _, p := range processes {
			a.Numbers = append(a.Numbers, int64(p.Pid), int64(p.UsedGpuMemory>>20))
		}
	case "utilization":
		var samples []nvml.ProcessUtilizationSample
		samples, a.Return = device.GetProcessUtilization(0)
		for _, s := range samples {
			a.Numbers = append(a.Numbers, int64(s.Pid), int64(s.SmUtil))
		}
	case "memory":
		var memory nvml.Memory
		memory, a.Return = device.GetMemoryInfo()
		a.Numbers = []int64{int64(memory.Total >> 20), int64(memory.Used >> 20), int64(memory.Free >> 20)}
	case "field":
		values := []nvml.FieldValue{{FieldId: uint32(c.Value)}}
		if a.Return = device.GetFieldValues(values); a.Return == nvml.SUCCESS {
			a.Return = nvml.Return(values[0].NvmlReturn)
			a.Numbers = []int64{int64(values[0].Value[0])}
		}
	case "ecc":
		var errors uint64
		errors, a.Return = device.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
		a.Numbers = []int64{int64(errors)}
	case "rows":
		corrected, uncorrected, pending, failed, ret := device.GetRemappedRows()
		a.Return = ret
		a.Numbers = []int64{int64(corrected), int64(uncorrected), flag(pending), flag(failed)}
	case "register":
		if *events == nil {
			if *events, a.Return = lib.EventSetCreate(); a.Return != nvml.SUCCESS {
				return a
			}
		}
		var types uint64
		if types, a.Return = device.GetSupportedEventTypes(); a.Return == nvml.SUCCESS {
			a.Return = device.RegisterEvents(types, *events)
		}
	case "wait", "wait for instances":
		var data nvml.EventData
		data, a.Return = (*events).Wait(uint32(c.Value))
		if a.Return == nvml.SUCCESS {
			index, _ := data.Device.GetIndex()
			a.Numbers = []int64{int64(index), int64(data.EventType), int64(data.EventData)}
			if c.What == "wait for instances" {
				a.Numbers = append(a.Numbers, int64(data.GpuInstanceId), int64(data.ComputeInstanceId))
			}
		}
	case "set limits", "get limits":
		return memoryLimits(device, c)
	default:
		a.Error = "the worker does not know " + strings.TrimSpace(c.What)
	}
	return a
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
