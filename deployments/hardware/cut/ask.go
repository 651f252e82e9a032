// SPDX-License-Identifier: Apache-2.0

package cut

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/mig"
	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/report"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// asking has what is asked of a GPU in MIG mode. What the driver of the cluster relies on is a check. What is only
// documented, or assumed, is a check where it is so, and only told where it is not.
type asking struct {
	*GPU
	plan plan
	// double is what the test double says of the GPU that is most like this one.
	double []sim.MIGProfile
	rows   []report.Row
}

func (a *asking) check(what, expected, observed string, ok bool) {
	a.row(what, expected, observed, ok, report.Failed)
}

// compare is for what may be otherwise.
func (a *asking) compare(what, expected, observed string, same bool) {
	a.row(what, expected, observed, same, report.Seen)
}

func (a *asking) row(what, expected, observed string, ok bool, otherwise report.Result) {
	result := report.Passed
	if !ok {
		result = otherwise
	}
	a.rows = append(a.rows, report.Row{What: what, Granted: expected, Observed: observed, Result: result})
}

// Ask cuts the GPU, which is in MIG mode and has no instances, and has none afterwards. It returns the rows of the
// report and the profile of the smallest instances; none where nothing can be made of it.
func (g *GPU) Ask(ctx context.Context) (rows []report.Row, small string) {
	a := &asking{GPU: g}
	for _, question := range []struct {
		name string
		ask  func(context.Context) error
	}{
		{"profiles and placements with MIG on", a.profiles},
		{"an instance, made twice", a.twice},
		{"instances next to each other", a.beside},
		{"two profiles of one size", a.pair},
		{"an instance of each profile", a.each},
	} {
		if ctx.Err() != nil {
			a.rows = append(a.rows, report.Row{What: question.name, Observed: "the time of the run was over",
				Result: report.NotRun})
			continue
		}
		began := time.Now()
		err := errors.Join(question.ask(ctx), g.clear(ctx))
		if err == nil {
			continue
		}
		a.rows = append(a.rows, report.Row{What: question.name, Observed: err.Error(), Details: err.Error(),
			Result: report.Failed, Took: time.Since(began)})
		if len(a.plan.each) == 0 {
			return a.rows, ""
		}
	}
	return a.rows, a.plan.small.Name
}

// profiles compares what the driver tells with MIG on with what it told with MIG off, but for names: with MIG off it
// may tell none.
func (a *asking) profiles(ctx context.Context) error {
	device, err := a.device(ctx)
	if err != nil {
		return err
	}
	on, _, err := call(ctx, a.GPU, "reading its profiles", func() ([]sim.MIGProfile, nvml.Return) {
		return mig.Profiles(a.lib, device), nvml.SUCCESS
	})
	if err != nil {
		return err
	}
	if a.plan, err = newPlan(on); err != nil {
		return err
	}
	a.double = sim.MIGTable(mig.Nearest(on))
	differ := different(a.off, on)
	a.compare("profiles and placements with MIG on", fmt.Sprintf("the %d of before", len(a.off)),
		fmt.Sprintf("%d, %s", len(on), differ), differ == same)
	return nil
}

const same = "the same"

// different names the first profile that is not in both as it is in one.
func different(off, on []sim.MIGProfile) string {
	describe := func(p sim.MIGProfile) string {
		p.Name = ""
		return strings.TrimSpace(mig.Describe(p))
	}
	of := map[int]string{}
	for _, p := range off {
		of[p.Enum] = describe(p)
	}
	for _, p := range on {
		if was := of[p.Enum]; was != describe(p) {
			return fmt.Sprintf("profile %d is %s, it was %q", p.Enum, describe(p), was)
		}
		delete(of, p.Enum)
	}
	if len(of) > 0 {
		return fmt.Sprintf("%d are missing", len(of))
	}
	return same
}

// giOf is the id of an instance there, as the double has it.
func (a *asking) giOf(at place) string {
	for _, p := range a.double {
		if n := slices.Index(p.Starts, at.start); p.Enum == at.profile.Enum && n >= 0 {
			return fmt.Sprintf("id %d", p.GIs[n])
		}
	}
	return "any id"
}

// twice follows one instance step by step, and makes it again.
func (a *asking) twice(ctx context.Context) error {
	i, err := a.makeGPUInstance(ctx, a.plan.alone)
	if err != nil {
		return err
	}
	a.seenGI(i)
	if err := a.walk(ctx, "MIG devices that NVML lists while it has no compute instance", 0); err != nil {
		return err
	}
	if err := a.makeComputeInstance(ctx, i); err != nil {
		return err
	}
	a.check("its compute instance", "a UUID that begins with MIG-", fmt.Sprintf("%s, id %d; %s", i.uuid, i.ci, i.times),
		strings.HasPrefix(i.uuid, "MIG-"))
	if err := a.walk(ctx, "MIG devices that NVML lists then", 1); err != nil {
		return err
	}
	if err := a.capabilities(ctx, i); err != nil {
		return err
	}
	_, err = a.destroyPart(ctx, "destroying a GPU instance with a compute instance in it", i.gi.Destroy)
	a.refused("it is destroyed with its compute instance in it", err, nvml.ERROR_IN_USE)
	ids := gpu.InstanceID{GI: i.id, CI: i.ci}
	if err := a.unmake(ctx, i); err != nil {
		return err
	}
	left, err := a.List(ctx)
	if err != nil {
		return err
	}
	a.check("it is destroyed, idle", "no instance is left", fmt.Sprintf("%d are left; %s", len(left), i.times),
		len(left) == 0)
	again, err := a.make(ctx, a.plan.alone)
	if err != nil {
		return err
	}
	a.check("the same place again: UUID", "not "+i.uuid, again.uuid, again.uuid != i.uuid)
	idsAgain := gpu.InstanceID{GI: again.id, CI: again.ci}
	a.compare("the same place again: ids", ids.String(), idsAgain.String(), idsAgain == ids)
	return a.unmake(ctx, again)
}

// seenGI has the id of a GPU instance.
func (a *asking) seenGI(i *instance) {
	expected, observed := a.giOf(i.at), fmt.Sprintf("id %d", i.id)
	a.compare("GPU instance "+i.at.String(), expected, observed+"; "+i.times, expected == observed)
	a.rows[len(a.rows)-1].Took = i.took
}

func (a *asking) walk(ctx context.Context, what string, want int) error {
	n, err := a.walked(ctx)
	a.check(what, fmt.Sprint(want), fmt.Sprint(n), n == want)
	return err
}

// refused checks what the driver answers to what it must not do.
func (a *asking) refused(what string, err error, want nvml.Return) {
	observed := "it was done"
	if err != nil {
		observed = err.Error()
	}
	a.check(what, want.Error(), observed, errors.Is(err, want))
}

// capabilities compares what the kernel module shows of an instance with its table, and looks for the device nodes,
// which nvidia-modprobe makes.
func (a *asking) capabilities(ctx context.Context, i *instance) error {
	minor, err := a.minor(ctx)
	if err != nil {
		return err
	}
	table, err := os.ReadFile(filepath.Join(a.root, "proc/driver/nvidia-caps/mig-minors"))
	if err != nil {
		return fmt.Errorf("read the kernel module's table of capabilities: %w", err)
	}
	lines := strings.Split(string(table), "\n")
	for _, ci := range []int{gpu.NoCI, i.ci} {
		name := capability(minor, i.id, ci)
		n, err := a.capabilityMinor(name)
		observed := fmt.Sprintf("DeviceFileMinor: %d", n)
		if err != nil {
			observed = err.Error()
		}
		line := "no line"
		if at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, name+" ") }); at >= 0 {
			line = lines[at]
		}
		a.check("capability "+name, "mig-minors: "+line, observed, line == fmt.Sprintf("%s %d", name, n))
		node := fmt.Sprintf("dev/nvidia-caps/nvidia-cap%d", n)
		if _, err := os.Stat(filepath.Join(a.root, node)); err != nil {
			node += " is not there"
		}
		a.rows = append(a.rows, report.Row{What: "device node on the machine", Observed: "/" + node, Result: report.Seen})
	}
	return nil
}

// beside makes instances of several profiles in places, and asks for places that are taken.
func (a *asking) beside(ctx context.Context) error {
	made, err := a.makeAll(ctx, append([]place{a.plan.alone}, a.plan.beside...))
	if err != nil {
		return err
	}
	_, err = a.makeGPUInstance(ctx, a.plan.alone)
	a.refused(fmt.Sprintf("another %s, where one is", a.plan.alone), err, nvml.ERROR_INSUFFICIENT_RESOURCES)
	_, err = a.makeGPUInstance(ctx, a.plan.overlapping)
	a.refused(fmt.Sprintf("a %s, where a %s is", a.plan.overlapping, a.plan.alone.profile.Name), err,
		nvml.ERROR_INSUFFICIENT_RESOURCES)
	return a.endAll(ctx, made)
}

// pair shows which ids two profiles of one size have side by side.
func (a *asking) pair(ctx context.Context) error {
	made, err := a.makeAll(ctx, a.plan.pair)
	if err != nil {
		return err
	}
	return a.endAll(ctx, made)
}

// each makes an instance of each profile, one after the other.
func (a *asking) each(ctx context.Context) error {
	var errs []error
	for _, at := range a.plan.each {
		if ctx.Err() != nil {
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
		made, err := a.makeAll(ctx, []place{at})
		if err == nil {
			err = a.endAll(ctx, made)
		}
		if err != nil {
			errs = append(errs, err, a.clear(ctx))
		}
	}
	return errors.Join(errs...)
}

func (a *asking) makeAll(ctx context.Context, places []place) ([]*instance, error) {
	var made []*instance
	for _, at := range places {
		i, err := a.make(ctx, at)
		if err != nil {
			return nil, err
		}
		made = append(made, i)
	}
	return made, nil
}

// endAll destroys instances, and has a row for each: its id, and how long all took.
func (a *asking) endAll(ctx context.Context, made []*instance) error {
	for _, i := range made {
		if err := a.unmake(ctx, i); err != nil {
			return err
		}
		a.seenGI(i)
	}
	return nil
}
