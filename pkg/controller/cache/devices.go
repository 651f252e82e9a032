// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
)

// ofNode is the index of what a node publishes, and of what is allocated of that.
const ofNode = "node"

// Slices are the ResourceSlices of the driver, as far as its GPUs can be read.
type Slices struct{ *Objects[*view.Slice] }

// Slices asks for the driver's ResourceSlices.
func (r *Reader) Slices() Slices {
	selector := fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, v1alpha1.DriverName)
	return Slices{ask[*view.Slice](r, "ResourceSlices", resourceinformers.NewFilteredResourceSliceInformer(
		r.cache.Client, r.cache.Resync, toolscache.Indexers{ofNode: index(func(slice *view.Slice) []string {
			return some(slice.Node, slice.Node != "")
		})}, withFields(selector.String())), view.Transform)}
}

// OnNode returns those of a node.
func (s Slices) OnNode(node string) []*view.Slice { return s.by(ofNode, node) }

// OnChange has the function called with the name of the node whenever one of its slices comes,
// changes or goes. It is to be called before the cache runs.
func (s Slices) OnChange(changed func(node string)) {
	s.onChange(changed, func(_, _ *view.Slice) bool { return false })
}

// OnGPUs is OnChange without the changes that leave a slice the same GPUs, such as those of
// their order.
func (s Slices) OnGPUs(changed func(node string)) {
	s.onChange(changed, func(before, after *view.Slice) bool { return sameGPUs(before.GPUs, after.GPUs) })
}

func (s Slices) onChange(changed func(node string), alike func(before, after *view.Slice) bool) {
	s.On(Noting(func(slice *view.Slice) {
		if slice.Node != "" {
			changed(slice.Node)
		}
	}, alike))
}

func sameGPUs(a, b []view.GPU) bool {
	order := func(x, y view.GPU) int { return cmp.Or(cmp.Compare(x.Index, y.Index), cmp.Compare(x.Mode, y.Mode)) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), order), slices.SortedFunc(slices.Values(b), order))
}

// Claims are those of all pods: of those that are allocated devices of the driver whose they
// are, the allocation and who uses it, and next to nothing of others.
type Claims struct {
	*Objects[*resourceapi.ResourceClaim]
}

// Claims asks for the claims of all pods.
func (r *Reader) Claims() Claims {
	return Claims{ask[*resourceapi.ResourceClaim](r, "ResourceClaims", resourceinformers.NewResourceClaimInformer(
		r.cache.Client, metav1.NamespaceAll, r.cache.Resync,
		toolscache.Indexers{ofNode: index(func(claim *resourceapi.ResourceClaim) []string {
			node := gpuclaim.AllocatedFrom(claim)
			return some(node, node != "")
		})}), slimClaim)}
}

// OnNode returns those that were allocated GPUs of a node.
func (c Claims) OnNode(node string) []*resourceapi.ResourceClaim { return c.by(ofNode, node) }

// slimClaim is a transform of claims.
func slimClaim(object any) (any, error) {
	claim, ok := object.(*resourceapi.ResourceClaim)
	if !ok {
		return object, nil
	}
	kept := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}}
	if gpuclaim.AllocatedFrom(claim) == "" {
		return kept, nil
	}
	if value, is := claim.Labels[v1alpha1.LabelLegacy]; is {
		kept.Labels = map[string]string{v1alpha1.LabelLegacy: value}
	}
	kept.Status.Allocation, kept.Status.ReservedFor = claim.Status.Allocation, claim.Status.ReservedFor
	return kept, nil
}

// Classes are all DeviceClasses.
type Classes = *Objects[*resourceapi.DeviceClass]

// Classes asks for the DeviceClasses.
func (r *Reader) Classes() Classes {
	return ask[*resourceapi.DeviceClass](r, "DeviceClasses", resourceinformers.NewDeviceClassInformer(r.cache.Client,
		r.cache.Resync, nil), withoutManagedFields)
}

// Templates are the ResourceClaimTemplates for pods that asked in ACK's manner.
type Templates = *Objects[*resourceapi.ResourceClaimTemplate]

// Templates asks for the ResourceClaimTemplates for pods that asked in ACK's manner.
func (r *Reader) Templates() Templates {
	return ask[*resourceapi.ResourceClaimTemplate](r, "ResourceClaimTemplates",
		resourceinformers.NewFilteredResourceClaimTemplateInformer(r.cache.Client, metav1.NamespaceAll, r.cache.Resync, nil,
			withLabels(legacyLabel)), withoutManagedFields)
}
