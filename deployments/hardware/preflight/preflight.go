// SPDX-License-Identifier: Apache-2.0

// Package preflight decides whether a machine can be used as it is, before anything is
// changed on it.
package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// Process is a program that uses a GPU.
type Process struct {
	PID     int
	Name    string
	UsedMiB int64
}

// GPU is what has to be known of a GPU beforehand.
type GPU struct {
	Index     int
	Name      string
	Processes []Process
}

// Facts are what was found out about the machine.
type Facts struct {
	UID int
	// Earlier is the directory of a cluster of an earlier run; empty if there is none.
	Earlier string
	// Kubelets are the processes of a cluster that the machine is already part of.
	Kubelets []Process
	// FreeMiB is what is free in Dir, NeededMiB what a run takes there.
	Dir                string
	FreeMiB, NeededMiB int64
	Cgroups            Cgroups
	// Namespaces is why processes cannot have namespaces of their own, nil if they can.
	Namespaces error
	// Driver is why the driver cannot be used, nil if it can; GPUs are those it lists,
	// LeftOut those that it lists and that cannot be used, each with its reason.
	Driver  error
	GPUs    []GPU
	LeftOut []string
	// Cut is why the GPU that may be cut into MIG instances must not be; nil if there is no such reason.
	Cut error
}

// Problems are the reasons not to start, a line each, with what to do about it.
func Problems(f Facts) []string {
	if f.UID != 0 {
		// All else would only be a consequence.
		return []string{fmt.Sprintf("uid %d may not make namespaces, mounts and control groups: run it as root", f.UID)}
	}
	var problems []string
	add := func(format string, args ...any) {
		problems = append(problems, strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " "))
	}
	if f.Earlier != "" {
		add("the cluster of an earlier run is still up in %s: end it with ./run down", f.Earlier)
	}
	for _, k := range f.Kubelets {
		add("a kubelet runs on this machine (process %d), whose pods may use the GPUs at any time: stop it first", k.PID)
	}
	if f.FreeMiB < f.NeededMiB {
		add(
			"%d MiB are free in %s, a run takes %d: make room, or name another directory by GPU_BUNDLE_WORK",
			f.FreeMiB,
			f.Dir,
			f.NeededMiB,
		)
	}
	if f.Namespaces != nil {
		add("no namespaces can be made here (%v): use the machine itself, or a privileged container", f.Namespaces)
	}
	problems = append(problems, f.Cgroups.problems()...)
	switch {
	case f.Driver != nil:
		add("%v", f.Driver)
	case len(f.GPUs) == 0 && len(f.LeftOut) > 0:
		add("no GPU can be used: %s", strings.Join(f.LeftOut, "; "))
	case len(f.GPUs) == 0:
		add("the NVIDIA driver lists no GPU")
	}
	if f.Cut != nil {
		add("%v", f.Cut)
	}
	for _, g := range f.GPUs {
		if len(g.Processes) > 0 {
			add("GPU %d (%s) is in use by %s: wait until they end, or end them", g.Index, g.Name, enumerate(g.Processes))
		}
	}
	return problems
}

func enumerate(processes []Process) string {
	var names []string
	for _, p := range processes {
		names = append(names, fmt.Sprintf("process %d %s with %d MiB", p.PID, p.Name, p.UsedMiB))
	}
	return strings.Join(names, ", ")
}

// Cgroups are the machine's control groups.
type Cgroups struct {
	// V2 is where a tree of v2 with controllers is mounted, V1 the controllers of v1.
	V2 string
	V1 []string
	// Controllers are those of the v2 tree.
	Controllers []string
	// ReadOnly says that no group can be made.
	ReadOnly bool
	// Crowded says that processes sit in a v2 group that is not the machine's root, so that
	// its controllers cannot be handed down.
	Crowded bool
}

// Version is how people call it.
func (c Cgroups) Version() string {
	switch {
	case c.V2 != "":
		return "v2"
	case len(c.V1) > 0:
		return "v1"
	}
	return "none"
}

// neededV1 and neededV2 are the controllers without which the kubelet does not start.
var (
	neededV1 = []string{"cpu", "cpuacct", "cpuset", "memory"}
	neededV2 = []string{"cpu", "cpuset", "memory", "pids"}
)

func (c Cgroups) problems() []string {
	have, needed := c.Controllers, neededV2
	switch c.Version() {
	case "none":
		return []string{"no control groups are mounted: mount cgroup2 on /sys/fs/cgroup"}
	case "v1":
		have, needed = c.V1, neededV1
	}
	var missing []string
	for _, controller := range needed {
		if !slices.Contains(have, controller) {
			missing = append(missing, controller)
		}
	}
	switch {
	case len(missing) > 0 && c.V2 == "":
		return []string{
			fmt.Sprintf("control groups v1 without %s, which the kubelet needs: mount them, or boot with v2 "+
				"(systemd.unified_cgroup_hierarchy=1)", strings.Join(missing, ", ")),
		}
	case len(missing) > 0:
		return []string{
			fmt.Sprintf(
				"control groups v2 without the controllers %s, which the kubelet needs: have them in %s/cgroup.controllers",
				strings.Join(missing, ", "),
				c.V2,
			),
		}
	case c.ReadOnly:
		return []string{"control groups cannot be made: they are mounted read-only, as in a container without privileges"}
	case c.Crowded:
		return []string{
			fmt.Sprintf(
				"processes sit in this container's own control group %s, so it can hand no controllers down: "+
					"move them to a group below it, or use the machine itself",
				c.V2,
			),
		}
	}
	return nil
}
