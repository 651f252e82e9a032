// SPDX-License-Identifier: Apache-2.0

package consumption

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
)

// Known is what is known of who has GPUs: by the cluster now, and by Prometheus for a period before.
type Known struct {
	In        inspect.Input
	Table     *inspect.Table
	Pods      []*corev1.Pod
	Workloads Workloads
	// Users had GPUs in the period that Since tells; both are empty for now.
	Users []User
	Since string
	// Notes are what it lacks, in words.
	Notes []string
}

// Know puts together what was read of a cluster, and of a period, which is nil for now.
func Know(in inspect.Input, period *Period, since string) Known {
	k := Known{In: in, Table: inspect.New(in), Pods: slices.Clone(in.Pods)}
	for _, pod := range in.Bound {
		if len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil {
			k.Pods = append(k.Pods, pod)
		}
	}
	k.Workloads = NewWorkloads(k.Pods)
	k.Notes = slices.Clone(k.Table.Notes)
	if period != nil {
		k.Users, k.Since = period.Users(k.Workloads), since
		k.Notes = append(k.Notes, period.Notes...)
	}
	if in.Bound == nil {
		k.Notes = append(k.Notes, "You may not list nodes, or the claims or pods of all namespaces: which workloads "+
			"pods are of is not known.")
	}
	return k
}

// Shares returns who has how much, of one namespace, or of all if it is empty.
func (k Known) Shares(namespace string) []Share {
	if k.Since != "" {
		return Shares(k.Users)
	}
	return Now(k.Table, k.Workloads, namespace)
}
