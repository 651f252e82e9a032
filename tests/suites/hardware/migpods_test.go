// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// migGroups read how the GPUs could be cut into MIG instances, and cut the one that may be. That comes last, with none
// of the driver's programs on the node while the mode is switched: whoever has a GPU open can keep it from changing.
func migGroups(t *testing.T) []group {
	t.Helper()
	groups := []group{{name: "MIG, read only", trials: []trial{{name: "how the GPUs could be cut", run: migRead}}}}
	all := here.machine.All()
	at := slices.IndexFunc(all, func(g gpu.GPU) bool { return g.UUID == here.cut })
	if at < 0 {
		return groups
	}
	l := &lab{GPU: all[at], why: "MIG mode is not on", partitions: here.partitions()}
	hide := here.Label(t, here.node, "type")
	on := []need{l.needsMode}
	return append(groups, group{name: fmt.Sprintf("MIG GPU %d", l.Index), trials: []trial{
		{name: "the driver lets go of the GPUs", run: func(s *step) { withdraw(s, hide) }},
		{name: "the mode", run: l.switchOn},
		{name: "profiles and placements with MIG on", needs: on, run: l.tellProfiles},
		{name: "an instance, made twice", needs: on, run: l.cleared(l.twice)},
		{name: "instances of all profiles", needs: on, run: l.cleared(l.packed)},
		{name: "the driver makes MIG instances for claims", needs: on, run: func(s *step) {
			// Until all tests have ended.
			here.Set(t, "gpu-kubelet-plugin", map[string]string{"MIG_INSTANCES": "dynamic"})
			hide("")
			here.Plugin(s.T, here.node)
		}},
		{name: "the GPU's places are offered", needs: on, run: l.cleared(l.offered)},
		{name: "pods with a MIG instance", needs: on, run: l.cleared(l.twoPods)},
		{name: "memory of an instance that is made again", needs: on, run: l.cleared(l.memoryAgain)},
		{name: "an instance is destroyed under a CUDA program", needs: []need{l.needsMode, needsGPU},
			run: l.cleared(l.destroyedInUse)},
		{name: "gpu-kubelet-plugin is killed early on", needs: on, run: l.cleared(l.killed(someGI, noCI))},
		{name: "gpu-kubelet-plugin is killed later", needs: on, run: l.cleared(l.killed(someCI, nothing))},
	}})
}

// migRead tells how the GPUs could be cut. It changes nothing, and works with MIG off.
func migRead(s *step) {
	for _, g := range here.machine.All() {
		if !g.MIG.Capable {
			continue
		}
		profiles, err := here.partitions().Profiles(s.Context(), g.UUID)
		if err != nil {
			s.seen(fmt.Sprintf("GPU %d: profiles", g.Index), "", err.Error())
		}
		for _, p := range profiles {
			s.seen(fmt.Sprintf("GPU %d: profile %d", g.Index, p.Kind.ProfileID), "", describe(p))
		}
	}
}

// withdraw takes the node's part of the driver away, by the label that its DaemonSets leave nodes out for.
func withdraw(s *step, hide func(string)) {
	s.Helper()
	here.setMode("default")
	hide("virtual-kubelet")
	harness.Eventually(s.T, "the driver's pods to leave the node", func(ctx context.Context) error {
		pods, err := here.Client.CoreV1().Pods(harness.PluginNamespace).List(ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/component in (gpu-kubelet-plugin, gpu-mps-supervisor)",
			FieldSelector: "spec.nodeName=" + here.node})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d are there", len(pods.Items))
		}
		return err
	})
}

// offered waits for the GPU's places, and for the class by which pods ask for them.
func (l *lab) offered(s *step) {
	prefix := fmt.Sprintf("gpu-%d-mig-", l.Index)
	here.Devices(s.T, here.node, "have the GPU's places", func(devices []resourceapi.Device) error {
		if !slices.ContainsFunc(devices, func(d resourceapi.Device) bool { return strings.HasPrefix(d.Name, prefix) }) {
			return fmt.Errorf("none of %d devices has a name that begins with %s", len(devices), prefix)
		}
		return nil
	})
	class := deviceclasses.ProfileClassName(l.small.Kind.Profile)
	harness.Becomes(s.T, here.Client.ResourceV1().DeviceClasses(), class, "the DeviceClass "+class,
		func(*resourceapi.DeviceClass) error { return nil })
}

// claiming is a pod with a claim for an instance of the smallest profile.
func (l *lab) claiming(s *step, name string) pod {
	s.Helper()
	s.template(name, harness.Exactly(&resourceapi.ExactDeviceRequest{
		DeviceClassName: deviceclasses.ProfileClassName(l.small.Kind.Profile)}))
	return pod{name: name, template: name}
}

// claims starts such a pod.
func (l *lab) claims(s *step, name string) {
	s.Helper()
	s.start("pod with a claim for "+l.small.Kind.Profile, l.claiming(s, name))
}

// await waits until the GPU has so many instances, and no others.
func (l *lab) await(s *step, want int) (found []gpu.Instance) {
	s.Helper()
	harness.Eventually(s.T, fmt.Sprintf("%d MIG instances on the GPU", want), func(ctx context.Context) error {
		var err error
		if found, err = l.partitions.Instances(ctx, l.UUID); err == nil && len(found) != want {
			err = fmt.Errorf("there are %d: %s", len(found), instances(found))
		}
		return err
	})
	return found
}

// twoPods has two pods on the GPU at once: one with a claim, one in the words of NVIDIA's device plugin.
func (l *lab) twoPods(s *step) {
	resource := deviceclasses.ProfileResource(l.small.Kind.Profile)
	s.start(fmt.Sprintf("pods with a claim for %s and with %s: 1", l.small.Kind.Profile, resource),
		l.claiming(s, "claim"), pod{name: "limit", limits: []string{resource, "1"}})
	found := l.await(s, 2)
	first, second := l.look(s, "claim", found), l.look(s, "limit", found)
	s.check("UUIDs of the two", "different", first+", "+second, first != second)
	for n, name := range []string{"claim", "limit"} {
		s.clock()
		s.ns.Delete(s.T, name)
		s.came("the pod is deleted, and its instance goes", fmt.Sprintf("%d left", len(l.await(s, 1-n))))
	}
}

var migNode = regexp.MustCompile(`(?m)^(/dev/nvidia[0-9]+|/dev/nvidia-caps/\S+) `)

// look checks what a pod's container has of its instance, and returns the instance's UUID.
func (l *lab) look(s *step, pod string, there []gpu.Instance) string {
	s.Helper()
	its := l.of(s, pod, there)
	out, err := s.ns.Exec(s.T, pod, "main", "devices")
	s.must(err)
	var has []string
	for _, match := range migNode.FindAllStringSubmatch(out, -1) {
		has = append(has, match[1])
	}
	slices.Sort(has)
	want := l.nodes(s, its)
	s.same("device nodes of GPUs and instances in the container", strings.Join(want, " "), strings.Join(has, " "))
	s.same("CUDA devices in the container", "devices 1", s.cuda(pod, "count"))
	const what = "the instance, as a CUDA program sees it"
	v, expected := s.meminfo(pod), fmt.Sprintf("about %d MiB, %d SMs", its.MemoryMiB, its.SMCount)
	if here.simulated != "" {
		// The stand-in for CUDA knows of no instances.
		s.seen(what, expected, v.String())
	} else {
		s.check(what, expected, v.String(),
			v.totalMiB > its.MemoryMiB*9/10 && v.totalMiB <= its.MemoryMiB && v.sms == int64(its.SMCount))
	}
	return its.UUID
}

// of finds the instance that the status of a pod's claim names, which may come after the pod runs.
func (l *lab) of(s *step, pod string, there []gpu.Instance) (found gpu.Instance) {
	s.Helper()
	harness.Eventually(s.T, "the instance in the status of the claim", func(context.Context) error {
		uuid, err := harness.MIGInstance(s.ns.ClaimOf(s.T, pod))
		at := slices.IndexFunc(there, func(i gpu.Instance) bool { return i.UUID == uuid })
		if err == nil && at < 0 {
			err = fmt.Errorf("it names %s, and the driver has %s", uuid, instances(there))
		}
		if err == nil {
			found = there[at]
		}
		return err
	})
	return found
}

// memoryAgain looks what is in memory of an instance that was destroyed and made again.
func (l *lab) memoryAgain(s *step) {
	const mib = 2048
	l.claims(s, "first")
	first := l.await(s, 1)[0].Place()
	s.allocates("first", mib, granted)
	s.ns.Delete(s.T, "first")
	l.await(s, 0)
	l.claims(s, "second")
	second := l.await(s, 1)[0].Place()
	s.seen(fmt.Sprintf("%d MiB that the pod before had filled, on %s and %s", mib, first, second), "0 bytes are not zero",
		s.cuda("second", "leftover", fmt.Sprint(mib)))
}

// destroyedInUse asks for what must be refused: a program uses the instance.
func (l *lab) destroyedInUse(s *step) {
	l.claims(s, "busy")
	found := l.await(s, 1)
	// From when it is ready it has a context on the instance.
	s.running("busy", "spin", "10").goOn()
	err := l.partitions.Destroy(s.Context(), l.UUID, found[0].GI)
	s.check("its instance is destroyed while a CUDA program runs", gpu.ErrInstanceInUse.Error(), fmt.Sprint(err),
		errors.Is(err, gpu.ErrInstanceInUse))
}

// moment is when the plugin is killed: as soon as the GPU's instances are like that.
type moment struct {
	what string
	is   func(instances, computed int) bool
}

var (
	someGI  = moment{"as soon as the GPU instance is there", func(n, _ int) bool { return n > 0 }}
	someCI  = moment{"as soon as the compute instance is there", func(_, n int) bool { return n > 0 }}
	noCI    = moment{"as soon as the compute instance is gone", func(_, n int) bool { return n == 0 }}
	nothing = moment{"as soon as the GPU instance is gone", func(n, _ int) bool { return n == 0 }}
)

// killed kills the plugin while it makes an instance, and again while it destroys it. In the end the pod runs and has
// the only instance, and then nothing is left.
func (l *lab) killed(making, destroying moment) func(*step) {
	return func(s *step) {
		claiming := l.claiming(s, "killed")
		s.clock()
		l.killWhen(s, making, func() { s.create(claiming) })
		s.ns.WaitRunning(s.T, "killed")
		found := l.await(s, 1)
		l.of(s, "killed", found)
		s.check("gpu-kubelet-plugin is killed "+making.what, "the pod runs, with the only instance", instances(found), true)
		s.clock()
		l.killWhen(s, destroying, func() {
			s.must(here.Client.CoreV1().Pods(s.ns.Name).Delete(s.Context(), "killed", metav1.DeleteOptions{}))
		})
		s.ns.Delete(s.T, "killed")
		l.await(s, 0)
		s.came("gpu-kubelet-plugin is killed "+destroying.what, "pod and instance are gone")
	}
}

// killWhen does something, kills the plugin at a moment of it, and waits until its successor serves.
func (l *lab) killWhen(s *step, when moment, do func()) {
	s.Helper()
	plugin := here.Plugin(s.T, here.node)
	victim := here.PluginProcess(s.T, plugin)
	do()
	// The driver takes a second for an instance, so the moment lasts longer than it is until the next look.
	const look = 10 * time.Millisecond
	var found []gpu.Instance
	if err := wait.PollUntilContextTimeout(s.Context(), look, harness.Patience, true,
		func(ctx context.Context) (is bool, err error) {
			computed := 0
			found, err = l.partitions.Instances(ctx, l.UUID)
			for _, i := range found {
				if i.UUID != "" {
					computed++
				}
			}
			return err == nil && when.is(len(found), computed), nil
		}); err != nil {
		s.Fatalf("waited to kill the plugin %s, and the instances are %q: %v", when.what, instances(found), err)
	}
	s.must(victim.Kill())
	here.WaitPluginAgain(s.T, plugin)
}
