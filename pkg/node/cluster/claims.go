// SPDX-License-Identifier: Apache-2.0

// Package cluster is what the node agent asks the API server beside the objects that it
// watches: claims, its own ResourceSlices, and what the API server can do.
package cluster

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// EachClaim goes through all claims of the cluster, page by page: which node they are
// allocated on is no field that the API server selects by. They are as they are now:
// an answer from a cache that lags behind (resourceVersion "0") could lack the claim
// that counts.
func EachClaim(ctx context.Context, client kubernetes.Interface, see func(*resourceapi.ResourceClaim)) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, o)
	})
	pages.PageBufferSize = 0
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if c, ok := object.(*resourceapi.ResourceClaim); ok {
			see(c)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the claims that are allocated from this node, which decide what it has to go on "+
			"publishing: %w", err)
	}
	return nil
}

// StoredSlices lists the ResourceSlices of the node as the API server has them now.
func StoredSlices(ctx context.Context, client kubernetes.Interface, nodeName string) ([]resourceapi.ResourceSlice,
	error) {
	list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: "spec.nodeName=" + nodeName + ",spec.driver=" + v1alpha1.DriverName,
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// IsolationOf is by what the users of GPUs are kept apart, by mode, as stored devices show it.
func IsolationOf(stored []resourceapi.ResourceSlice) map[mode.Mode]string {
	by := map[mode.Mode]string{}
	for _, s := range stored {
		for _, d := range s.Spec.Devices {
			m := mode.Mode(ptr.Deref(d.Attributes[v1alpha1.AttrMode].StringValue, ""))
			by[m] = cmp.Or(by[m], ptr.Deref(d.Attributes[v1alpha1.AttrIsolation].StringValue, ""))
		}
	}
	return by
}

// PodsOf are references to the pods that use the claim.
func PodsOf(c *resourceapi.ResourceClaim) []corev1.ObjectReference {
	var pods []corev1.ObjectReference
	users, _ := claim.Pods(c)
	for _, user := range users {
		pods = append(pods, report.Pod(c.Namespace, user.Name, user.UID))
	}
	return pods
}
