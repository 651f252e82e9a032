//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
	"github.com/gpushare/dra-driver-gpushare/tests/e2e/harness"
)

const (
	modesNode     = "modes"
	isolationGone = "gpu.aliyun.com/isolation-unavailable:NoSchedule"
	controlBinary = "run/nvidia/driver/usr/bin/nvidia-cuda-mps-control"
)

// capped is a request of a mode's class for these amounts, on the card with an
// index, or on any if that is negative.
func capped(mode string, card int, pairs ...string) resourceapi.DeviceRequest {
	request := resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: mode + ".gpu.aliyun.com", Capacity: capacity(pairs...),
	}}
	if card < 0 {
		return request
	}
	return harness.Matching(request, onCard(card))
}

// withEnv is an environment with more variables.
func withEnv(env map[string]string, pairs ...string) map[string]string {
	env = maps.Clone(env)
	for i := 0; i+1 < len(pairs); i += 2 {
		env[pairs[i]] = pairs[i+1]
	}
	return env
}

const pipeDir = "/run/gpushare/mps"

// One node goes through all modes with limits; each ends before the next begins.
func TestModesWithLimits(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, modesNode)
	setMode := cluster.Label(t, modesNode, modeLabel)
	for _, step := range []struct {
		label, mode string
		run         func(t *testing.T)
	}{
		{"mps", "mps", inModeMPS},
		{"cgpu", "cgpu", inModeCGPU},
		{"core_mem", "core-mem", inModeCoreMem},
		{"mps", "mps", daemonKilled},
		{"mps", "mps", pluginReplaced},
	} {
		t.Run(step.label, func(t *testing.T) {
			setMode(step.label)
			publishes(t, modesNode, cardsIn(step.mode)...)
			step.run(t)
		})
	}
}

// cardsIn names the node's devices in a mode.
func cardsIn(mode string) []string {
	var names []string
	for i := range 4 {
		names = append(names, fmt.Sprintf("gpu-%d-%s", i, mode))
	}
	return names
}

func inModeMPS(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "three", harness.Requests(capped("mps", 0, "memory", "3Gi")))
	ns.Template(t, "whole", harness.Requests(capped("mps", 0, "memory", "16Gi")))
	ns.Template(t, "share", harness.Requests(harness.Share("gpu", "1Gi")))
	hostIPC := harness.Pod("with-host-ipc", modesNode, harness.FromTemplate("three"))
	hostIPC.Spec.HostIPC = true
	lifted := harness.Pod("lifted", modesNode, harness.FromTemplate("three"))
	lifted.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "CGPU_DISABLE", Value: "true"}}
	ns.Run(t, harness.Pod("plain", modesNode, harness.FromTemplate("three")), hostIPC, lifted)

	env := withEnv(legacyEnv(3, 15, 3, 0), "CUDA_MPS_PIPE_DIRECTORY", pipeDir)
	for _, pod := range []string{"plain", "with-host-ipc"} {
		hasEnv(t, ns, pod, "main", withEnv(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3226M"))
		seesItsCards(t, ns, pod, "main", ns.Granted(t, pod))
	}
	if _, err := ns.Exec(t, "plain", "main", "stat", pipeDir); err != nil {
		t.Errorf("the pipe directory of the card's daemon is not in the container: %v", err)
	}
	hasEnv(t, ns, "lifted", "main", withEnv(env, "CGPU_DISABLE", "true"))
	ns.WaitPodEvent(t, "lifted", "GPUIsolationDisabled", "the limits of requests")
	hasUnits(t, ns, modesNode, 9, 0, 0, 0)

	// More than the card has, and a share of a card without limits.
	ns.Create(t, harness.Pod("large", modesNode, harness.FromTemplate("whole")), harness.Pod("share", modesNode, harness.FromTemplate("share")))
	ns.WaitUnschedulable(t, "large", noRoom)
	ns.WaitUnschedulable(t, "share", noRoom)
	cluster.Slice(t, modesNode, "takes 48 shares of a card, by MPS", func(slice *resourceapi.ResourceSlice) error {
		device := slice.Spec.Devices[0]
		slots := device.Capacity["slots"]
		if got := slots.Value.Value(); got != mps.MaxClients || *device.Attributes["isolation"].StringValue != "mps" || *device.Attributes["isolationLevel"].StringValue != "cooperative" {
			return fmt.Errorf("%d slots, attributes %v", got, device.Attributes)
		}
		return nil
	})
}

func inModeCGPU(t *testing.T) {
	ns := cluster.Namespace(t)
	// ACK's sample of a pod with two containers: 1 and 7 of 15 units.
	ns.Template(t, "pair", resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests:    []resourceapi.DeviceRequest{named("one", capped("cgpu", -1, "memory", "1Gi")), named("seven", capped("cgpu", -1, "memory", "7Gi"))},
		Constraints: []resourceapi.DeviceConstraint{{MatchAttribute: fullyQualified("gpu.aliyun.com/uuid")}},
	}})
	ns.Template(t, "two-cards", resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{named("a", capped("cgpu", 2, "memory", "1Gi")), named("b", capped("cgpu", 3, "memory", "1Gi"))},
	}})
	ns.Template(t, "compute", harness.Requests(capped("core-mem", -1, "memory", "1Gi", "cores", "5")))
	ns.Run(t, harness.Pod("pair", modesNode, harness.FromTemplate("pair"), harness.PerRequest("one", "seven")))
	hasEnv(t, ns, "pair", "one", withEnv(legacyEnv(1, 15, 8, 0), "CUDA_MPS_PIPE_DIRECTORY", pipeDir, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1075M"))
	hasEnv(t, ns, "pair", "seven", withEnv(legacyEnv(7, 15, 8, 0), "CUDA_MPS_PIPE_DIRECTORY", pipeDir, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=7527M"))

	ns.Create(t, harness.Pod("two-cards", modesNode, harness.FromTemplate("two-cards")), harness.Pod("compute", modesNode, harness.FromTemplate("compute")))
	ns.WaitPodEvent(t, "two-cards", "FailedPrepareDynamicResources", "with MPS a claim has to be on one card")
	ns.WaitUnschedulable(t, "compute", noRoom)
}

func inModeCoreMem(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "fifth", harness.Requests(capped("core-mem", 1, "memory", "3Gi", "cores", "20")))
	ns.Template(t, "rest", harness.Requests(capped("core-mem", 1, "memory", "3Gi", "cores", "80")))
	ns.Template(t, "more", harness.Requests(capped("core-mem", 1, "memory", "1Gi", "cores", "5")))
	ns.Template(t, "memory", harness.Requests(capped("cgpu", -1, "memory", "1Gi")))
	ns.Run(t, harness.Pod("fifth", modesNode, harness.FromTemplate("fifth")), harness.Pod("rest", modesNode, harness.FromTemplate("rest")))
	hasEnv(t, ns, "fifth", "main", withEnv(legacyEnv(3, 15, 3, 1), "ALIYUN_COM_GPU_SCHD_WEIGHT", "4",
		"CUDA_MPS_PIPE_DIRECTORY", pipeDir, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=3226M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20"))

	// There is memory left on the card, but no compute; and memory alone is not
	// to be had on this node.
	ns.Create(t, harness.Pod("more", modesNode, harness.FromTemplate("more")), harness.Pod("memory", modesNode, harness.FromTemplate("memory")))
	ns.WaitUnschedulable(t, "more", noRoom)
	ns.WaitUnschedulable(t, "memory", noRoom)
}

// A card whose daemon is dead is closed; what runs on others is not touched; and
// it opens again when the daemon is back.
func daemonKilled(t *testing.T) {
	ns := cluster.Namespace(t)
	for card := range 2 {
		ns.Template(t, fmt.Sprintf("on-%d", card), harness.Requests(capped("mps", card, "memory", "1Gi")))
	}
	ns.Run(t, harness.Pod("other-card", modesNode, harness.FromTemplate("on-1")))
	card := cluster.Cards(t, modesNode)[0]

	// Without its program the daemon cannot be started again.
	program := cluster.NodeFile(modesNode, controlBinary)
	if err := os.Rename(program, program+".away"); err != nil {
		t.Fatal(err)
	}
	back := func() {
		if err := os.Rename(program+".away", program); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	}
	t.Cleanup(back)
	began := time.Now()
	killDaemon(t, card.UUID)
	publishes(t, modesNode, append([]string{"gpu-0-mps " + isolationGone}, cardsIn("mps")[1:]...)...)
	cluster.WaitNodeEvent(t, modesNode, began, "GPUIsolationUnavailable", "GPU 0 is closed to new claims")
	ns.Create(t, harness.Pod("late", modesNode, harness.FromTemplate("on-0")))
	ns.WaitUnschedulable(t, "late", noRoom)
	ns.WaitRunning(t, "other-card")

	back()
	publishes(t, modesNode, cardsIn("mps")...)
	ns.WaitRunning(t, "late")
	pod, err := ns.Client.CoreV1().Pods(ns.Name).Get(t.Context(), "other-card", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := pod.Status.ContainerStatuses[0].RestartCount; got != 0 {
		t.Errorf("the pod on another card was restarted %d times", got)
	}
}

// A client of a card's daemon goes on when the plugin is replaced.
func pluginReplaced(t *testing.T) {
	ns := cluster.Namespace(t)
	ns.Template(t, "one", harness.Requests(capped("mps", 0, "memory", "1Gi")))
	ns.Run(t, harness.Pod("before", modesNode, harness.FromTemplate("one")))
	socket := filepath.Join(cluster.NodeFile(modesNode, mps.DefaultHostDir), cluster.Cards(t, modesNode)[0].UUID, "pipe", "control")
	// Socket paths are short; the cluster's directory may not be.
	link := filepath.Join(t.TempDir(), "c")
	if err := os.Symlink(socket, link); err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("unix", link)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	cluster.ReplacePlugin(t, modesNode)
	ns.Run(t, harness.Pod("after", modesNode, harness.FromTemplate("one")))
	if err := client.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the client of the card's daemon was cut off: %v", err)
	}
}

// killDaemon kills the MPS control daemon of a card, as the node sees it: the
// process that has the card's pipe directory in its environment.
func killDaemon(t *testing.T, uuid string) {
	t.Helper()
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range environs {
		environ, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(environ), "CUDA_VISIBLE_DEVICES="+uuid+"\x00") {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/environ", &pid); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no daemon serves card %s; its status is %s", uuid, statusOf(t, uuid))
}

func statusOf(t *testing.T, uuid string) string {
	status, err := mps.Dir(cluster.NodeFile(modesNode, mps.DefaultHostDir)).Status(uuid)
	if err != nil {
		return err.Error()
	}
	text, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func named(name string, request resourceapi.DeviceRequest) resourceapi.DeviceRequest {
	request.Name = name
	return request
}

func fullyQualified(name string) *resourceapi.FullyQualifiedName {
	n := resourceapi.FullyQualifiedName(name)
	return &n
}

// ACK's sample of spread: three pods of 4 GiB on three cards.
func TestSpread(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "fill")
	setPlacement := cluster.Label(t, "fill", "ack.node.gpu.placement")
	setPlacement("spread")
	ns := cluster.Namespace(t)
	ns.Template(t, "four", harness.Requests(harness.Share("gpu", "4Gi")))
	firstIs := func(want string) {
		t.Helper()
		cluster.Slice(t, "fill", "offers "+want+" first", func(slice *resourceapi.ResourceSlice) error {
			if got := slice.Spec.Devices[0].Name; got != want {
				return fmt.Errorf("it offers %s", got)
			}
			return nil
		})
	}
	for i := range 3 {
		firstIs(fmt.Sprintf("gpu-%d-share", i))
		ns.Run(t, harness.Pod(fmt.Sprintf("p%d", i), "fill", harness.FromTemplate("four")))
	}
	hasUnits(t, ns, "fill", 4, 4, 4, 0)
	firstIs("gpu-3-share")
	ns.Delete(t, "p0")
	// Of two cards with nothing granted, the first in order.
	firstIs("gpu-0-share")
	setPlacement("binpack")
	firstIs("gpu-0-share")

	began := time.Now()
	setPlacement("random")
	cluster.WaitNodeEvent(t, "fill", began, "GPUInvalidLabel", `ack.node.gpu.placement="random"`)
	firstIs("gpu-0-share")
}
