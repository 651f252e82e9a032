// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// registered looks for nodes that should publish devices and do not.
func registered(s *Snapshot) []Finding {
	if s.cannotRead("pods", "nodes", "daemonsets.apps", "resourceslices.resource.k8s.io") {
		return nil
	}
	published, moves, told := devices.Published(s.Slices), s.migration(), s.told(inspect.WithholdsAll)
	// A node without the NVIDIA driver publishes nothing, and is in order where it is to have no GPUs.
	unread := inspect.Unread(s.Slices, s.NodeEvents)
	runs := map[string]bool{}
	for _, pod := range s.of(plugin) {
		runs[pod.Spec.NodeName] = runs[pod.Spec.NodeName] || isReady(pod)
	}
	var out []Finding
	for _, node := range s.Nodes {
		offered, publishes := published[node.Name]
		label, asks := asked(node)
		labelled := asks && !moves.leaves(node)
		describe := "kubectl describe node " + node.Name + ": its Events say why"
		add := func(level Level, text, do string) {
			out = append(out, Finding{Level: level, Object: "node/" + node.Name, Text: text, Do: do})
		}
		switch {
		case len(offered) > 0 && !runs[node.Name]:
			add(Error, "it publishes GPUs, and no pod of "+plugin+" is ready there: new pods on it do not start",
				"kubectl get pods -A -l "+labelComponent+"="+plugin+" --field-selector spec.nodeName="+node.Name)
		case runs[node.Name] && !publishes && !slices.Contains(unread, node.Name) && !s.cannotRead("events"):
			add(Error, plugin+" runs there and has published nothing", describe+", and so does the log of its pod")
		case len(offered) > 0:
		case moves.unknown && (asks || node.Labels[ack.NodeLabelModel] != "") && len(ofDevicePlugins(node)) == 0:
			add(Note, "it offers no GPUs"+because(told[node.Name])+"; whether it is left to device plugins is not known "+
				"without the ConfigMap of "+plugin, describe)
		case labelled && (publishes || runs[node.Name]):
			add(Error, "it has the label "+ack.NodeLabelSchedule+"="+label+" and offers no GPUs"+because(told[node.Name]),
				describe)
		case labelled:
			add(Error, "it has the label "+ack.NodeLabelSchedule+"="+label+", and no pod of "+plugin+" is ready there",
				"look at the DaemonSet's nodeSelector and affinity, and at its pod on the node")
		case others(node, moves) || !publishes && !runs[node.Name]:
		case node.Labels[ack.NodeLabelModel] != "":
			add(Error, "it has the label "+ack.NodeLabelModel+"="+node.Labels[ack.NodeLabelModel]+" and offers no GPUs"+
				because(told[node.Name]), describe)
		case publishes && told[node.Name] != nil:
			add(Error, "it offers no GPUs"+because(told[node.Name]), describe)
		}
	}
	return out
}

// others reports whether a node's GPUs are, or may be, for others to offer.
func others(node *corev1.Node, moves migration) bool {
	return moves.leaves(node) || node.Labels[ack.NodeLabelSchedule] == mode.LabelDisabled || ofOtherDriver(node) ||
		len(ofDevicePlugins(node)) > 0
}

// holdsFor is for how long an Event says what still is: the plugin repeats that every half an hour.
const holdsFor = 35 * time.Minute

// told are the last Warnings of nodes for some reasons, of those that still hold.
func (s *Snapshot) told(is func(reason string) bool) map[string]*corev1.Event {
	last := map[string]*corev1.Event{}
	for i := range s.NodeEvents {
		e := &s.NodeEvents[i]
		before := last[e.InvolvedObject.Name]
		if e.Type == corev1.EventTypeWarning && is(e.Reason) && s.Now.Sub(written(e)) < holdsFor &&
			(before == nil || written(before).Before(written(e))) {
			last[e.InvolvedObject.Name] = e
		}
	}
	return last
}

// written is when an Event was last written, by the clock of the API server; where that is not known, by the node's.
func written(e *corev1.Event) time.Time {
	var last time.Time
	for _, by := range e.ManagedFields {
		if by.Time != nil && by.Time.After(last) {
			last = by.Time.Time
		}
	}
	if last.IsZero() {
		return e.LastTimestamp.Time
	}
	return last
}

// because is what an Event says, behind what follows from it.
func because(e *corev1.Event) string {
	if e == nil {
		return ""
	}
	return ": " + e.Reason + ": " + e.Message
}

// modes compares what nodes are labelled with what they offer.
func modes(s *Snapshot) []Finding {
	published := devices.Published(s.Slices)
	ignored := s.told(func(reason string) bool { return reason == v1alpha1.ReasonInvalidLabel })
	var out []Finding
	for _, node := range s.Nodes {
		offered := published[node.Name]
		if len(offered) == 0 {
			continue
		}
		add := func(level Level, text, do string) {
			out = append(out, Finding{Level: level, Object: "node/" + node.Name, Text: text, Do: do})
		}
		label, labelled := node.Labels[ack.NodeLabelSchedule]
		asked, err := mode.FromLabels(node.Labels, mode.Asked{})
		if err != nil && label != mode.LabelDisabled { // which asks for no mode
			add(Error, err.Error()+": the node keeps its mode", "kubectl label --overwrite node "+node.Name+" "+
				ack.NodeLabelSchedule+"=MODE")
			continue
		}
		if said := ignored[node.Name]; said != nil && isAbout(said.Message, node.Labels) {
			add(Warning, said.Message, "correct the label, or remove it: docs/modes.md")
		}
		if !labelled {
			continue // what a node without the label offers is what it offered before
		}
		has := map[string]bool{}
		switching := false
		for i := range offered {
			// What an administrator has cut is offered whatever the node's mode is.
			if _, m, err := devices.ParseDeviceName(offered[i].Name); err == nil && m.OfNode() {
				has[string(m)] = true
			}
			switching = switching || slices.ContainsFunc(offered[i].Taints, devices.IsTaint(v1alpha1.TaintSwitching))
		}
		wanted := map[string]bool{}
		for _, m := range asked.Mode.ServedModes() {
			wanted[string(m)] = true
		}
		differs := slices.ContainsFunc(slices.Collect(maps.Keys(has)), func(m string) bool { return !wanted[m] })
		does := strings.Join(slices.Sorted(maps.Keys(has)), ", ")
		switch {
		case switching:
			add(Warning, fmt.Sprintf("it has the label %s=%s, offers %s, and takes no new claims: it waits to change its mode "+
				"until the pods on its GPUs have ended", ack.NodeLabelSchedule, label, does),
				"kubectl describe node "+node.Name+" says for which pods")
		case differs:
			add(Error, fmt.Sprintf("it has the label %s=%s and offers %s", ack.NodeLabelSchedule, label, does),
				"if this lasts for more than a minute, look at the log of its pod of "+plugin)
		}
	}
	return out
}

// isAbout reports whether a message is about one of the labels as it is now.
func isAbout(message string, labels map[string]string) bool {
	for key, value := range labels {
		for _, written := range []string{"=" + value, fmt.Sprintf("=%q", value), fmt.Sprintf(": %q", value)} {
			if strings.Contains(message, "label "+key+written+" ") {
				return true
			}
		}
	}
	return false
}

// devicePlugin looks for device plugins that serve GPUs of a node that the driver serves, or
// is to serve. The driver publishes a pool, if an empty one, on each node.
func devicePlugin(s *Snapshot) []Finding {
	published, moves := devices.Published(s.Slices), s.migration()
	var out []Finding
	for _, node := range s.Nodes {
		offers, publishes := published[node.Name]
		if !publishes || len(offers) == 0 && moves.leaves(node) {
			continue
		}
		offered := ofDevicePlugins(node)
		if len(offered) == 0 {
			continue
		}
		f := Finding{Level: Error, Object: "node/" + node.Name,
			Text: "a device plugin serves " + strings.Join(offered, ", ") + " there: the driver offers nothing while it does",
			Do:   "take the device plugin off the node: docs/migrate.md"}
		if _, labelled := asked(node); !labelled && len(offers) == 0 {
			f.Level, f.Do = Note, "nothing if the node is to stay the device plugin's, else take that off: docs/migrate.md"
		}
		out = append(out, f)
	}
	return out
}

// ofDevicePlugins are the resources that device plugins serve GPUs of a node as.
func ofDevicePlugins(node *corev1.Node) []string {
	var offered []string
	for _, name := range legacy.ReadOwners(node.ManagedFields).Offered(node.Status.Allocatable) {
		offered = append(offered, string(name))
	}
	for _, name := range slices.Sorted(maps.Keys(node.Status.Allocatable)) {
		amount := node.Status.Allocatable[name]
		if deviceplugin.Native(name) && !amount.IsZero() && !slices.Contains(offered, string(name)) {
			offered = append(offered, string(name))
		}
	}
	return offered
}

// otherDrivers lists GPUs that take no claims because another DRA driver has them, too.
func otherDrivers(s *Snapshot) []Finding {
	published := devices.Published(s.Slices)
	var out []Finding
	for _, node := range slices.Sorted(maps.Keys(published)) {
		if has := devices.OfOtherDrivers(published[node]); has != "" {
			out = append(out, Finding{Level: Error, Object: "node/" + node,
				Text: "another DRA driver publishes GPUs of it, too, which take no claims of this one: " + has,
				Do:   "take one of the drivers off the node: docs/install.md#beside-another-dra-driver"})
		}
	}
	return out
}

// pools lists nodes that have other slices than their pools say. A pool that is being published is one for a moment.
func pools(s *Snapshot) []Finding {
	surplus := devices.Surplus(s.Slices, func(slice *resourceapi.ResourceSlice) (string, resourceapi.ResourcePool) {
		return ptr.Deref(slice.Spec.NodeName, ""), slice.Spec.Pool
	})
	var out []Finding
	for _, node := range slices.Sorted(maps.Keys(surplus)) {
		what := fmt.Sprintf("%d ResourceSlices beyond what its pool says", surplus[node])
		if surplus[node] < 0 {
			what = fmt.Sprintf("not all ResourceSlices that its pool says, %d are missing", -surplus[node])
		}
		out = append(out, Finding{Level: Warning, Object: "node/" + node,
			Text: "it has " + what + ": it takes no new claims, and pods that ask for all devices are placed nowhere",
			Do:   "unless that passes: docs/alerts.md#gpusharepoolnotwhole"})
	}
	return out
}

// health lists GPUs that take no claims because they are not well, or are left out.
func health(s *Snapshot) []Finding {
	published := devices.Published(s.Slices)
	out := leftOut(published, s.told(func(reason string) bool { return reason == v1alpha1.ReasonLeftOut }))
	for _, node := range slices.Sorted(maps.Keys(published)) {
		for key, what := range map[string]string{
			v1alpha1.TaintUnhealthy: "unhealthy", v1alpha1.TaintNotIsolated: "not isolated as its mode wants",
		} {
			sick := map[string]bool{}
			for _, d := range published[node] {
				i := slices.IndexFunc(d.Taints, devices.IsTaint(key))
				index := d.Attributes[v1alpha1.AttrIndex].IntValue
				if i < 0 || index == nil {
					continue
				}
				sick[strings.TrimSpace(fmt.Sprintf("gpu-%d %s", *index, d.Taints[i].Value))] = true
			}
			if len(sick) > 0 {
				out = append(out, Finding{Level: Error, Object: "node/" + node,
					Text: what + ": " + strings.Join(slices.Sorted(maps.Keys(sick)), ", "),
					Do:   "kubectl describe node " + node + "; docs/health.md says what heals it"})
			}
		}
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.Object+a.Text, b.Object+b.Text) })
	return out
}

// faulty is how an Event names a GPU that is left out (gpu.Fault).
var faulty = regexp.MustCompile(`GPU (\d+) \([^)]*\): (\w+)`)

// leftOut lists GPUs that a node does not offer beside those that it does.
func leftOut(published map[string][]resourceapi.Device, told map[string]*corev1.Event) []Finding {
	var out []Finding
	for _, node := range slices.Sorted(maps.Keys(told)) {
		offered := map[string]bool{}
		for _, d := range published[node] {
			if indices, _, err := devices.ParseDeviceName(d.Name); err == nil {
				for _, index := range indices {
					offered[strconv.Itoa(index)] = true
				}
			}
		}
		var lacks []string
		for _, found := range faulty.FindAllStringSubmatch(told[node].Message, -1) {
			if !offered[found[1]] {
				lacks = append(lacks, "gpu-"+found[1]+" "+found[2])
			}
		}
		if len(offered) > 0 && len(lacks) > 0 {
			out = append(out, Finding{Level: Error, Object: "node/" + node, Text: "not offered: " + strings.Join(lacks, ", "),
				Do: "kubectl describe node " + node + "; docs/troubleshooting.md#gpus-that-are-left-out"})
		}
	}
	return out
}

// legacyPods looks for pods that ask as on ACK and were not converted when they were created.
func legacyPods(s *Snapshot) []Finding {
	var out []Finding
	policies, known := s.conversion()
	for _, pod := range s.Pods {
		_, decided := pod.Labels[v1alpha1.LabelLegacy] // "true" is converted, "false" opted out
		name := asksAsOnACK(pod)
		if pod.Spec.NodeName != "" || decided || name == "" || pod.DeletionTimestamp != nil {
			continue
		}
		namespace := scheduling.Named(s.Namespaces, "", pod.Namespace)
		if known && namespace == nil {
			continue
		}
		if known {
			if exempt, _ := policies.LeftAlone(pod, labels.Merge(namespace.Labels, nil)); exempt != "" {
				continue
			}
		}
		f := Finding{Level: Warning, Object: "pod/" + pod.Name + " -n " + pod.Namespace,
			Text: "it waits, asks for " + name + ", and was not converted: it was created before the driver's policies, " +
				"or they do not select it",
			Do: "delete and create it again; kubectl get mutatingadmissionpolicybindings " + legacy.BindingConvert}
		if !known {
			f.Level, f.Do = Note, "nothing if its namespace is exempt: kubectl get namespace "+pod.Namespace+
				" --show-labels; else "+f.Do
		}
		out = append(out, f)
	}
	return out
}

func asksAsOnACK(pod *corev1.Pod) string {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, name := range legacy.Names() {
			if amount, asks := c.Resources.Limits[name]; asks && !amount.IsZero() {
				return string(name)
			}
		}
	}
	return ""
}
