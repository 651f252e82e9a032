// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"
)

// The driver's programs, by the label that their pods have.
const (
	labelComponent = "app.kubernetes.io/component"
	plugin         = "gpu-kubelet-plugin"
	supervisor     = "gpu-mps-supervisor"
	controller     = "gpu-compat-controller"
)

// leastKubernetes is the oldest Kubernetes that the modes with shares work on.
const leastKubernetes = "1.36.0"

// kubernetes looks at the API server's version, and at what it guards of claims.
func kubernetes(s *Snapshot) []Finding {
	is, err := version.ParseGeneric(s.ServerVersion)
	if err != nil || is.AtLeast(version.MustParseGeneric(leastKubernetes)) {
		return granular(s)
	}
	return []Finding{{Level: Error, Text: "the API server is Kubernetes " + s.ServerVersion + ": shares of GPUs need " +
		"the feature gate DRAConsumableCapacity, which is on from 1.36",
		Do: "update Kubernetes, or use whole GPUs (label ack.node.gpu.schedule=default)"}}
}

// granular looks for the feature gate by which a right to a claim's status is one to a part of it. Where it is on,
// Kubernetes gives its scheduler the right to the part that is the allocation.
func granular(s *Snapshot) []Finding {
	if s.SchedulerRole == nil || slices.ContainsFunc(s.SchedulerRole.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Contains(r.Resources, "resourceclaims/"+resourceapi.SubresourceBinding)
	}) {
		return nil
	}
	return []Finding{{Level: Warning, Text: "the API server runs without the feature gate " +
		"DRAResourceClaimGranularStatusAuthorization: the token of any DRA driver that writes the status of claims can " +
		"change what they were allocated", Do: "enable the feature gate, which is on by default: docs/security.md"}}
}

// pods looks at what is to run of the driver's programs.
func pods(s *Snapshot) []Finding {
	var out []Finding
	there := map[string]bool{}
	plugins := map[string]bool{}
	for _, d := range s.DaemonSets {
		component := d.Labels[labelComponent]
		if component != plugin && component != supervisor {
			continue
		}
		there[component] = true
		plugins[d.Namespace] = plugins[d.Namespace] || component == plugin
		if wanted, ready := d.Status.DesiredNumberScheduled, d.Status.NumberReady; ready < wanted {
			f := Finding{Level: Error, Object: "daemonset/" + d.Name + " -n " + d.Namespace,
				Text: fmt.Sprintf("%d of %d pods are ready%s", ready, wanted, s.unready(d.Namespace, component)),
				Do:   fmt.Sprintf("kubectl -n %s describe pods -l %s=%s", d.Namespace, labelComponent, component)}
			if refused := s.refused(d.Namespace, component, wanted); refused != "" {
				f.Text += refused
				f.Do = fmt.Sprintf("kubectl -n %s describe daemonset %s: its Events say why", d.Namespace, d.Name) + whyRefused
			}
			out = append(out, f)
		}
	}
	if in := slices.Sorted(maps.Keys(plugins)); len(in) > 1 {
		out = append(out, Finding{Level: Error,
			Text: plugin + " is installed in the namespaces " + strings.Join(in, ", ") +
				": they serve the same nodes, and only the accounts of one have the rights",
			Do: "remove all installations but one: docs/install.md"})
	}
	for _, d := range s.Deployments {
		if d.Labels[labelComponent] != controller {
			continue
		}
		there[controller] = true
		f := Finding{Level: Error, Object: "deployment/" + d.Name + " -n " + d.Namespace,
			Do: fmt.Sprintf("kubectl -n %s describe pods -l %s=%s", d.Namespace, labelComponent, controller)}
		switch wanted, ready := ptr.Deref(d.Spec.Replicas, 1), d.Status.ReadyReplicas; {
		case ready == 0:
			f.Text = "no pod of it is ready: legacy pods are not converted, and nobody says why pods wait" +
				s.unready(d.Namespace, controller)
			if refused := s.refused(d.Namespace, controller, wanted); refused != "" {
				f.Text += refused + replicaFailure(d)
				f.Do = fmt.Sprintf("kubectl -n %s describe replicasets -l %s=%s: their Events say why", d.Namespace, labelComponent,
					controller) + whyRefused
			}
			out = append(out, f)
		case ready < wanted && !s.settles(d):
			// The one that leads may be the one that is not ready.
			f.Level, f.Text = Warning, fmt.Sprintf("%d of %d pods are ready%s", ready, wanted, s.unready(d.Namespace,
				controller))
			f.Do += fmt.Sprintf("; what it waits for: kubectl get --raw /api/v1/namespaces/%s/pods/POD:8081/proxy/status",
				d.Namespace)
			out = append(out, f)
		}
	}
	for component, read := range map[string]bool{
		plugin: !s.cannotRead("daemonsets.apps"), controller: !s.cannotRead("deployments.apps"),
	} {
		if read && !there[component] {
			out = append(out, Finding{Level: Error, Text: component + " is not installed: nothing has the label " +
				labelComponent + "=" + component, Do: "install the driver: docs/install.md"})
		}
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.Object+a.Text, b.Object+b.Text) })
	return out
}

// whyRefused is what mostly keeps pods of the driver from being created.
const whyRefused = ", such as Pod Security or a quota: docs/install.md#special-cases"

// refused says how many pods of a program are not there; empty where none is missing, or that is not known.
func (s *Snapshot) refused(namespace, component string, wanted int32) string {
	var there int32
	for _, pod := range s.of(component) {
		if pod.Namespace == namespace {
			there++
		}
	}
	switch missing := wanted - there; {
	case missing <= 0 || s.cannotRead("pods"):
		return ""
	case missing == 1:
		return ": 1 is not created"
	default:
		return fmt.Sprintf(": %d are not created", missing)
	}
}

// replicaFailure is why a Deployment's pods could not be created, behind what follows from it.
func replicaFailure(d *appsv1.Deployment) string {
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			return ": " + c.Message
		}
	}
	return ""
}

// of are the pods of one of the driver's programs that have not ended. Any tenant can give a pod
// the driver's labels: only those in a namespace that the program is installed in are the driver's.
func (s *Snapshot) of(component string) []*corev1.Pod {
	in := map[string]bool{}
	for _, d := range s.DaemonSets {
		in[d.Namespace] = in[d.Namespace] || d.Labels[labelComponent] == component
	}
	for _, d := range s.Deployments {
		in[d.Namespace] = in[d.Namespace] || d.Labels[labelComponent] == component
	}
	var out []*corev1.Pod
	for _, pod := range s.Pods {
		if in[pod.Namespace] && pod.Labels[labelComponent] == component && pod.Status.Phase != corev1.PodSucceeded &&
			pod.Status.Phase != corev1.PodFailed {
			out = append(out, pod)
		}
	}
	return out
}

// settlesWithin is how long a pod may take to be ready. The clock of its node may be ahead.
const settlesWithin = time.Minute

// settles reports whether a Deployment's pods that are not ready have just come, as in an update.
func (s *Snapshot) settles(d *appsv1.Deployment) bool {
	pod := s.longestUnready(d.Namespace, controller)
	return d.Status.ObservedGeneration < d.Generation ||
		pod != nil && s.Now.Sub(unreadySince(pod)).Abs() < settlesWithin
}

// longestUnready is the pod that has not been ready for the longest time; nil if all are.
func (s *Snapshot) longestUnready(namespace, component string) *corev1.Pod {
	var longest *corev1.Pod
	for _, pod := range s.of(component) {
		if pod.Namespace == namespace && !isReady(pod) &&
			(longest == nil || unreadySince(pod).Before(unreadySince(longest))) {
			longest = pod
		}
	}
	return longest
}

// unreadySince is since when a pod has not been ready.
func unreadySince(pod *corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// unready says of one pod that is not ready where it is, and why.
func (s *Snapshot) unready(namespace, component string) string {
	pod := s.longestUnready(namespace, component)
	if pod == nil {
		return ""
	}
	text := ": pod " + pod.Name
	if pod.Spec.NodeName != "" {
		text += " on node " + pod.Spec.NodeName
	}
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil {
			return text + " is in " + waiting.Reason
		}
	}
	return text + " is not ready"
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// images are the images of programs' pods, each with the programs that run it.
func (s *Snapshot) images(components ...string) map[string]map[string]bool {
	by := map[string]map[string]bool{}
	for _, component := range components {
		for _, pod := range s.of(component) {
			for _, c := range pod.Spec.Containers {
				if by[c.Image] == nil {
					by[c.Image] = map[string]bool{}
				}
				by[c.Image][component] = true
			}
		}
	}
	return by
}

// versions compares the images of the driver's programs, which are one image. The supervisor's
// pods keep theirs until somebody deletes them, because MPS programs end with them.
func versions(s *Snapshot) []Finding {
	var out []Finding
	by := s.images(plugin, controller)
	if len(by) > 1 {
		var texts []string
		for _, image := range slices.Sorted(maps.Keys(by)) {
			texts = append(texts, image+" ("+strings.Join(slices.Sorted(maps.Keys(by[image])), ", ")+")")
		}
		out = append(out, Finding{Level: Warning,
			Text: "the driver's pods run different images: " + strings.Join(texts, "; "),
			Do:   "let the update end (kubectl rollout status), or install one version of all manifests"})
	}
	for _, image := range slices.Sorted(maps.Keys(s.images(supervisor))) {
		if by[image] == nil && len(by) > 0 {
			out = append(out, Finding{Level: Note,
				Text: "pods of " + supervisor + " run " + image + ", as no other program does",
				Do:   "nothing in a hurry: each takes the new image when its pod is deleted: docs/install.md"})
		}
	}
	return out
}
