// SPDX-License-Identifier: Apache-2.0

package deviceclass

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/pager"
)

// classesNamed returns the names of all DeviceClasses that ResourceClaims and
// ResourceClaimTemplates name. It asks the API server, page by page: that is rarely
// needed, and a cache of all claims would have to follow each of them all the time.
func classesNamed(ctx context.Context, client typedresourcev1.ResourceV1Interface) (map[string]bool, error) {
	named := map[string]bool{}
	for kind, page := range map[string]pager.ListPageFunc{
		"ResourceClaims": func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.ResourceClaims(metav1.NamespaceAll).List(ctx, o)
		},
		"ResourceClaimTemplates": func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.ResourceClaimTemplates(metav1.NamespaceAll).List(ctx, o)
		},
	} {
		err := pager.New(page).EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
			switch object := object.(type) {
			case *resourceapi.ResourceClaim:
				addNamed(named, object.Spec)
			case *resourceapi.ResourceClaimTemplate:
				addNamed(named, object.Spec.Spec)
			default:
				return fmt.Errorf("among them is a %T", object)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("look for %s that name a DeviceClass: %w", kind, err)
		}
	}
	return named, nil
}

func addNamed(named map[string]bool, spec resourceapi.ResourceClaimSpec) {
	for _, request := range spec.Devices.Requests {
		if request.Exactly != nil {
			named[request.Exactly.DeviceClassName] = true
		}
		for _, alternative := range request.FirstAvailable {
			named[alternative.DeviceClassName] = true
		}
	}
}
