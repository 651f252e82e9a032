// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/kube"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// Cut is a GPU in MIG mode on a node whose instances are made for claims.
type Cut struct {
	GPU gpu.GPU
	// Profile is that of the instances that pods ask for.
	Profile   string
	Instances Instances
}

// Instances are those of the GPU, as its driver tells of them.
type Instances interface {
	// List has also GPU instances without a compute instance.
	List(context.Context) ([]gpu.Instance, error)
	// Destroy is gpu.ErrInstanceInUse where a program has the GPU instance open.
	Destroy(ctx context.Context, gi int) error
	// Nodes are the device nodes that a container of the instance has, and no others.
	Nodes(context.Context, gpu.Instance) ([]string, error)
}

// Relabel has the node hand out whole GPUs: it is for a node on which the driver does not run, and does not wait.
func (s *Session) Relabel(ctx context.Context) error { return s.label(ctx, "default") }

// TryInstances tries pods with instances of the GPU. None is there before, and none afterwards.
func (s *Session) TryInstances(ctx context.Context, c Cut) []report.Row {
	var rows []report.Row
	for _, step := range []Step{
		{Name: "the GPU's places are offered", Limit: medium, Run: c.offered},
		{Name: "pods with a MIG instance", Limit: long, Run: c.twoPods},
		{Name: "memory of an instance that is made again", Limit: long, Run: c.memoryAgain},
		{Name: "an instance is destroyed under a CUDA program", Limit: medium, Needs: []Need{needsGPU},
			Run: c.destroyedInUse},
		{Name: "gpu-kubelet-plugin is killed early on", Limit: 2 * long, Run: c.killed(someGI, noCI)},
		{Name: "gpu-kubelet-plugin is killed later", Limit: 2 * long, Run: c.killed(someCI, nothing)},
		{Name: "what is left on the GPU", Limit: medium, Run: c.nothingLeft},
	} {
		rows = append(rows, s.tryStep(ctx, step)...)
	}
	return rows
}

// offered waits for the places, and for the class by which pods ask for them.
func (c Cut) offered(ctx context.Context, r *run) error {
	prefix := fmt.Sprintf("gpu-%d-mig-", c.GPU.Index)
	if err := kube.Until(ctx, r.Patience, "the GPU's places in a ResourceSlice", func(ctx context.Context) error {
		devices, err := r.Kubectl.Devices(ctx, v1alpha1.DriverName)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(devices, func(d kube.Device) bool { return strings.HasPrefix(d.Name, prefix) }) {
			return fmt.Errorf("none of %d devices has a name that begins with %s", len(devices), prefix)
		}
		return nil
	}); err != nil {
		return err
	}
	class := deviceclasses.Profile(c.Profile).Name
	return kube.Until(ctx, r.Patience, "the DeviceClass "+class, func(ctx context.Context) error {
		_, err := r.Kubectl.Run(ctx, "get", "deviceclass", class)
		return err
	})
}

// instance is a request for an instance of the profile.
func (c Cut) instance() object {
	return object{"name": "gpu", "exactly": object{"deviceClassName": deviceclasses.Profile(c.Profile).Name}}
}

// list waits until there are so many instances, and fails where there are others.
func (c Cut) list(ctx context.Context, r *run, want int) (found []gpu.Instance, err error) {
	err = kube.Until(ctx, r.Patience, fmt.Sprintf("%d MIG instances on the GPU", want), func(ctx context.Context) error {
		if found, err = c.Instances.List(ctx); err != nil {
			return err
		}
		if len(found) != want {
			return fmt.Errorf("there are %d: %s", len(found), names(found))
		}
		return nil
	})
	return found, err
}

func names(instances []gpu.Instance) string {
	var all []string
	for _, i := range instances {
		all = append(all, strings.TrimSpace(i.Place()+" "+i.UUID))
	}
	return strings.Join(all, ", ")
}

// twoPods has two pods on the GPU at once: one with a claim, one in the words of NVIDIA's device plugin.
func (c Cut) twoPods(ctx context.Context, r *run) error {
	resource := deviceclasses.ProfileResource(c.Profile)
	if err := r.apply(ctx, template("instance", c.instance())); err != nil {
		return err
	}
	if err := r.start(ctx, fmt.Sprintf("pods with a claim for %s and with %s: 1", c.Profile, resource),
		pod{name: "claim", template: "instance"}, pod{name: "limit", limits: map[string]string{resource: "1"}}); err != nil {
		return err
	}
	found, err := c.list(ctx, r, 2)
	if err != nil {
		return err
	}
	var had []string
	for _, name := range []string{"claim", "limit"} {
		uuid, err := c.look(ctx, r, name, found)
		if err != nil {
			return err
		}
		had = append(had, uuid)
	}
	r.check("UUIDs of the two", "different", strings.Join(had, ", "), had[0] != had[1])
	for n, name := range []string{"claim", "limit"} {
		began := time.Now()
		if err := r.delete(ctx, name); err != nil {
			return err
		}
		if _, err := c.list(ctx, r, 1-n); err != nil {
			return err
		}
		r.check("the pod is deleted, and its instance goes", fmt.Sprintf("%d left", 1-n), fmt.Sprintf("%d left", 1-n), true)
		r.took(began)
	}
	return nil
}

var migNode = regexp.MustCompile(`(?m)^(/dev/nvidia[0-9]+|/dev/nvidia-caps/\S+) `)

// look checks what a pod's container has of its instance, and returns the instance's UUID.
func (c Cut) look(ctx context.Context, r *run, pod string, there []gpu.Instance) (string, error) {
	its, err := c.of(ctx, r, pod, there)
	if err != nil {
		return "", err
	}
	want, err := c.Instances.Nodes(ctx, its)
	if err != nil {
		return "", err
	}
	out, err := r.Kubectl.Exec(ctx, pod, "", "/gpu-probe", "devices")
	if err != nil {
		return "", err
	}
	var has []string
	for _, match := range migNode.FindAllStringSubmatch(out, -1) {
		has = append(has, match[1])
	}
	slices.Sort(want)
	slices.Sort(has)
	r.check("device nodes of GPUs and instances in the container", strings.Join(want, " "), strings.Join(has, " "),
		slices.Equal(want, has))
	answer, err := r.cuda(ctx, pod, "count")
	if err != nil {
		return "", err
	}
	r.check("CUDA devices in the container", "devices 1", answer, answer == "devices 1")
	v, err := r.meminfo(ctx, pod)
	if err != nil {
		return "", err
	}
	expected := fmt.Sprintf("about %d MiB, %d SMs", its.MemoryMiB, its.SMCount)
	if r.Simulated {
		// The stand-in for CUDA knows of no instances.
		r.seen("the instance, as a CUDA program sees it", expected, v.String())
		return its.UUID, nil
	}
	r.check("the instance, as a CUDA program sees it", expected, v.String(),
		v.totalMiB > its.MemoryMiB*9/10 && v.totalMiB <= its.MemoryMiB && v.sms == int64(its.SMCount))
	return its.UUID, nil
}

// of finds the instance that the status of a pod's claim names, which may come after the pod runs.
func (c Cut) of(ctx context.Context, r *run, pod string, there []gpu.Instance) (found gpu.Instance, err error) {
	err = kube.Until(ctx, r.Patience, "the instance in the status of the claim", func(ctx context.Context) error {
		claim, err := r.claim(ctx, pod)
		if err != nil {
			return err
		}
		uuids := claim.UUIDs()
		at := slices.IndexFunc(there, func(i gpu.Instance) bool { return len(uuids) == 1 && i.UUID == uuids[0] })
		if at < 0 {
			return fmt.Errorf("the claim of pod %s names %q, and the driver has %s", pod, uuids, names(there))
		}
		found = there[at]
		return nil
	})
	return found, err
}

// memoryAgain looks what is in memory of an instance that was destroyed and made again.
func (c Cut) memoryAgain(ctx context.Context, r *run) error {
	const mib = "2048"
	if err := r.apply(ctx, template("instance", c.instance())); err != nil {
		return err
	}
	var places []string
	for _, step := range []struct{ pod, command string }{{"first", "alloc"}, {"second", "leftover"}} {
		if err := r.start(ctx, "pod with a claim for "+c.Profile, pod{name: step.pod, template: "instance"}); err != nil {
			return err
		}
		found, err := c.list(ctx, r, 1)
		if err != nil {
			return err
		}
		places = append(places, found[0].Place())
		answer, err := r.cuda(ctx, step.pod, step.command, mib)
		if err != nil {
			return err
		}
		if step.command == "leftover" {
			r.seen(fmt.Sprintf("%s MiB that the pod before had filled, on %s", mib, strings.Join(places, " and ")),
				"0 bytes are not zero", answer)
			return nil
		}
		r.check(fmt.Sprintf("allocation of %s MiB, filled", mib), granted, answer, answer == granted)
		if err := r.delete(ctx, step.pod); err != nil {
			return err
		}
		if _, err := c.list(ctx, r, 0); err != nil {
			return err
		}
	}
	return nil
}
