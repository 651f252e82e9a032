// SPDX-License-Identifier: Apache-2.0

// Command rest measures what gpu-kubelet-plugin takes of the machine while nothing happens: processor
// time and context switches, without a cluster. An imitation of the API server tells the plugin of its
// node and of claims that are allocated already.
//
//	go run ./tests/bench/rest --plugin PROGRAM --machine demo/machines/dgx1.yaml --nvml LIBRARY \
//		[--claims 100 --processes 64]
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/driver"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().Run(ctx, os.Args)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rest:", err)
		os.Exit(1)
	}
}

func command() *cli.Command {
	return &cli.Command{
		Name:  "rest",
		Usage: "measure what gpu-kubelet-plugin takes while nothing happens",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "plugin", Required: true,
				Usage: "the `PROGRAM` gpu-kubelet-plugin; several are measured at the same time"},
			&cli.StringFlag{Name: "machine", Required: true, Usage: "machine `FILE` of the GPUs to simulate"},
			&cli.StringFlag{Name: "nvml", Required: true, Usage: "NVML `LIBRARY` of simulated nodes"},
			&cli.IntFlag{Name: "claims", Usage: "how many claims are prepared"},
			&cli.IntFlag{Name: "processes", Usage: "how many processes are on the GPUs"},
			&cli.DurationFlag{Name: "settle", Value: 15 * time.Second, Usage: "how long the plugin is left alone before"},
			&cli.DurationFlag{Name: "window", Value: time.Minute, Usage: "how long it is measured"},
			&cli.StringSliceFlag{Name: "arg", Usage: "further `ARGUMENT` of the plugin"},
		},
		Action: run,
	}
}

func run(ctx context.Context, c *cli.Command) error {
	dir, err := os.MkdirTemp("", "rest-")
	if err != nil {
		return fmt.Errorf("make a directory to work in: %w", err)
	}
	defer os.RemoveAll(dir)
	machine, err := sim.Load(c.String("machine"))
	if err != nil {
		return err
	}
	end, err := addProcesses(machine, c.Int("processes"))
	if err != nil {
		return err
	}
	defer end()
	library, err := os.ReadFile(c.String("nvml"))
	if err != nil {
		return fmt.Errorf("read the NVML library: %w", err)
	}
	var runs []*one
	for i, program := range c.StringSlice("plugin") {
		at := filepath.Join(dir, strconv.Itoa(i))
		root := filepath.Join(at, "root")
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		err := machine.ForNode(nodeName).WriteRoot(root, sim.Part{Name: sim.NVMLLibrary, Content: library})
		if err != nil {
			return err
		}
		r := &one{program: program}
		if err := r.start(ctx, c, at, root, len(machine.GPUs)); err != nil {
			return err
		}
		defer r.stop()
		runs = append(runs, r)
	}
	wait(ctx, c.Duration("settle"))
	for _, r := range runs {
		if err := r.look(); err != nil {
			return err
		}
	}
	wait(ctx, c.Duration("window"))
	for _, r := range runs {
		if err := r.tell(); err != nil {
			return err
		}
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// addProcesses puts processes that sleep on the GPUs, in turn.
func addProcesses(m *sim.Spec, count int) (end func(), err error) {
	var started []*exec.Cmd
	end = func() {
		for _, cmd := range started {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	for i := range count {
		cmd := exec.Command("sleep", "infinity")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			end()
			return nil, fmt.Errorf("start a process: %w", err)
		}
		started = append(started, cmd)
		on := &m.GPUs[i%len(m.GPUs)].State
		on.Processes = append(on.Processes, sim.Process{PID: cmd.Process.Pid, MemoryMiB: 500})
	}
	return end, nil
}

// one is a plugin that is measured.
type one struct {
	program string
	api     *httptest.Server
	process *driver.Process
	pid     int

	at       time.Time
	cpu      time.Duration
	switches int
}

func (r *one) start(ctx context.Context, c *cli.Command, dir, root string, gpus int) error {
	api := newAPI()
	claims := api.addClaims(c.Int("claims"), gpus)
	r.api = httptest.NewServer(api)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(kubeconfigOf(r.api.URL)), 0o600); err != nil {
		return err
	}
	d := driver.Driver{Name: v1alpha1.DriverName, Program: r.program, Dir: dir, Args: append([]string{
		"--driver-root", root, "--sysfs-root", filepath.Join(root, sim.SysDir), "--cdi-hook", "", "--mps-check", "",
		"--memory-limit-hook", "",
		"--node-name", nodeName, "--kubeconfig", kubeconfig, "--metrics-address", "0",
	}, c.StringSlice("arg")...)}
	var err error
	if r.process, err = d.Start(); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	socket, err := r.process.Connect(limit)
	if err != nil {
		return errors.Join(err, printLog(d.Log()))
	}
	for _, claim := range claims {
		if _, err := socket.Prepare(limit, claim); err != nil {
			return errors.Join(err, printLog(d.Log()))
		}
	}
	r.pid = r.process.PID()
	return socket.Close()
}

func printLog(file string) error {
	log, err := os.Open(file)
	if err != nil {
		return err
	}
	defer log.Close()
	_, err = io.Copy(os.Stderr, log)
	return err
}

func (r *one) stop() {
	r.process.Kill()
	r.api.CloseClientConnections()
	r.api.Close()
}

func (r *one) look() (err error) {
	r.at = time.Now()
	if r.cpu, err = driver.CPU(r.pid); err != nil {
		return err
	}
	r.switches, err = switches(r.pid)
	return err
}

func (r *one) tell() error {
	before := *r
	if err := r.look(); err != nil {
		return err
	}
	took := r.at.Sub(before.at)
	rss, err := driver.RSS(r.pid)
	if err != nil {
		return err
	}
	perMinute := float64(r.cpu-before.cpu) / float64(time.Second) / took.Minutes()
	fmt.Printf("%s: %.3f s of CPU a minute, %.1f context switches a second, %.1f MiB resident\n", r.program, perMinute,
		float64(r.switches-before.switches)/took.Seconds(), float64(rss)/(1<<20))
	return nil
}

// switches is how often a thread of the process was switched to, so far.
func switches(pid int) (int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		return 0, cmp.Or(err, fmt.Errorf("there is no process %d", pid))
	}
	total := 0
	for _, task := range tasks {
		status, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for line := range strings.Lines(string(status)) {
			if name, value, is := strings.Cut(line, ":"); is && strings.HasSuffix(name, "ctxt_switches") {
				n, err := strconv.Atoi(strings.TrimSpace(value))
				if err != nil {
					return 0, err
				}
				total += n
			}
		}
	}
	return total, nil
}
