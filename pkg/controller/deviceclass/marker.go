// SPDX-License-Identifier: Apache-2.0

package deviceclass

import (
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// mark plans for a DeviceClass with the label LabelCPUClass, which is there for as long as the one of
// the driver for CPUs, and has the same content. It is the parameter of the policy that gives
// claims for CPUs. The driver's own class cannot be: the API server looks a parameter that it
// does not find by its name up in etcd for each pod that is created (generic.CollectParams of
// k8s.io/apiserver 1.37), and in its cache where it is found by a label.
func (p *plan) mark(existing map[string]*resourceapi.DeviceClass) {
	of, have := existing[legacy.ClassCPUs], existing[legacy.ClassCPUsMarker]
	switch {
	case have != nil && have.Labels[v1alpha1.LabelManagedBy] != v1alpha1.ControllerName:
		// Somebody decides by hand.
	case of != nil:
		p.write(have, marker(of))
	case have != nil:
		p.outlived = have
	}
}

// marker is the one of a class. An extended resource can be that of one class only.
func marker(of *resourceapi.DeviceClass) *resourceapi.DeviceClass {
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: legacy.ClassCPUsMarker,
		Labels: map[string]string{
			v1alpha1.LabelManagedBy: v1alpha1.ControllerName, v1alpha1.LabelCPUClass: legacy.ClassCPUs,
		}}}
	of.Spec.DeepCopyInto(&class.Spec)
	class.Spec.ExtendedResourceName = nil
	return class
}
