// SPDX-License-Identifier: Apache-2.0

// Package bundle is what kubectl inspect cgpu bundle puts into an archive: what a report of a
// bug needs, and nothing that is secret. Objects are not copied less what is known to be
// secret, but created again of what is known not to be. The package is pure.
package bundle

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// Input is what was read of a cluster.
type Input struct {
	// Version is that of the program, Now when it looked.
	Version string
	Now     time.Time
	// Snapshot is what the doctor looks at, Table what the table is made of.
	Snapshot  *doctor.Snapshot
	Table     inspect.Input
	Templates []*resourceapi.ResourceClaimTemplate
	Rules     []*resourceapi.DeviceTaintRule
	// Events are those that the driver wrote.
	Events []*corev1.Event
	// ConfigMaps are the driver's, beside those of the snapshot.
	ConfigMaps []*corev1.ConfigMap
	Logs       []Log
	// Missing say what could not be read.
	Missing []string
}

// Log is what a container of the driver wrote.
type Log struct {
	Namespace, Pod, Container string
	// Previous says that it is that of the container before the last restart.
	Previous bool
	Text     []byte
	// Cut says that only its end is there.
	Cut bool
}

// Name is that of the log's file.
func (l *Log) Name() string {
	name := l.Pod + "_" + l.Container
	if l.Previous {
		name += ".previous"
	}
	return "logs/" + l.Namespace + "/" + name + ".log"
}

// File is one of the archive.
type File struct {
	Name string
	Data []byte
}

// Files are those of the archive, the README first.
func Files(in Input) ([]File, error) {
	s := in.Snapshot
	driver := DriverOf(s)
	f := &files{}
	f.yaml("versions.yaml", map[string]any{"kubectl-inspect-cgpu": in.Version, "kubernetes": s.ServerVersion,
		"images": driver.images(s.Pods), "time": in.Now.UTC().Format(time.RFC3339)})
	f.yaml("nodes.yaml", each(s.Nodes, nodeOf))
	f.yaml("resourceslices.yaml", each(s.Slices, sliceOf))
	f.yaml("deviceclasses.yaml", each(s.Classes, classOf))
	f.yaml("devicetaintrules.yaml", each(in.Rules, ruleOf))
	f.yaml("resourceclaims.yaml", each(s.Claims, claimOf))
	f.yaml("resourceclaimtemplates.yaml", each(in.Templates, templateOf))
	f.yaml("pods.yaml", each(those(s.Pods, driver.concerns), podOf))
	f.yaml("events.yaml", each(in.Events, eventOf))
	f.yaml("driver/daemonsets.yaml", each(those(s.DaemonSets, func(d *appsv1.DaemonSet) bool {
		return driver.Owns(d, &d.Spec.Template.Spec)
	}), daemonSetOf))
	f.yaml("driver/deployments.yaml", each(those(s.Deployments, func(d *appsv1.Deployment) bool {
		return driver.Owns(d, &d.Spec.Template.Spec)
	}), deploymentOf))
	f.yaml("driver/configmaps.yaml", each(distinct(slices.Concat(s.ConfigMaps, in.ConfigMaps)), configMapOf))
	f.yaml("driver/policies.yaml", policiesOf(s))
	report := doctor.Examine(s)
	f.print("doctor.txt", func(out *bytes.Buffer) error { return report.Print(out) })
	f.print("doctor.json", func(out *bytes.Buffer) error { return text.JSON(out, report) })
	in.Table.Nodes = withoutAddresses(in.Table.Nodes)
	table := inspect.New(in.Table)
	f.print("inspect.txt", func(out *bytes.Buffer) error {
		if err := inspect.Summary(out, table, inspect.Style{Wide: true}); err != nil {
			return err
		}
		out.WriteString("\n")
		if err := inspect.Details(out, table, inspect.Style{Wide: true}); err != nil {
			return err
		}
		for _, note := range table.Notes {
			out.WriteString(note + "\n")
		}
		return nil
	})
	f.print("inspect.json", func(out *bytes.Buffer) error { return text.JSON(out, table) })
	for i := range in.Logs {
		f.all = append(f.all, File{in.Logs[i].Name(), in.Logs[i].Text})
	}
	if f.err != nil {
		return nil, f.err
	}
	return append([]File{{"README.txt", []byte(text.Printable(readme(in, f.all)))}}, f.all...), nil
}

// files are put together.
type files struct {
	all []File
	err error
}

func (f *files) yaml(name string, object any) {
	data, err := text.YAML(object)
	if err != nil && f.err == nil {
		f.err = fmt.Errorf("write %s: %w", name, err)
	}
	f.all = append(f.all, File{name, data})
}

func (f *files) print(name string, print func(*bytes.Buffer) error) {
	var printed bytes.Buffer
	if err := print(&printed); err != nil && f.err == nil {
		f.err = fmt.Errorf("write %s: %w", name, err)
	}
	f.all = append(f.all, File{name, []byte(text.Printable(printed.String()))})
}

func each[T, U any](objects []T, of func(T) U) []U {
	out := make([]U, 0, len(objects))
	for _, object := range objects {
		out = append(out, of(object))
	}
	return out
}

func those[T any](objects []T, are func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(objects), func(o T) bool { return !are(o) })
}

// distinct leaves out what is there twice.
func distinct(configMaps []*corev1.ConfigMap) []*corev1.ConfigMap {
	seen := map[string]bool{}
	return slices.DeleteFunc(configMaps, func(c *corev1.ConfigMap) bool {
		key := c.Namespace + "/" + c.Name
		was := seen[key]
		seen[key] = true
		return was
	})
}

// images are those that the driver's pods run, and in how many containers.
func (d Driver) images(pods []*corev1.Pod) map[string]int {
	out := map[string]int{}
	for _, pod := range pods {
		if !d.Owns(pod, &pod.Spec) {
			continue
		}
		for _, c := range pod.Status.ContainerStatuses {
			out[c.Image+" "+c.ImageID]++
		}
	}
	return out
}

// readme says what is in the archive, and what is not.
func readme(in Input, all []File) string {
	var text strings.Builder
	fmt.Fprintf(&text, "What a report of a bug in dra-driver-gpushare needs, read %s by kubectl-inspect-cgpu %s.\n\n",
		in.Now.UTC().Format(time.RFC3339), in.Version)
	text.WriteString("Inside:\n")
	for _, f := range all {
		fmt.Fprintf(&text, "  %-34s %d bytes\n", f.Name, len(f.Data))
	}
	text.WriteString(`
Left out: Secrets were not read. Of nodes there are labels, taints, conditions, versions and amounts, and no addresses. Of pods
that use or ask for GPUs there are names, claims, resources, where they are and their state: no commands, arguments,
environment, volumes, images, nor labels and annotations of others. Of the driver's own DaemonSets and Deployments the
commands, and values of environment variables, are there, unless their name sounds secret. Annotations are left out, but for the
driver's and ACK's. ConfigMaps are the driver's. Logs are those of the driver's containers.

Names of nodes, namespaces, pods, claims and images are in it, as are labels of nodes. Look through it before you
publish it.
`)
	var cut []string
	for i := range in.Logs {
		if in.Logs[i].Cut {
			cut = append(cut, in.Logs[i].Name())
		}
	}
	for _, said := range []struct {
		what  string
		lines []string
	}{{"Could not be read", slices.Concat(in.Missing, missing(in.Snapshot))}, {"Only the end is there of", cut}} {
		if len(said.lines) == 0 {
			continue
		}
		fmt.Fprintf(&text, "\n%s:\n", said.what)
		for _, line := range said.lines {
			text.WriteString("- " + line + "\n")
		}
	}
	return text.String()
}

func missing(s *doctor.Snapshot) []string {
	var out []string
	for _, what := range s.Unread {
		out = append(out, what+": you may not list them")
	}
	for _, what := range s.Unserved {
		out = append(out, what+": this Kubernetes does not serve them")
	}
	return out
}

// pick are those of some labels or annotations whose keys are of the driver or of ACK.
func pick(all map[string]string) map[string]string {
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(key, _ string) bool { return !known(key) })
	if len(out) == 0 {
		return nil
	}
	return out
}
