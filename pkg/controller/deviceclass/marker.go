// SPDX-License-Identifier: Apache-2.0

package deviceclass

import (
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// mark plans the marker of the class of the driver for CPUs, given both as they exist; nil for one that does not. The
// marker is a DeviceClass with the label LabelCPUClass that exists while the class does, with the same content. The
// policy that gives claims for CPUs has the marker as its parameter, since the API server finds it by its label, in its
// cache. The driver's own class would be found by its name: while it is missing, the API server looks it up in etcd for
// each created pod (generic.CollectParams of k8s.io/apiserver 1.37).
func (p *plan) mark(of, have *resourceapi.DeviceClass) {
	switch {
	case have != nil && have.Labels[v1alpha1.LabelManagedBy] != v1alpha1.ControllerName:
		// An administrator made this one, and decides about it.
	case of != nil:
		p.write(have, marker(of))
	case have != nil:
		p.outlived = have
	}
}

// marker returns the marker of a class, without its extended resource: only one class can have that.
func marker(of *resourceapi.DeviceClass) *resourceapi.DeviceClass {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: legacy.ClassCPUsMarker,
		Labels: map[string]string{
			v1alpha1.LabelManagedBy: v1alpha1.ControllerName, v1alpha1.LabelCPUClass: legacy.ClassCPUs,
		}}}
	of.Spec.DeepCopyInto(&class.Spec)
	class.Spec.ExtendedResourceName = nil
	return class
}
