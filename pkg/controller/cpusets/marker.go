// SPDX-License-Identifier: Apache-2.0

package cpusets

import (
	"context"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// MarkerConfig is what the controller of the marker needs.
type MarkerConfig struct {
	// Cache is asked for DeviceClasses.
	Cache  *cache.Reader
	Client typedresourcev1.DeviceClassInterface
}

type marking struct {
	MarkerConfig
	classes cache.Classes
}

// NewMarker returns a controller that keeps a DeviceClass with the label LabelCPUClass for as
// long as the one of the driver for CPUs exists, and with the same content. It is the
// parameter of the policy that gives claims for CPUs. The driver's own class cannot be: the
// API server looks a parameter that it does not find by its name up in etcd for each pod
// that is created (generic.CollectParams of k8s.io/apiserver 1.37), and in its cache where it
// is found by a label.
func NewMarker(cfg MarkerConfig) *manager.Controller {
	m := marking{cfg, cfg.Cache.Classes()}
	work := manager.NewController("cpuclass", m.keep)
	changed := func(class *resourceapi.DeviceClass) {
		if class.Name == legacy.ClassCPUs || class.Name == legacy.ClassCPUsMarker {
			work.Enqueue(class.Name)
		}
	}
	m.classes.On(cache.Handler[*resourceapi.DeviceClass]{Seen: changed, Gone: changed})
	return work
}

// keep is a manager.Reconcile. Where the cache was behind, its next change brings it back.
func (m marking) keep(ctx context.Context, _ string) (time.Duration, error) {
	logger := klog.FromContext(ctx)
	of, installed := m.classes.Get(legacy.ClassCPUs)
	have, marked := m.classes.Get(legacy.ClassCPUsMarker)
	switch {
	case marked && have.Labels[v1alpha1.LabelManagedBy] != v1alpha1.ControllerName:
		// Somebody decides by hand.
	case marked && !installed:
		err := m.Client.Delete(ctx, have.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return 0, fmt.Errorf("remove DeviceClass %s: %w", have.Name, err)
		}
		logger.Info("Removed a DeviceClass: that of the driver for CPUs is gone", "class", have.Name, "of", legacy.ClassCPUs)
	case installed && !marked:
		_, err := m.Client.Create(ctx, marker(of, &resourceapi.DeviceClass{}),
			metav1.CreateOptions{FieldManager: v1alpha1.ControllerName})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return 0, fmt.Errorf("make DeviceClass %s: %w", legacy.ClassCPUsMarker, err)
		}
		logger.Info("Made a DeviceClass: pods can have CPUs of their own", "class", legacy.ClassCPUsMarker, "of",
			legacy.ClassCPUs)
	case installed:
		want := marker(of, have)
		if equality.Semantic.DeepEqual(have, want) {
			return 0, nil
		}
		_, err := m.Client.Update(ctx, want, metav1.UpdateOptions{FieldManager: v1alpha1.ControllerName})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return 0, fmt.Errorf("update DeviceClass %s: %w", want.Name, err)
		}
	}
	return 0, nil
}

// marker returns what becomes of the marker that is there, given the class that it stands for. An
// extended resource can be that of one class only.
func marker(of, have *resourceapi.DeviceClass) *resourceapi.DeviceClass {
	want := have.DeepCopy()
	want.Name = legacy.ClassCPUsMarker
	if want.Labels == nil {
		want.Labels = map[string]string{}
	}
	want.Labels[v1alpha1.LabelManagedBy] = v1alpha1.ControllerName
	want.Labels[v1alpha1.LabelCPUClass] = legacy.ClassCPUs
	of.Spec.DeepCopyInto(&want.Spec)
	want.Spec.ExtendedResourceName = nil
	return want
}
