// SPDX-License-Identifier: Apache-2.0

// Package deviceclass keeps the DeviceClasses of the cluster's GPU models:
// <model>.gpu.aliyun.com and <mode>.<model>.gpu.aliyun.com for each model and mode
// that some node publishes GPUs in, and <profile>.mig.gpu.aliyun.com for each profile of
// MIG instances. It also keeps the class by which the policies know that there are CPUs to claim.
//
// A class whose GPUs are gone stays for a while, since a plugin that is replaced
// and a node that restarts take their GPUs away too, and then as long as a
// ResourceClaim or a ResourceClaimTemplate names it. Classes that somebody else
// made are left alone.
package deviceclass

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/manager"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// leastRecheck is how soon at the earliest claims are looked at again.
const leastRecheck = 5 * time.Second

// Config is what the controller needs.
type Config struct {
	// Cache is asked for ResourceSlices and DeviceClasses.
	Cache  *cache.Reader
	Client typedresourcev1.ResourceV1Interface
	Events *report.Reporter
	// Models switches on the classes of GPU models and MIG profiles. Without it, existing ones stay.
	Models bool
	// Grace is how long a class stays without GPUs. Claims that name it are looked
	// for after that, and then again each time it has passed.
	Grace time.Duration
	Clock clock.PassiveClock
}

// all is the only key: each class depends on all nodes.
const all = "all"

type reconciler struct {
	Config
	slices  cache.Slices
	classes cache.Classes
	// since is when a class was first seen without GPUs, over are the nodes that were told of models without
	// classes. Only reconcile uses them.
	since map[string]time.Time
	over  map[string]string
}

// New returns the controller. It is to be run with one worker.
func New(cfg Config) *manager.Controller {
	r := newReconciler(cfg)
	work := manager.NewController("deviceclass", r.reconcile)
	look := func() { work.Enqueue(all) }
	// Most changes of a slice, such as another order of its devices, are of no concern.
	r.slices.On(cache.Noting(func(*view.Slice) { look() }, func(before, after *view.Slice) bool {
		return reflect.DeepEqual(modelsOf(before), modelsOf(after)) && slices.Equal(before.Profiles, after.Profiles)
	}))
	r.classes.On(cache.Handler[*resourceapi.DeviceClass]{
		Seen: func(*resourceapi.DeviceClass) { look() }, Gone: func(*resourceapi.DeviceClass) { look() },
	})
	// Also where there is neither a slice nor a class.
	look()
	return work
}

func newReconciler(cfg Config) *reconciler {
	return &reconciler{Config: cfg, slices: cfg.Cache.Slices(), classes: cfg.Cache.Classes(),
		since: map[string]time.Time{}}
}

func modelsOf(slice *view.Slice) []view.Model { return view.Models([]*view.Slice{slice}) }

// reconcile is a manager.Reconcile.
func (r *reconciler) reconcile(ctx context.Context, _ string) (time.Duration, error) {
	var p plan
	var over map[string]string
	classes := r.classes.List()
	if r.Models {
		var published []*view.Slice
		var err error
		published, over = bounded(r.slices.List(), classes)
		if p, err = newPlan(view.Models(published), view.Profiles(published), classes); err != nil {
			return 0, err
		}
	}
	ofCPUs, _ := r.classes.Get(legacy.ClassCPUs)
	marks, _ := r.classes.Get(legacy.ClassCPUsMarker)
	p.mark(ofCPUs, marks)
	again, retireErr := r.retire(ctx, p.surplus)
	r.tell(classes, p.told)
	r.tellNodes(over)
	return again, errors.Join(r.write(ctx, p), retireErr)
}

// write makes and changes classes. Where the cache was behind, its next change
// brings reconcile back.
func (r *reconciler) write(ctx context.Context, p plan) error {
	logger := klog.FromContext(ctx)
	client := r.Client.DeviceClasses()
	var errs []error
	for _, class := range p.create {
		_, err := client.Create(ctx, class, metav1.CreateOptions{FieldManager: v1alpha1.ControllerName})
		switch {
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("make DeviceClass %s: %w", class.Name, err))
		default:
			logger.Info("Made a DeviceClass", "class", class.Name, "for", kind(class))
		}
	}
	for _, class := range p.update {
		_, err := client.Update(ctx, class, metav1.UpdateOptions{FieldManager: v1alpha1.ControllerName})
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("update DeviceClass %s: %w", class.Name, err))
		default:
			logger.Info("Updated a DeviceClass", "class", class.Name, "for", kind(class))
		}
	}
	if p.outlived != nil {
		errs = append(errs, r.remove(ctx, p.outlived, "the class of the driver for CPUs is gone"))
	}
	return errors.Join(errs...)
}

// retire removes the classes that have been without GPUs for long enough and that
// nobody names, and says when to look again at the others.
func (r *reconciler) retire(ctx context.Context, surplus []*resourceapi.DeviceClass) (time.Duration, error) {
	now, since := r.Clock.Now(), map[string]time.Time{}
	var due []*resourceapi.DeviceClass
	var again time.Duration
	for _, class := range surplus {
		first, ok := r.since[class.Name]
		if !ok {
			first = now
		}
		since[class.Name] = first
		if left := r.Grace - now.Sub(first); left > 0 {
			again = manager.Earlier(again, left)
		} else {
			due = append(due, class)
		}
	}
	r.since = since
	if len(due) == 0 {
		return again, nil
	}
	inUse, err := classesNamed(ctx, r.Client)
	if err != nil {
		return again, err
	}
	var errs []error
	for _, class := range due {
		if inUse[class.Name] {
			klog.FromContext(ctx).V(4).Info("DeviceClass without GPUs stays, for claims name it", "class", class.Name)
			again = manager.Earlier(again, max(r.Grace, leastRecheck))
			continue
		}
		errs = append(errs, r.remove(ctx, class, "no node has such GPUs, and no claim names it"))
	}
	return again, errors.Join(errs...)
}

func (r *reconciler) remove(ctx context.Context, class *resourceapi.DeviceClass, why string) error {
	// The class as it was looked at, and no other of that name.
	err := r.Client.DeviceClasses().Delete(ctx, class.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &class.UID, ResourceVersion: &class.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil
	case err != nil:
		return fmt.Errorf("remove DeviceClass %s, as %s: %w", class.Name, why, err)
	}
	klog.FromContext(ctx).Info("Removed a DeviceClass", "class", class.Name, "for", kind(class), "reason", why)
	r.Events.Forget(class.UID)
	return nil
}

// tellNodes says of which nodes not all that they publish has classes.
func (r *reconciler) tellNodes(over map[string]string) {
	for node, message := range over {
		r.Events.Warn(report.Node(node, types.UID(node)), v1alpha1.ReasonTooManyModels, message)
	}
	for node := range r.over {
		if over[node] == "" {
			r.Events.Clear(types.UID(node), v1alpha1.ReasonTooManyModels)
		}
	}
	r.over = over
}

func (r *reconciler) tell(classes []*resourceapi.DeviceClass, findings []finding) {
	told := map[finding]bool{}
	for _, f := range findings {
		told[finding{class: f.class, reason: f.reason}] = true
		r.Events.Normal(corev1.ObjectReference{
			APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "DeviceClass", Name: f.class.Name, UID: f.class.UID,
		}, f.reason, f.message)
	}
	for _, class := range classes {
		for _, reason := range []string{v1alpha1.ReasonDeviceClassNotOurs, v1alpha1.ReasonModelNameTaken} {
			if !told[finding{class: class, reason: reason}] {
				r.Events.Clear(class.UID, reason)
			}
		}
	}
}
