// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// faultyNode is the one whose MPS daemons and supervisor fail. It has no MPS otherwise.
const faultyNode = "mixed"

// Where MPS fails, the GPUs that it kept apart are closed, and no others. Clients of a daemon that lives on go on.
func TestMPSFails(t *testing.T) {
	cluster.First(t)
	t.Parallel()
	cluster.Whole(t, faultyNode)
	setMode := cluster.Label(t, faultyNode, modeLabel)
	setMode("mps")
	for _, step := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"PipesOutOfReach", pipesOutOfReach},
		{"PipesRemoved", pipesRemoved},
		{"DaemonHangs", daemonHangs},
		{"DaemonKilled", daemonKilled},
		{"SupervisorKilled", supervisorKilled},
		{"HostDirectoryNotWritable", hostDirectoryNotWritable},
		{"PluginReplaced", pluginReplaced},
	} {
		t.Run(step.name, func(t *testing.T) {
			cluster.FreshAfterFailure(t, faultyNode)
			cluster.Publishes(t, faultyNode, harness.DevicesIn("mps")...)
			step.run(t)
		})
	}
	// Other tests find the node as it was.
	setMode("default")
	cluster.Publishes(t, faultyNode, harness.DeviceNames(4, "gpu-%d")...)
}

// seesGPUAndDaemon checks that a container has the device node of its pod's only
// GPU and the pipe directory of that GPU's daemon, and none of other GPUs.
func seesGPUAndDaemon(t *testing.T, ns *harness.Namespace, pod, container string) {
	t.Helper()
	seesDaemonOf(t, ns, pod, container, ns.Granted(t, pod))
}

// seesDaemonOf checks the same of a container that has what was granted and nothing else.
func seesDaemonOf(t *testing.T, ns *harness.Namespace, pod, container string, grants []harness.Grant) {
	t.Helper()
	ns.SeesItsGPUs(t, pod, container, grants)
	mounts, err := ns.Exec(t, pod, container, "mounts")
	expect.NoError(t, err)
	var sources []string
	for line := range strings.Lines(mounts) {
		// proc_pid_mountinfo(5): the fourth field is the source in its file
		// system, the fifth where it is mounted, the sixth how.
		fields := strings.Fields(line)
		if fields[4] != pipeDir {
			continue
		}
		sources = append(sources, fields[3])
		for _, option := range []string{"ro", "nosuid", "nodev", "noexec"} {
			if !slices.Contains(strings.Split(fields[5], ","), option) {
				t.Errorf("%s is not mounted %s in %s/%s: %s", pipeDir, option, pod, container, fields[5])
			}
		}
	}
	node, uuid := grants[0].GPU.Node, grants[0].GPU.UUID
	if want := filepath.Join("/", uuid, "pipe"); len(sources) != 1 || !strings.HasSuffix(sources[0], want) {
		t.Errorf("%q are mounted at %s in %s/%s, want one that ends in %s", sources, pipeDir, pod, container, want)
	}
	if _, err := ns.Exec(t, pod, container, "stat", filepath.Join(pipeDir, mps.SocketName)); err != nil {
		t.Errorf("%s/%s does not find the daemon: %v", pod, container, err)
	}
	if _, err := ns.Exec(t, pod, container, "stat", filepath.Join(pipeDir, "control_privileged")); err == nil {
		t.Errorf("%s/%s has the socket for commands of root", pod, container)
	}
	clients, daemon := cluster.MPS(node).PipeDir(uuid), cluster.MPS(node).DaemonDir(uuid)
	if !sameFile(t, filepath.Join(clients, mps.SocketName), filepath.Join(daemon, mps.SocketName)) {
		t.Errorf("%s/%s has another socket than that of the GPU's daemon", pod, container)
	}
}

// A daemon that does not answer closes its GPU, and keeps its clients.
func daemonHangs(t *testing.T) {
	uuid := cluster.GPUs(t, faultyNode)[0].UUID
	daemon, connected := cluster.MPSDaemon(t, faultyNode, uuid), connect(t, uuid)
	goOn := func() {
		if err := daemon.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
	}
	t.Cleanup(goOn)
	began := time.Now()
	expect.NoError(t, daemon.Signal(syscall.SIGSTOP))
	cluster.Publishes(t, faultyNode, append([]string{"gpu-0-mps " + isolationGone}, harness.DevicesIn("mps")[1:]...)...)
	cluster.WaitNodeEvent(t, faultyNode, began, "GPUIsolationUnavailable", "does not answer")
	goOn()
	cluster.PublishesInAnyOrder(t, faultyNode, harness.DevicesIn("mps")...)
	connected()
	if now := cluster.MPSDaemon(t, faultyNode, uuid).Pid; now != daemon.Pid {
		t.Errorf("the daemon was process %d and is %d", daemon.Pid, now)
	}
}

// A GPU whose daemon is dead is closed; what runs on others is not touched; and
// it opens again when the daemon is back.
func daemonKilled(t *testing.T) {
	ns := cluster.Namespace(t)
	for g := range 2 {
		ns.Template(t, fmt.Sprintf("on-%d", g), harness.Requests(harness.Capped("mps", g, "memory", "1Gi")))
	}
	again := harness.Pod("again", faultyNode, harness.FromTemplate("on-0"))
	again.Spec.RestartPolicy = corev1.RestartPolicyAlways
	ns.Run(t, harness.Pod("other-card", faultyNode, harness.FromTemplate("on-1")), again)
	before := ns.Containers(t)
	crashed := before["again"]
	delete(before, "again")
	g := cluster.GPUs(t, faultyNode)[0]

	back := withoutDaemons(t, faultyNode)
	began := time.Now()
	killDaemon(t, faultyNode, g.UUID)
	cluster.Publishes(t, faultyNode, append([]string{"gpu-0-mps " + isolationGone}, harness.DevicesIn("mps")[1:]...)...)
	cluster.WaitNodeEvent(t, faultyNode, began, "GPUIsolationUnavailable", "GPU 0 is closed to new claims")
	showsHealth(t, ns, "again", "Unhealthy", "keeps the users of the GPU apart")
	t.Logf("the GPU is closed and its pod shows why %s after its daemon was killed", since(began))
	showsHealth(t, ns, "other-card", "Healthy", "")
	ns.Create(t, harness.Pod("late", faultyNode, harness.FromTemplate("on-0")))
	ns.WaitUnschedulable(t, "late", noRoom)
	ns.WaitRunning(t, "other-card")
	closedWithoutServer(t, ns, "again", g.UUID)
	// A container that starts again is not looked at by the driver.
	ns.KillContainer(t, "again")
	ns.WaitPodEvent(t, "again", "Failed", "nothing would hold it to its share of "+g.UUID)

	returned := time.Now()
	back()
	harness.Eventually(t, "the daemon to serve again", func(context.Context) error {
		return cluster.MPS(faultyNode).Check(g.UUID)
	})
	recovered := time.Now()
	cluster.PublishesInAnyOrder(t, faultyNode, harness.DevicesIn("mps")...)
	t.Logf("the GPU was offered again %s after its daemon served", since(recovered))
	ns.WaitRunning(t, "late")
	t.Logf("a pod that waited for the GPU runs %s after daemons can be started again", since(returned))
	harness.Eventually(t, "the container to run again",
		func(ctx context.Context) error { return ns.CheckRestarted(ctx, "again", crashed) })
	inMPSOrRefused(t, ns, "late", g.UUID)

	serverKilled(t, ns, "late", g.UUID)
	ns.KeptRunning(t, before)
}

// With the supervisor end all its daemons. What was granted before that, and is
// prepared after it, is refused as long as nothing would limit it.
func supervisorKilled(t *testing.T) {
	ns := cluster.Namespace(t)
	for g := range 2 {
		ns.Template(t, fmt.Sprintf("on-%d", g), harness.Requests(harness.Capped("mps", g, "memory", "1Gi")))
	}
	ns.Run(t, harness.Pod("running", faultyNode, harness.FromTemplate("on-1")))
	before := ns.Containers(t)

	// The kubelet prepares the claim only when it goes on.
	resume := cluster.PauseKubelet(t, faultyNode)
	ns.Create(t, harness.Pod("granted", faultyNode, harness.FromTemplate("on-0")))
	ns.WaitBound(t, "granted")
	back := withoutDaemons(t, faultyNode)
	began := time.Now()
	expect.NoError(t, cluster.Supervisor(t, faultyNode).Kill())
	var closed []string
	for _, name := range harness.DevicesIn("mps") {
		closed = append(closed, name+" "+isolationGone)
	}
	cluster.Publishes(t, faultyNode, closed...)
	cluster.WaitNodeEvent(t, faultyNode, began, "GPUIsolationUnavailable", "GPU 3 is closed to new claims")
	resume()
	ns.WaitPodEvent(t, "granted", failedPrepare, "its share could not be limited by mps")
	// The kubelet would try it again, a minute and a half later.
	ns.Delete(t, "granted")
	ns.Create(t, harness.Pod("late", faultyNode, harness.FromTemplate("on-0")))
	ns.WaitUnschedulable(t, "late", noRoom)

	back()
	cluster.PublishesInAnyOrder(t, faultyNode, harness.DevicesIn("mps")...)
	ns.WaitRunning(t, "late")
	ns.KeptRunning(t, before)
	cluster.ReplaceSupervisor(t, faultyNode)
}

// A supervisor that cannot tell how a daemon is ends, and says so at the node.
func hostDirectoryNotWritable(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Capped("mps", 0, "memory", "1Gi")))
	uuid := cluster.GPUs(t, faultyNode)[0].UUID
	daemon, began := cluster.MPSDaemon(t, faultyNode, uuid), time.Now()
	cluster.ReadOnly(t, cluster.Supervisor(t, faultyNode), mps.DefaultHostDir)
	t.Cleanup(func() {
		if t.Failed() {
			output, err := ns.Kubectl(t, "--namespace", "kube-system", "logs", "--previous", "--selector",
				"app.kubernetes.io/component=gpu-mps-supervisor", "--tail", "20", "--prefix")
			t.Logf("the supervisors that ended said (%v):\n%s", err, output)
		}
	})
	// Where claims of the test before are only now released, the supervisor has that to tell, and
	// ends with its daemons before this.
	if err := daemon.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("kill the daemon of GPU %s: %v", uuid, err)
	}
	cluster.WaitNodeEvent(t, faultyNode, began, "GPUMPSSupervisorFailed", "read-only file system")
	// The kubelet starts it again, with a mount of its own.
	harness.Eventually(t, "the daemon to serve again", func(context.Context) error {
		dir := cluster.MPS(faultyNode)
		status, err := dir.Status(uuid)
		if err == nil && status.Since.Before(began) {
			err = errors.New("it is not known what became of it")
		}
		return errors.Join(err, dir.Check(uuid))
	})
	ns.Run(t, harness.Pod("after", faultyNode, harness.FromTemplate("one")))
	cluster.ReplaceSupervisor(t, faultyNode)
}

// A client of a GPU's daemon goes on when the plugin is replaced.
func pluginReplaced(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(harness.Capped("mps", 0, "memory", "1Gi")))
	ns.Run(t, harness.Pod("before", faultyNode, harness.FromTemplate("one")))
	connected := connect(t, cluster.GPUs(t, faultyNode)[0].UUID)
	cluster.ReplacePlugin(t, faultyNode)
	ns.Run(t, harness.Pod("after", faultyNode, harness.FromTemplate("one")))
	connected()
}

// connect makes the test a client of a GPU's daemon. The returned function fails
// the test where the daemon has ended since then.
func connect(t *testing.T, uuid string) (connected func()) {
	t.Helper()
	client, err := net.Dial("unix", cluster.Socket(t, faultyNode, mps.DefaultHostDir, uuid, "pipe", mps.SocketName))
	expect.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return func() {
		t.Helper()
		expect.NoError(t, client.SetReadDeadline(time.Now().Add(time.Second)))
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the client of the GPU's daemon was cut off: %v", err)
		}
	}
}

// withoutDaemons keeps daemons from being started on a node, until the returned
// function is called or the test ends. The program stays where it is, for
// containers have it mounted.
func withoutDaemons(t *testing.T, node string) (back func()) {
	t.Helper()
	program := cluster.NodeFile(node, controlBinary)
	expect.NoError(t, os.Chmod(program, 0o644))
	back = func() {
		if err := os.Chmod(program, 0o755); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(back)
	return back
}

func killDaemon(t *testing.T, node, uuid string) {
	t.Helper()
	expect.NoErrorf(t, cluster.MPSDaemon(t, node, uuid).Kill(), "kill the daemon of GPU %s", uuid)
}

func statusOf(t *testing.T, uuid string) string {
	status, err := cluster.MPS(faultyNode).Status(uuid)
	if err != nil {
		return err.Error()
	}
	text, err := json.Marshal(status)
	expect.NoError(t, err)
	return string(text)
}

// No more containers have the limits of a share than may, whether they are there when the claim
// is prepared or join it later; and none has two shares, of which one would run beside MPS.
func TestPodsThatJoinClaims(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, modesNode)
	cluster.Publishes(t, modesNode, harness.DevicesIn("mps")...)
	ns := cluster.Namespace(t)
	for i, name := range []string{"first", "second", "crowd"} {
		ns.Claim(t, name, harness.Requests(harness.Capped("mps", i%2, "memory", "1Gi")))
	}
	containers := func(count int) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			for i := range count - 1 {
				c := pod.Spec.Containers[0]
				c.Name = fmt.Sprint("more-", i)
				pod.Spec.Containers = append(pod.Spec.Containers, c)
			}
		}
	}
	ns.Create(t, harness.Pod("crowd", modesNode, containers(12), harness.FromClaim("crowd")))
	ns.WaitPodEvent(t, "crowd", "FailedPrepareDynamicResources", "12 containers share 1 GiB")

	ns.Run(t, harness.Pod("two", modesNode, containers(2), harness.FromClaim("first")),
		harness.Pod("more", modesNode, containers(2), harness.FromClaim("first")),
		harness.Pod("other", modesNode, harness.FromClaim("second")))
	ns.Create(t, harness.Pod("fifth", modesNode, harness.FromClaim("first")),
		harness.Pod("joins", modesNode, harness.FromClaim("second"), func(pod *corev1.Pod) {
			first := "first"
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims,
				corev1.PodResourceClaim{Name: "beside", ResourceClaimName: &first})
			pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims,
				corev1.ResourceClaim{Name: "beside"})
		}))
	ns.WaitPodEvent(t, "fifth", "Failed", "4 containers have its share already")
	ns.WaitPodEvent(t, "joins", "Failed", "two shares by MPS")

	// With one of them gone there is room for another.
	ns.Delete(t, "fifth", "more")
	ns.Run(t, harness.Pod("next", modesNode, harness.FromClaim("first")))
}
