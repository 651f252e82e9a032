// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"cmp"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
)

// mostPods is how many pods one object may make: a plan of more would not be read.
const mostPods = 5000

// add takes over an object.
func (r *Reader) add(from plan.Source, d *described, object runtime.Object) error {
	namespace := cmp.Or(d.Metadata.Namespace, r.Namespace)
	w := plan.Workload{Source: from, Namespace: namespace, Name: cmp.Or(d.Metadata.Name, d.Metadata.GenerateName+"x")}
	switch o := object.(type) {
	case *corev1.Pod:
		w.Kind, w.Pods = "pod", 1
		w.Template = corev1.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec}
	case *appsv1.Deployment:
		w.Kind, w.Template, w.Pods = "deployment", o.Spec.Template, replicas(o.Spec.Replicas)
	case *appsv1.ReplicaSet:
		w.Kind, w.Template, w.Pods = "replicaset", o.Spec.Template, replicas(o.Spec.Replicas)
	case *corev1.ReplicationController:
		if o.Spec.Template == nil {
			return fmt.Errorf("%s has no template", d)
		}
		w.Kind, w.Template, w.Pods = "replicationcontroller", *o.Spec.Template, replicas(o.Spec.Replicas)
	case *appsv1.StatefulSet:
		w.Kind, w.Template, w.Pods = "statefulset", o.Spec.Template, replicas(o.Spec.Replicas)
		for _, volume := range o.Spec.VolumeClaimTemplates {
			w.Template.Spec.Volumes = append(w.Template.Spec.Volumes, corev1.Volume{Name: volume.Name,
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
					ClaimName: volume.Name + "-" + o.Name}}})
		}
		if o.Spec.Ordinals != nil {
			w.First = int(o.Spec.Ordinals.Start)
		}
	case *appsv1.DaemonSet:
		w.Kind, w.Template, w.PerNode = "daemonset", o.Spec.Template, true
	case *batchv1.Job:
		w.Kind = "job"
		ofJob(&w, o.Spec)
	case *batchv1.CronJob:
		w.Kind, w.Note = "cronjob", "planned as one of its runs"
		ofJob(&w, o.Spec.JobTemplate.Spec)
	default:
		return r.addOther(from, d, namespace, object)
	}
	if len(w.Template.Spec.Containers) == 0 {
		return fmt.Errorf("%s has no containers", d)
	}
	if w.Pods < 0 || w.Pods > mostPods {
		return fmt.Errorf("%s makes %d pods: a plan is for 0 to %d of one object", d, w.Pods, mostPods)
	}
	r.remember(from, d, namespace, func(m *plan.Manifests) { m.Workloads = append(m.Workloads, w) })
	return nil
}

// addOther takes over what pods are not made of.
func (r *Reader) addOther(from plan.Source, d *described, namespace string, object runtime.Object) error {
	var put func(*plan.Manifests)
	switch o := object.(type) {
	case *resourceapi.ResourceClaim:
		o.Namespace, o.Status = namespace, resourceapi.ResourceClaimStatus{}
		put = func(m *plan.Manifests) { m.Claims = append(m.Claims, o) }
	case *resourceapi.ResourceClaimTemplate:
		o.Namespace = namespace
		put = func(m *plan.Manifests) { m.Templates = append(m.Templates, o) }
	case *resourceapi.DeviceClass:
		put = func(m *plan.Manifests) { m.Classes = append(m.Classes, o) }
	case *corev1.Namespace:
		put = func(m *plan.Manifests) { m.Namespaces = append(m.Namespaces, o) }
	}
	r.remember(from, d, namespace, put)
	if put != nil && d.Metadata.Name == "" {
		return fmt.Errorf("%s has no name", d)
	}
	if put != nil {
		return nil
	}
	if object.GetObjectKind().GroupVersionKind().Group == groupDRA {
		r.skip(from, d, "plan reads resource.k8s.io/v1: `kubectl convert`, or write it so")
		return nil
	}
	if version, is := versions[d.Kind]; is && d.APIVersion != version {
		r.skip(from, d, fmt.Sprintf("it is of %s: write it as %s", d.APIVersion, version))
		return nil
	}
	r.skip(from, d, "it makes no pods that plan knows of")
	return nil
}

// versions are those in which plan reads kinds that had others.
var versions = map[string]string{"Deployment": "apps/v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1",
	"DaemonSet": "apps/v1", "Job": "batch/v1", "CronJob": "batch/v1"}

// replicas is how many there are where nothing is said.
func replicas(n *int32) int { return int(ptr.Deref(n, 1)) }

// ofJob is for the pods of a Job that run at once.
func ofJob(w *plan.Workload, spec batchv1.JobSpec) {
	w.Template, w.Pods = spec.Template, replicas(spec.Parallelism)
	if spec.Completions != nil {
		w.Pods = min(w.Pods, int(*spec.Completions))
	}
	if ptr.Deref(spec.Suspend, false) {
		w.Note = "it is suspended: planned as if it ran"
	}
}
