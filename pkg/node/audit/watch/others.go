// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
)

const (
	// othersLimit is how long it may take to read the claims of a pod.
	othersLimit = 2 * time.Second
	// knownFor is how long what was read of a pod's claims counts: what a pod was allocated
	// does not change while it runs. failedFor is when it is tried again after an error.
	knownFor, failedFor = 10 * time.Minute, 10 * time.Second
)

// others finds out what pods were allocated of which nothing is recorded on the node: by
// other drivers, by device plugins, or by this one where the record was lost. It is asked about
// pods that are on a GPU without a grant, and so hardly ever.
type others struct {
	client   kubernetes.Interface
	nodeName string
	ofPlugin func(ctx context.Context, pod audit.Pod) (bool, error)
	ofDriver func(pod audit.Pod, uuid string) bool
	known    map[question]answer
}

type question struct {
	pod  types.UID
	uuid string
}

type answer struct {
	granted bool
	err     error
	until   time.Time
}

// granted reports whether the finding's claims give its GPU to the pod, or a device plugin gave it
// any, or whether that is not known.
func (o *others) granted(ctx context.Context, f audit.Finding, now time.Time) (bool, error) {
	maps.DeleteFunc(o.known, func(_ question, a answer) bool { return now.After(a.until) })
	if len(f.Unread) > 0 && o.ofDriver(f.Pod, f.UUID) {
		return true, nil
	}
	q := question{f.Pod.UID, f.UUID}
	if a, is := o.known[q]; is {
		return a.granted, a.err
	}
	ctx, cancel := context.WithTimeout(ctx, othersLimit)
	defer cancel()
	a := answer{until: now.Add(knownFor)}
	if f.AsksPlugin {
		a.granted, a.err = o.ofPlugin(ctx, f.Pod)
		if !a.granted {
			// A kubelet that has just been started lists nothing for a moment.
			a.until = now.Add(failedFor)
		}
	}
	for _, name := range f.Unread {
		if a.granted || a.err != nil {
			break
		}
		granted, err := o.grants(ctx, f.Pod.Namespace, name, f.UUID)
		if err != nil {
			a.err, a.until = err, now.Add(failedFor)
			break
		}
		a.granted = granted
	}
	o.known[q] = a
	return a.granted, a.err
}

// grants reports whether the claim gives the GPU: a device of this driver, of which nothing
// more is known, or a device of another one that states the GPU's UUID.
func (o *others) grants(ctx context.Context, namespace, name, uuid string) (bool, error) {
	claim, err := o.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && claim.Status.Allocation == nil:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read claim %s/%s: %w", namespace, name, err)
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver == v1alpha1.DriverName {
			return true, nil
		}
		if granted, err := o.isGPU(ctx, result, uuid); granted || err != nil {
			return granted, err
		}
	}
	return false, nil
}

// isGPU reports whether another driver's device states the GPU's UUID. Where the driver is away, or does not publish
// the device any more, that is not known: the kubelet removes a driver's slices of the node after a moment, and pods
// go on.
func (o *others) isGPU(ctx context.Context, d resourceapi.DeviceRequestAllocationResult, uuid string) (bool, error) {
	// Devices of the network are of no node.
	for _, node := range []string{o.nodeName, ""} {
		listed, err := o.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
			FieldSelector: "spec.nodeName=" + node + ",spec.driver=" + d.Driver,
		})
		if err != nil {
			return false, fmt.Errorf("list the ResourceSlices of driver %s on node %q: %w", d.Driver, node, err)
		}
		for _, slice := range listed.Items {
			if i := slices.IndexFunc(slice.Spec.Devices, func(of resourceapi.Device) bool {
				return slice.Spec.Pool.Name == d.Pool && of.Name == d.Device
			}); i >= 0 {
				return states(slice.Spec.Devices[i], uuid), nil
			}
		}
	}
	return false, fmt.Errorf("find device %s in the ResourceSlices of driver %s: pool %s does not have it, as while the "+
		"driver is away, or has withdrawn it", d.Device, d.Driver, d.Pool)
}

// states reports whether the GPU's UUID is among the device's attributes.
func states(d resourceapi.Device, uuid string) bool {
	for _, a := range d.Attributes {
		if a.StringValue != nil && *a.StringValue == uuid {
			return true
		}
	}
	return false
}
