// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// replaces says whether an owner is known to make another pod in place of one that is
// deleted before it has started. Of a Job that is not the whole answer, see Outlives.
// A controller of another kind may do so, or take it for the end of its work, as
// engines of workflows do.
func replaces(owner *metav1.OwnerReference) bool {
	switch groupKind(owner) {
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"},
		schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"},
		schema.GroupKind{Group: appsv1.GroupName, Kind: "DaemonSet"}:
		return true
	default:
		return isJob(owner)
	}
}

// isJob tells a Job of Kubernetes from those of others.
func isJob(owner *metav1.OwnerReference) bool {
	return groupKind(owner) == schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}
}

// groupKind is empty where the owner's API version cannot be read.
func groupKind(owner *metav1.OwnerReference) schema.GroupKind {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return schema.GroupKind{}
	}
	return schema.GroupKind{Group: gv.Group, Kind: owner.Kind}
}
