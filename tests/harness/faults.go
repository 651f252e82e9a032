// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// pluginProgram is the whole command line of the plugin in its container.
const pluginProgram = "/usr/bin/gpu-kubelet-plugin\x00"

// Plugin waits until exactly one pod of the driver is on a node and serves, and
// returns it.
func (c *Cluster) Plugin(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	return c.pluginThat(t, node, "serves", func(*corev1.Pod) bool { return true })
}

func (c *Cluster) pluginThat(t *testing.T, node, what string, condition func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var plugin corev1.Pod
	Eventually(t, fmt.Sprintf("the plugin of node %s: %s", node, what), func(ctx context.Context) error {
		pods, err := c.Client.CoreV1().Pods(PluginNamespace).List(ctx, metav1.ListOptions{
			LabelSelector: PluginSelector, FieldSelector: "spec.nodeName=" + node,
		})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d pods", len(pods.Items))
		}
		plugin = pods.Items[0]
		if err := running(&plugin); err != nil {
			return err
		}
		// It is ready when the kubelet knows it.
		if !plugin.Status.ContainerStatuses[0].Ready || !condition(&plugin) {
			return fmt.Errorf("pod %s is there, after %d restarts", plugin.Name, plugin.Status.ContainerStatuses[0].RestartCount)
		}
		return nil
	})
	return &plugin
}

// FreshPlugin replaces a plugin that its kubelet would start again only after a while, for
// the times that it has ended before.
func (c *Cluster) FreshPlugin(t *testing.T, node string) {
	t.Helper()
	if c.Plugin(t, node).Status.ContainerStatuses[0].RestartCount > 0 {
		c.ReplacePlugin(t, node)
	}
}

// KillPlugin kills the plugin of a node with SIGKILL. The returned function waits
// until its successor serves, in the same pod.
func (c *Cluster) KillPlugin(t *testing.T, node string) (wait func()) {
	t.Helper()
	plugin := c.Plugin(t, node)
	expect.NoErrorf(t, c.PluginProcess(t, plugin).Kill(), "kill the plugin of node %s", node)
	return func() {
		t.Helper()
		c.WaitPluginAgain(t, plugin)
	}
}

// WaitPluginAgain waits until a plugin has ended, and its successor serves in the same pod.
func (c *Cluster) WaitPluginAgain(t *testing.T, before *corev1.Pod) {
	t.Helper()
	restarts := before.Status.ContainerStatuses[0].RestartCount
	c.pluginThat(t, before.Spec.NodeName, "serves again after its end", func(pod *corev1.Pod) bool {
		return pod.UID == before.UID && pod.Status.ContainerStatuses[0].RestartCount > restarts
	})
}

// PluginProcess finds the process of a plugin's pod.
func (c *Cluster) PluginProcess(t *testing.T, plugin *corev1.Pod) *os.Process {
	t.Helper()
	process, err := FindProcess(func(cmdline, environ string) bool {
		return cmdline == pluginProgram && strings.Contains(environ, "POD_UID="+string(plugin.UID)+"\x00")
	})
	expect.NoErrorf(t, err, "the process of %s", plugin.Name)
	return process
}

// processOf finds a process of a pod's only container by its command line.
func processOf(pod *corev1.Pod, matches func(cmdline string) bool) (*os.Process, error) {
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
	cgroups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	for _, file := range cgroups {
		cgroup, cgroupErr := os.ReadFile(file)
		cmdline, cmdlineErr := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if errors.Join(cgroupErr, cmdlineErr) != nil || !bytes.Contains(cgroup, []byte(id)) || !matches(string(cmdline)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		return os.FindProcess(pid)
	}
	return nil, fmt.Errorf("no such process of pod %s: no cgroup names container %q", pod.Name, id)
}

// KillContainer kills the container of a running pod with one container, as a
// crash of its program does.
func (n *Namespace) KillContainer(t *testing.T, pod string) {
	t.Helper()
	expect.NoErrorf(t, n.process(t, pod).Kill(), "kill the container of pod %s", pod)
}

// StillRuns says, each time that it is called, whether a process of a pod with one
// container runs, which has to run now. It does not need the pod to be known.
func (n *Namespace) StillRuns(t *testing.T, pod string) func() bool {
	t.Helper()
	process := n.process(t, pod)
	return func() bool {
		if process.Signal(syscall.Signal(0)) != nil {
			return false
		}
		// One that nobody has waited for yet takes signals, and runs no more.
		fields, err := statOf(process.Pid)
		return err == nil && string(fields[0]) != "Z"
	}
}

// process finds a process of a running pod with one container.
func (n *Namespace) process(t *testing.T, pod string) *os.Process {
	t.Helper()
	object := n.Get(t, pod)
	process, err := processOf(object, func(string) bool { return true })
	expect.NoError(t, err)
	return process
}

// PauseKubelet stops the kubelet of a node where it is, until the returned function
// is called or the test ends: the scheduler goes on with the node, and what it
// binds there is prepared only later.
func (c *Cluster) PauseKubelet(t *testing.T, node string) (resume func()) {
	t.Helper()
	kubelet := c.kubelet(t, node)
	expect.NoErrorf(t, kubelet.Signal(syscall.SIGSTOP), "pause the kubelet of node %s", node)
	resume = sync.OnceFunc(func() {
		// A test may have started another.
		if err := kubelet.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("go on with the kubelet of node %s: %v", node, err)
		}
	})
	t.Cleanup(resume)
	return resume
}

// kubelet finds the kubelet of a node.
func (c *Cluster) kubelet(t *testing.T, node string) *os.Process {
	t.Helper()
	object := Get(t, c.Client.CoreV1().Nodes(), node)
	// Nodes of several clusters may have one name, but not one address.
	address := object.Status.Addresses[slices.IndexFunc(object.Status.Addresses,
		func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })].Address
	kubelet, err := FindProcess(func(cmdline, _ string) bool {
		program, arguments, _ := strings.Cut(cmdline, "\x00")
		return filepath.Base(program) == "kubelet" &&
			(c.Dir == "" || strings.Contains(arguments, "--node-ip="+address+"\x00"))
	})
	expect.NoErrorf(t, err, "the kubelet of node %s", node)
	return kubelet
}

// KillKubelet kills the kubelet of a node with SIGKILL, and waits until the one that is started in its place reports.
func (c *Cluster) KillKubelet(t *testing.T, node string) {
	t.Helper()
	expect.NoErrorf(t, c.kubelet(t, node).Kill(), "kill the kubelet of node %s", node)
	killed := time.Now()
	Eventually(t, "another kubelet of node "+node+" to report", func(ctx context.Context) error {
		lease, err := c.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		// Heartbeats are in whole seconds, and the next one may come in the second in which the kubelet was killed; the one
		// after that comes only after minutes.
		if renewed := lease.Spec.RenewTime; renewed == nil || !renewed.After(killed) {
			return errors.New("it has not renewed the node's lease")
		}
		object, err := c.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range object.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue &&
				!condition.LastHeartbeatTime.Time.Before(killed.Truncate(time.Second)) {
				return nil
			}
		}
		return errors.New("it has not")
	})
}

// ReplacePlugin deletes the plugin's pod of a node and waits until another one
// serves.
func (c *Cluster) ReplacePlugin(t *testing.T, node string) {
	t.Helper()
	old := c.Plugin(t, node)
	expect.NoErrorf(t, c.Client.CoreV1().Pods(PluginNamespace).Delete(Context(t), old.Name, metav1.DeleteOptions{}),
		"delete the plugin of node %s", node)
	c.pluginThat(t, node, "serves in another pod", func(pod *corev1.Pod) bool { return pod.UID != old.UID })
}

// WaitPluginOf waits until the one plugin of a node is of a DaemonSet, and serves.
func (c *Cluster) WaitPluginOf(t *testing.T, node, daemonSet string) {
	t.Helper()
	c.pluginThat(t, node, "serves in a pod of "+daemonSet, func(pod *corev1.Pod) bool {
		return metav1.GetControllerOf(pod).Name == daemonSet
	})
}

// StopAPIServer ends the API server, and keeps it from being started again until
// the returned function is called, or the test ends.
func (c *Cluster) StopAPIServer(t *testing.T) (start func()) {
	t.Helper()
	server, err := FindProcess(func(cmdline, _ string) bool {
		program, arguments, _ := strings.Cut(cmdline, "\x00")
		return filepath.Base(program) == "kube-apiserver" && strings.Contains(arguments, filepath.Join(c.Dir, "pki")+"/")
	})
	expect.NoErrorf(t, err, "the API server")
	supervisor, err := parentOf(server.Pid)
	expect.NoErrorf(t, err, "what starts the API server")
	expect.NoErrorf(t, supervisor.Signal(syscall.SIGSTOP), "stop what starts the API server")
	start = func() {
		if err := supervisor.Signal(syscall.SIGCONT); err != nil {
			t.Errorf("go on with what starts the API server: %v", err)
		}
	}
	t.Cleanup(func() {
		start()
		c.WaitAPIServer(t)
	})
	expect.NoErrorf(t, server.Kill(), "kill the API server")
	return start
}

// apiServerTimeout is for an API server that starts while hundreds of clients come back: it is not ready
// before it has looked at each of its own roles, one by one.
const apiServerTimeout = 3 * Timeout

// WaitAPIServer waits until the API server answers.
func (c *Cluster) WaitAPIServer(t *testing.T) {
	t.Helper()
	Within(t, apiServerTimeout, "the API server to answer", func(ctx context.Context) error {
		return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// WaitPluginOutput waits until a plugin has logged a text. It reads the node's
// files, and so needs no API server.
func (c *Cluster) WaitPluginOutput(t *testing.T, plugin *corev1.Pod, text string) {
	t.Helper()
	name := fmt.Sprintf("%s_%s_%s", plugin.Namespace, plugin.Name, plugin.UID)
	pattern := c.NodeFile(plugin.Spec.NodeName, "var/log/pods", name, "*", "*.log")
	Eventually(t, fmt.Sprintf("plugin %s to log %q", plugin.Name, text), func(context.Context) error {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, path := range paths {
			if content, err := os.ReadFile(path); err == nil && bytes.Contains(content, []byte(text)) {
				return nil
			}
		}
		return fmt.Errorf("it did not, in %d files %s", len(paths), pattern)
	})
}

// FindProcess finds the one process of this machine with such a command line and
// environment, in both of which each string ends with a zero byte.
func FindProcess(matches func(cmdline, environ string) bool, and ...func(pid int) bool) (*os.Process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []*os.Process
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		// Taken first: what it names cannot become another process meanwhile.
		process, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		cmdline, cmdlineErr := os.ReadFile(filepath.Join(dir, "cmdline"))
		environ, environErr := os.ReadFile(filepath.Join(dir, "environ"))
		if errors.Join(cmdlineErr, environErr) == nil && matches(string(cmdline), string(environ)) &&
			!slices.ContainsFunc(and, func(holds func(pid int) bool) bool { return !holds(pid) }) {
			found = append(found, process)
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%d processes of this machine look like it, want 1", len(found))
	}
	return found[0], nil
}

// Child finds the child of a process with such an environment, in which each
// string ends with a zero byte.
func Child(parent *os.Process, matches func(environ string) bool) (*os.Process, error) {
	return FindProcess(func(_, environ string) bool { return matches(environ) }, func(pid int) bool {
		of, err := parentOf(pid)
		return err == nil && of.Pid == parent.Pid
	})
}

// statOf is what /proc says of a process: its state, its parent, and more.
func statOf(pid int) ([][]byte, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	// "pid (name) state parent …", and the name may hold anything.
	return bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]), nil
}

func parentOf(pid int) (*os.Process, error) {
	fields, err := statOf(pid)
	if err != nil {
		return nil, err
	}
	parent, err := strconv.Atoi(string(fields[1]))
	if err != nil {
		return nil, fmt.Errorf("read /proc/%d/stat: %w", pid, err)
	}
	return os.FindProcess(parent)
}
