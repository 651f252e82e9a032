// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// One daemon for all GPUs of a node serves containers with several of them.
func oneDaemonForAllGPUs(t *testing.T) {
	ns := cluster.Namespace(t)
	isolatedBy := func(want string) {
		t.Helper()
		cluster.Slice(t, modesNode, "isolates by "+want, func(slice *resourceapi.ResourceSlice) error {
			if len(slice.Spec.Devices) == 0 {
				return errors.New("it has no devices")
			}
			for _, device := range slice.Spec.Devices {
				if got := device.Attributes["isolation"].StringValue; got == nil || *got != want || len(device.Taints) > 0 {
					return fmt.Errorf("device %s: attributes %v, taints %v", device.Name, device.Attributes, device.Taints)
				}
			}
			return nil
		})
	}
	setDaemon := cluster.Label(t, modesNode, "gpu.aliyun.com/mps-daemon")

	// 4 GiB and 10 percent of each of two GPUs. With a daemon for each GPU no container can
	// have two.
	pod := harness.Labelled(harness.Asking("mem 8 core 20"), ack.PodLabelCount, "2")
	pod.Name, pod.GenerateName = "two", ""
	pod.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": modesNode}
	ns.Create(t, pod)
	ns.WaitUnschedulable(t, "two", noRoom)
	setDaemon("node")
	isolatedBy("mps-node")
	ns.WaitRunning(t, "two")

	grants := ns.Granted(t, "two")
	if len(grants) != 2 || grants[0].GPU.UUID == grants[1].GPU.UUID {
		t.Fatalf("granted %+v, want shares of two GPUs", grants)
	}
	container := pod.Spec.Containers[0].Name
	ns.SeesItsGPUs(t, "two", container, grants)
	env := ns.GPUEnv(t, "two", container)
	if env["CUDA_MPS_PIPE_DIRECTORY"] != pipeDir || env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] != "10" {
		t.Errorf("environment %q", env)
	}
	for _, grant := range grants {
		if got := env["CUDA_VISIBLE_DEVICES"]; !strings.Contains(got, grant.GPU.UUID) {
			t.Errorf("CUDA sees %q, want %s among them", got, grant.GPU.UUID)
		}
		if want := grant.GPU.UUID + "=4301M"; !strings.Contains(env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], want) {
			t.Errorf("limits %q, want %s among them", env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], want)
		}
		inMPSOrRefused(t, ns, "two", grant.GPU.UUID)
	}

	// Its end is that of all GPUs, and no program runs beside it meanwhile.
	var uuids, closed []string
	for _, g := range cluster.GPUs(t, modesNode) {
		uuids = append(uuids, g.UUID)
	}
	for _, name := range harness.DevicesIn("core-mem") {
		closed = append(closed, name+" "+isolationGone)
	}
	back := withoutDaemons(t, modesNode)
	began := time.Now()
	killDaemon(t, modesNode, strings.Join(uuids, ","))
	cluster.Publishes(t, modesNode, closed...)
	cluster.WaitNodeEvent(t, modesNode, began, "GPUIsolationUnavailable", "GPU 3 is closed to new claims")
	for _, grant := range grants {
		refused(t, ns, "two", grant.GPU.UUID)
		refused(t, ns, "two", grant.GPU.UUID, "CUDA_MPS_PIPE_DIRECTORY")
	}
	back()
	cluster.PublishesInAnyOrder(t, modesNode, harness.DevicesIn("core-mem")...)
	for _, grant := range grants {
		inMPSOrRefused(t, ns, "two", grant.GPU.UUID)
	}

	// The way back waits for what is in use.
	began = time.Now()
	setDaemon("")
	cluster.WaitNodeEvent(t, modesNode, began, "GPUModeSwitchWaiting", "two")
	ns.WaitRunning(t, "two")
	ns.Delete(t, "two")
	isolatedBy("mps")
	harness.Eventually(t, "the daemon of all GPUs to be unwanted, and those of single GPUs to serve",
		func(context.Context) error {
			wanted, err := cluster.MPS(modesNode).NodeDaemonWanted()
			if err == nil && wanted {
				err = errors.New("it is wanted")
			}
			errs := []error{err}
			for _, uuid := range uuids {
				errs = append(errs, cluster.MPS(modesNode).Check(uuid))
			}
			return errors.Join(errs...)
		})
}
