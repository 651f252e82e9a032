// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package mig tests MIG instances that are made on demand, on a cluster of a node whose GPUs an administrator has
// cut, a node whose instances are made for claims, and a node of shares. Lane mig makes it.
package mig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

const (
	static  = "static"
	dynamic = "dynamic"
)

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }

// hasItsInstance checks by the simulated driver that a container has the device nodes of one instance of the profile,
// and of no other, and that it is the one of which the claim's status tells. It returns the instance's UUID.
func hasItsInstance(ctx context.Context, t *testing.T, ns *harness.Namespace, pod *corev1.Pod,
	profile string) (string, error) {
	t.Helper()
	output, err := ns.Exec(t, pod.Name, "main", "devices")
	if err != nil {
		return "", err
	}
	var has []string
	for line := range strings.Lines(output) {
		if path, _, _ := strings.Cut(line, " "); strings.Contains(path, "nvidia-caps") {
			has = append(has, path)
		}
	}
	slices.Sort(has)
	uuid, err := statusUUID(ctx, ns, pod)
	if err != nil {
		return "", err
	}
	devices := cluster.MIGDevices(t, pod.Spec.NodeName)
	at := slices.IndexFunc(devices, func(d sim.MIGDevice) bool { return d.UUID == uuid })
	if at < 0 {
		return "", fmt.Errorf("pod %s has instance %s, and the driver has none such: %+v", pod.Name, uuid, devices)
	}
	var want []string
	for _, minor := range devices[at].Capabilities {
		want = append(want, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor))
	}
	slices.Sort(want)
	if devices[at].Profile != profile || !slices.Equal(has, want) {
		return "", fmt.Errorf("pod %s has %v; its claim has %+v, of which it needs %v", pod.Name, has, devices[at], want)
	}
	return uuid, nil
}

// statusUUID is the UUID in the status of the pod's only claim.
func statusUUID(ctx context.Context, ns *harness.Namespace, pod *corev1.Pod) (string, error) {
	var name string
	for _, status := range pod.Status.ResourceClaimStatuses {
		name = *status.ResourceClaimName
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		name = extended.ResourceClaimName
	}
	claim, err := ns.Client.ResourceV1().ResourceClaims(ns.Name).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return harness.MIGInstance(claim)
}

func nothingIsCut(t *testing.T) {
	t.Helper()
	harness.Eventually(t, "nothing to be left of the instances", func(context.Context) error {
		if left := cluster.MIGDevices(t, dynamic); len(left) > 0 {
			return fmt.Errorf("there are %+v", left)
		}
		return nil
	})
}

// A claim, and a pod in the words of NVIDIA's device plugin, have instances made, which go with them.
func TestInstancesAreMadeAndDestroyed(t *testing.T) {
	cluster.ServeMIG(t, dynamic, sim.Partitioning{})
	ns := cluster.Namespace(t)
	ns.Template(t, "half", harness.Requests(harness.OfClass("3g.40gb.mig")))
	began := time.Now()
	ns.Run(t,
		harness.Pod("claim", dynamic, harness.FromTemplate("half")),
		harness.Pod("small", dynamic, harness.Limit("nvidia.com/mig-1g.10gb", "1")),
		harness.Pod("media", dynamic, harness.Limit("nvidia.com/mig-1g.10gb.me", "1")),
	)
	for name, profile := range map[string]string{"claim": "3g.40gb", "small": "1g.10gb", "media": "1g.10gb+me"} {
		ns.WaitPod(t, name, "to have its instance", func(pod *corev1.Pod) error {
			_, err := hasItsInstance(t.Context(), t, ns, pod, profile)
			return err
		})
	}
	cluster.WaitNodeEvent(t, dynamic, began.Add(-time.Hour), v1alpha1.ReasonModeServed,
		"8 GPUs whose MIG instances are made when claims need them")
	ns.Delete(t, "claim", "small", "media")
	nothingIsCut(t)
}

// An instance that somebody else has made is offered as it is, and never touched.
func TestInstancesOfOthersAreNotTouched(t *testing.T) {
	cluster.ServeMIG(t, dynamic, sim.Partitioning{})
	putBack := cluster.ChangeMachine(t, dynamic, func(s *sim.Spec) {
		for g := range s.GPUs {
			if err := s.Inject(g, "mig=+4g.40gb@0"); err != nil {
				t.Error(err)
			}
		}
	})
	// Who is allocated a place before that is told by the kubelet what is in the way.
	cluster.Devices(t, dynamic, "are those beside the instances", func(devices []resourceapi.Device) error {
		for _, d := range devices {
			if strings.HasSuffix(d.Name, "-mig-7g-80gb-0") {
				return fmt.Errorf("%s is among %d", d.Name, len(devices))
			}
		}
		return nil
	})
	ns := cluster.Namespace(t)
	ns.Create(t, harness.Pod("whole", dynamic, harness.Limit("nvidia.com/mig-7g.80gb", "1")))
	ns.WaitUnschedulable(t, "whole", "cannot allocate all claims")
	ns.Run(t, harness.Pod("a", dynamic, harness.Limit("nvidia.com/mig-4g.40gb", "1")),
		harness.Pod("b", dynamic, harness.Limit("nvidia.com/mig-3g.40gb", "1")))
	ns.Delete(t, "a", "b")
	harness.Eventually(t, "what the claims made to be gone, and nothing else", func(context.Context) error {
		var left []string
		for _, d := range cluster.MIGDevices(t, dynamic) {
			left = append(left, d.Profile)
		}
		if len(left) != 8 || slices.ContainsFunc(left, func(p string) bool { return p != "4g.40gb" }) {
			return fmt.Errorf("there are %v", left)
		}
		return nil
	})
	putBack()
	ns.WaitRunning(t, "whole")
	ns.Delete(t, "whole")
	nothingIsCut(t)
}

// Forty pods come and go on static instances, on instances that are made for them and on shares, while the plugins are
// killed. By what the driver has, each has what it asked for, no two have one, and nothing is left.
func TestMixedClusterWithKills(t *testing.T) {
	cluster.ServeMIG(t, dynamic, sim.Partitioning{Delay: 100 * time.Millisecond})
	ns := cluster.Namespace(t)
	ns.Template(t, "half", harness.Requests(harness.OfClass("3g.40gb.mig")))
	profiles := map[string]string{"small": "1g.10gb", "half": "3g.40gb"}
	anywhere := func(pod *corev1.Pod) *corev1.Pod {
		pod.Spec.NodeSelector, pod.Spec.NodeName, pod.Spec.Affinity = nil, "", nil
		return pod
	}
	counts := map[string]int{"small": 24, "half": 8, "share": 8}
	for name, pod := range map[string]*corev1.Pod{
		"small": anywhere(harness.Pod("small", dynamic, harness.Limit("nvidia.com/mig-1g.10gb", "1"))),
		"half":  anywhere(harness.Pod("half", dynamic, harness.FromTemplate("half"))),
		"share": harness.Asking("mem 3"),
	} {
		ns.Deploy(t, harness.Deployment(name, counts[name], pod))
	}
	running := func(ctx context.Context) (pods []corev1.Pod, all int, err error) {
		list, err := ns.Client.CoreV1().Pods(ns.Name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, 0, err
		}
		for _, pod := range list.Items {
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
				pods = append(pods, pod)
			}
		}
		return pods, len(list.Items), nil
	}
	waitRunning := func(want int) {
		t.Helper()
		harness.Eventually(t, fmt.Sprintf("%d pods to run", want), func(ctx context.Context) error {
			pods, all, err := running(ctx)
			if err == nil && len(pods) < want {
				err = fmt.Errorf("%d of %d run", len(pods), all)
			}
			return err
		})
	}
	// check compares all with what the driver has.
	check := func() {
		t.Helper()
		harness.Eventually(t, "each pod to have an instance of its own, and the driver no others",
			func(ctx context.Context) error {
				pods, all, err := running(ctx)
				if err != nil {
					return err
				}
				if len(pods) != all {
					return fmt.Errorf("%d of %d pods run", len(pods), all)
				}
				holders, onDynamic := map[string]string{}, 0
				var errs []error
				for _, pod := range pods {
					profile := profiles[pod.Labels["app"]]
					if profile == "" {
						continue
					}
					uuid, err := hasItsInstance(ctx, t, ns, &pod, profile)
					if err == nil && holders[uuid] != "" {
						err = fmt.Errorf("pods %s and %s have instance %s", holders[uuid], pod.Name, uuid)
					}
					holders[uuid] = pod.Name
					if pod.Spec.NodeName == dynamic {
						onDynamic++
					}
					errs = append(errs, err)
				}
				if there := len(cluster.MIGDevices(t, dynamic)); there != onDynamic {
					errs = append(errs, fmt.Errorf("the driver has %d instances, %d pods have one", there, onDynamic))
				}
				return errors.Join(errs...)
			})
	}
	waitRunning(10)
	again := cluster.KillPlugin(t, dynamic)
	waitRunning(20)
	again()
	staticAgain := cluster.KillPlugin(t, static)
	waitRunning(40)
	staticAgain()
	check()

	ns.Scale(t, "small", 4)
	again = cluster.KillPlugin(t, dynamic)
	ns.Scale(t, "half", 2)
	again()
	check()

	ns.Scale(t, "half", 8)
	again = cluster.KillPlugin(t, dynamic)
	ns.Scale(t, "small", 24)
	again()
	waitRunning(40)
	check()

	for name := range counts {
		ns.Scale(t, name, 0)
	}
	again = cluster.KillPlugin(t, dynamic)
	again()
	nothingIsCut(t)
}

// A monitor that has an instance open keeps it. The pod and its claim say so. When the pod is deleted by force, what
// overlaps the instance takes no claims, and nothing else is closed. It ends with the monitor.
func TestInstanceThatAMonitorHasOpen(t *testing.T) {
	cluster.ServeMIG(t, dynamic, sim.Partitioning{})
	ns := cluster.Namespace(t)
	ns.Run(t, harness.Pod("job", dynamic, harness.Limit("nvidia.com/mig-3g.40gb", "1")))
	made := cluster.MIGDevices(t, dynamic)
	if len(made) != 1 {
		t.Fatalf("there are %+v", made)
	}
	monitor := func(processes ...sim.Process) {
		cluster.KeepMachineChange(t, dynamic, func(s *sim.Spec) { s.GPUs[made[0].GPU].State.Processes = processes })
	}
	monitor(sim.Process{PID: 1, MemoryMiB: 20, Instance: &made[0].Start})
	t.Cleanup(func() { monitor() })
	pods := ns.Client.CoreV1().Pods(ns.Name)
	expect.NoError(t, pods.Delete(t.Context(), "job", metav1.DeleteOptions{}))
	ns.WaitPodEvent(t, "job", v1alpha1.ReasonUnprepareFailed, "a monitor does, such as DCGM")
	expect.NoError(t, pods.Delete(t.Context(), "job", *metav1.NewDeleteOptions(0)))
	end := int64(made[0].Start + 4)
	cluster.Devices(t, dynamic, "are closed as far as they overlap it", func(devices []resourceapi.Device) error {
		var errs []error
		for _, d := range devices {
			is := func(name resourceapi.QualifiedName) int64 { return *d.Attributes[name].IntValue }
			start := is(v1alpha1.AttrPlacementStart)
			overlaps := is(v1alpha1.AttrIndex) == int64(made[0].GPU) && start < end &&
				int64(made[0].Start) < start+is(v1alpha1.AttrPlacementSize)
			if closed := len(d.Taints) > 0; closed != overlaps {
				errs = append(errs, fmt.Errorf("%s: closed: %v", d.Name, closed))
			}
		}
		return errors.Join(errs...)
	})
	monitor()
	nothingIsCut(t)
	cluster.Devices(t, dynamic, "are all open", func(devices []resourceapi.Device) error {
		for _, d := range devices {
			if len(d.Taints) > 0 {
				return fmt.Errorf("%s is closed", d.Name)
			}
		}
		return nil
	})
}
