// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/kube"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// modeLabel is the label of nodes that sets their mode.
const modeLabel = "ack.node.gpu.schedule"

// offered are the modes of devices that a node with a label's value offers.
var offered = map[string][]string{
	"default": {"exclusive"}, "share": {"share"}, "mps": {"mps"}, "cgpu": {"cgpu"}, "core_mem": {"core-mem"},
	"topology": {"topology"}, "dynamic": {"cgpu", "core-mem", "exclusive", "mps", "share"},
}

func (s *Session) label(ctx context.Context, value string) error {
	_, err := s.Kubectl.Run(ctx, "label", "--overwrite", "node", s.Node, modeLabel+"="+value)
	return err
}

// changeMode labels the node and waits until all its GPUs are offered in that mode.
func (r *run) changeMode(ctx context.Context, label string) error {
	if err := r.label(ctx, label); err != nil {
		return err
	}
	return r.awaitMode(ctx, label)
}

func (r *run) awaitMode(ctx context.Context, label string) error {
	return kube.Until(ctx, switchLimit, "the GPUs to be offered in mode "+label, func(ctx context.Context) error {
		devices, err := r.Kubectl.Devices(ctx, v1alpha1.DriverName)
		if err != nil {
			return err
		}
		return offers(devices, offered[label], len(r.Machine.GPUs))
	})
}

// offers returns an error that names what is missing of so many GPUs in these modes. Devices for monitors
// alone, which are tainted for everybody else, are left out.
func offers(devices []kube.Device, modes []string, gpus int) error {
	var found []string
	singles := 0
	for _, d := range devices {
		if d.Text("mode") == string(mode.Monitor) {
			continue
		}
		if len(d.Taints) > 0 {
			return fmt.Errorf("device %s has the taint %s", d.Name, d.Taints[0].Key)
		}
		if m := d.Text("mode"); !slices.Contains(found, m) {
			found = append(found, m)
		}
		if strings.HasPrefix(d.Name, "gpu-") {
			singles++
		}
	}
	slices.Sort(found)
	if !slices.Equal(found, modes) || singles != gpus*len(modes) {
		return fmt.Errorf("there are %d devices, in the modes %q", len(devices), found)
	}
	return nil
}

// component finds the pod of a part of the driver that runs.
func (r *run) component(ctx context.Context, name string) (kube.Pod, error) {
	var pods kube.List[kube.Pod]
	err := r.Kubectl.In("kube-system").Get(ctx, &pods, "pods", "--selector", "app.kubernetes.io/component="+name)
	if err == nil && len(pods.Items) != 1 {
		err = fmt.Errorf("there are %d pods of %s, want 1", len(pods.Items), name)
	}
	if err != nil {
		return kube.Pod{}, err
	}
	return pods.Items[0], nil
}

// awaitRestart waits until the container of a pod, which has one, serves again after the
// end of the one that is known.
func (r *run) awaitRestart(ctx context.Context, before kube.Pod) error {
	restarts := before.Status.ContainerStatuses[0].RestartCount
	return kube.Until(ctx, r.Patience, before.Metadata.Name+" to serve again", func(ctx context.Context) error {
		var now kube.Pod
		if err := r.Kubectl.In("kube-system").Get(ctx, &now, "pod", before.Metadata.Name); err != nil {
			return err
		}
		for _, status := range now.Status.ContainerStatuses {
			if status.RestartCount > restarts && status.Ready {
				return nil
			}
		}
		return fmt.Errorf("it does not, after %d restarts", restarts)
	})
}

// process is a process of this machine.
type process struct {
	pid              int
	cmdline, environ string
}

// processes are those of the machine that match.
func processes(matches func(process) bool) ([]process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []process
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		cmdline, cmdlineErr := os.ReadFile(filepath.Join(dir, "cmdline"))
		environ, environErr := os.ReadFile(filepath.Join(dir, "environ"))
		p := process{pid, string(cmdline), string(environ)}
		// One that ends meanwhile is not looked for.
		if cmdlineErr == nil && environErr == nil && matches(p) {
			found = append(found, p)
		}
	}
	return found, nil
}

// program is the name of the process' program.
func (p process) program() string {
	first, _, _ := strings.Cut(p.cmdline, "\x00")
	return filepath.Base(first)
}

func (p process) has(name, value string) bool {
	return strings.Contains("\x00"+p.environ, "\x00"+name+"="+value+"\x00")
}

// ofPod finds the process of a pod that has its UID in its environment, or is of a
// container of it.
func ofPod(pod kube.Pod, program string) (process, error) {
	var ids []string
	for _, status := range pod.Status.ContainerStatuses {
		_, id, _ := strings.Cut(status.ContainerID, "://")
		ids = append(ids, id)
	}
	found, err := processes(func(p process) bool {
		if p.program() != program {
			return false
		}
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
		return err == nil &&
			slices.ContainsFunc(ids, func(id string) bool { return id != "" && bytes.Contains(groups, []byte(id)) })
	})
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("pod %s has %d processes of %s, want 1", pod.Metadata.Name, len(found), program)
	}
	if err != nil {
		return process{}, err
	}
	return found[0], nil
}

// daemon finds the MPS control daemon of the GPU that steps are about: the one in the
// container of the node's supervisor.
func (r *run) daemon(ctx context.Context) (process, error) {
	supervisor, err := r.component(ctx, "gpu-mps-supervisor")
	if err != nil {
		return process{}, err
	}
	parent, err := ofPod(supervisor, "gpu-mps-supervisor")
	if err != nil {
		return process{}, err
	}
	found, err := processes(func(p process) bool {
		return p.pid != parent.pid && p.has("CUDA_VISIBLE_DEVICES", r.gpu().UUID) && childOf(p.pid, parent.pid)
	})
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("gpu-mps-supervisor has %d daemons of GPU %s, want 1", len(found), r.gpu().UUID)
	}
	if err != nil {
		return process{}, err
	}
	return found[0], nil
}

func childOf(pid, parent int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// "pid (name) state parent …", and the name may hold anything.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(fields) > 1 && string(fields[1]) == strconv.Itoa(parent)
}

func kill(p process) error {
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", p.pid, err)
	}
	return nil
}

// awaitDaemon waits until the GPU's clients are limited, by a daemon that has been
// started again so often.
func (r *run) awaitDaemon(ctx context.Context, restarts int) error {
	return kube.Until(ctx, r.Patience, "the MPS control daemon to serve", func(context.Context) error {
		status, err := r.MPS.Status(r.gpu().UUID)
		if err != nil {
			return err
		}
		if status.Restarts < restarts {
			return fmt.Errorf(
				"it was started again %d times, %s since %s",
				status.Restarts,
				status.State,
				status.Since.Format(time.TimeOnly),
			)
		}
		return r.MPS.Check(r.gpu().UUID)
	})
}
