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

// granted says whether the finding's claims give its GPU to the pod, or a device plugin gave it
// any, or whether that is not known.
func (o *others) granted(ctx context.Context, f audit.Finding, now time.Time) (bool, error) {
	maps.DeleteFunc(o.known, func(_ question, a answer) bool { return now.After(a.until) })
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

// grants says whether the claim gives the GPU: a device of this driver, of which nothing
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
		slices, err := o.client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
			FieldSelector: "spec.nodeName=" + o.nodeName + ",spec.driver=" + result.Driver,
		})
		if err != nil {
			return false, fmt.Errorf("list the ResourceSlices of driver %s on the node: %w", result.Driver, err)
		}
		for _, slice := range slices.Items {
			if slice.Spec.Pool.Name == result.Pool && states(slice.Spec.Devices, result.Device, uuid) {
				return true, nil
			}
		}
	}
	return false, nil
}

// states says whether the device of that name has the GPU's UUID among its attributes.
func states(devices []resourceapi.Device, name, uuid string) bool {
	return slices.ContainsFunc(devices, func(d resourceapi.Device) bool {
		if d.Name != name {
			return false
		}
		for _, a := range d.Attributes {
			if a.StringValue != nil && *a.StringValue == uuid {
				return true
			}
		}
		return false
	})
}
