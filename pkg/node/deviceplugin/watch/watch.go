// SPDX-License-Identifier: Apache-2.0

// Package watch keeps what is known of the pods on the node whose GPUs came from a device
// plugin: it watches them, asks the kubelet, and remembers what they were first seen with.
package watch

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/kubernetes"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/pods"
)

// Pods knows what pods hold that a device plugin started.
type Pods interface {
	// Run works until the context ends.
	Run(ctx context.Context)
	// Observe returns what is reserved of the machine's GPUs, for the publisher, and keeps
	// what pods are seen with for the first time; Reserved does the former for a claim. Both
	// return held.ErrPodsUnread while it is not known.
	Observe(ctx context.Context, m *gpu.Machine) (held.Reserved, error)
	Reserved(ctx context.Context, m *gpu.Machine) (held.Reserved, error)
	// SetLeft is told when the last device plugin left: pods that the kubelet took later have
	// nothing of one. It is the zero time while one may serve.
	SetLeft(left time.Time)
}

// Options are what a watch of the node's pods works with.
type Options struct {
	Client   kubernetes.Interface
	NodeName string
	Kubelet  Kubelet
	// Picture is the picture of the node's pods, which the watch keeps.
	Picture *pods.Picture
	// File is where it is kept what pods were first seen with.
	File string
	// Left is when the last device plugin left, the zero time if that is not known.
	Left time.Time
	// Lock keeps other processes of the node from writing the file, until unlock is called.
	Lock func(ctx context.Context) (unlock func(), err error)
	// OnChange is called when what is reserved may have changed; OnUnread is told, as long as
	// the pods cannot be read, why; OnDamaged, that the file could not be read.
	OnChange            func()
	OnUnread, OnDamaged func(err error)
}

// New returns a watch of the node's pods.
func New(o Options) (Pods, error) {
	observed, damage, err := openObservations(newCheckpointFile(o.File), o.Left, o.Lock)
	if err != nil {
		return nil, err
	}
	if damage != nil {
		o.OnDamaged(damage)
	}
	return newWatcher(o, observed)
}

// watcher watches the node's pods for what device plugins gave them: no claim tells that.
type watcher struct {
	pods     *pods.Watch
	kubelet  *kubeletAnswers
	observed *observations
	// read is closed when all pods have been seen once.
	read informer.FirstRead
	// changed is called when what is reserved may have changed.
	changed func()
}

func newWatcher(o Options, s *observations) (w *watcher, err error) {
	w = &watcher{kubelet: &kubeletAnswers{kubelet: o.Kubelet}, observed: s, read: make(informer.FirstRead),
		changed: o.OnChange}
	w.pods, err = pods.NewWatch(o.Picture, o.Client, o.NodeName, w, func(err error) {
		if !w.read.IsDone() {
			o.OnUnread(err)
		}
	})
	return w, err
}

// Saw implements [pods.Follower]. A change of annotations counts only if it changes what is observed: the pod's owner
// can change them at any rate.
func (w *watcher) Saw(before, pod *corev1.Pod) {
	if w.observed.observe(before, pod) || before != nil && (deviceplugin.Holds(before) || deviceplugin.Holds(pod)) &&
		!same(before, pod) {
		w.changed()
	}
}

// Deleted implements [pods.Follower].
func (w *watcher) Deleted(pod *corev1.Pod, runs bool) {
	w.observed.deleted(pod, runs)
	if deviceplugin.Holds(pod) {
		w.changed()
	}
}

// Ended implements [pods.Follower].
func (w *watcher) Ended(pod *corev1.Pod) {
	if w.observed.ended(pod) {
		w.changed()
	}
}

// same reports whether two versions of a pod are alike in what counts beside annotations.
func same(before, after *corev1.Pod) bool {
	again := *after
	again.ResourceVersion, again.Annotations = before.ResourceVersion, before.Annotations
	return apiequality.Semantic.DeepEqual(before, &again)
}

// Run watches until the context ends.
func (w *watcher) Run(ctx context.Context) { w.pods.Run(ctx, w.listed) }

// listed takes note, once all pods have been seen, of those that earlier processes saw and that are deleted: they may
// run.
func (w *watcher) listed() {
	for _, pod := range w.observed.listed(w.pods.Has) {
		w.pods.Delete(pod)
	}
	close(w.read)
	w.changed()
}

// SetLeft implements [Pods].
func (w *watcher) SetLeft(left time.Time) { w.observed.setLeft(left) }

// Reserved returns what device plugins' pods hold now. It waits a moment for the node's pods if they have not been
// read.
func (w *watcher) Reserved(ctx context.Context, m *gpu.Machine) (held.Reserved, error) {
	w.read.Await(ctx)
	return w.now(ctx, m)
}

// Observe is now, and keeps what pods were first seen with.
func (w *watcher) Observe(ctx context.Context, m *gpu.Machine) (held.Reserved, error) {
	t, err := w.now(ctx, m)
	if err != nil {
		return held.Reserved{}, err
	}
	return t, w.observed.store(ctx)
}

// now returns what is reserved of the machine's GPUs; held.ErrPodsUnread before the
// node's pods are known. The kubelet is asked while it may have something to tell.
func (w *watcher) now(ctx context.Context, m *gpu.Machine) (held.Reserved, error) {
	if !w.read.IsDone() {
		return held.Reserved{}, held.ErrPodsUnread
	}
	there, leaving := w.pods.Pods()
	there = slices.DeleteFunc(there, func(pod *corev1.Pod) bool { return !deviceplugin.Holds(pod) })
	var kubelet deviceplugin.Kubelet
	if need, notBefore := w.observed.needKubelet(there); need {
		kubelet = w.kubelet.ask(ctx, notBefore)
	}
	return w.observed.reserved(there, leaving, nodeOf(m, kubelet)), nil
}

// nodeOf is what is known of the machine's GPUs, also of those that are left out or in MIG mode: a pod
// may be on one of them.
func nodeOf(m *gpu.Machine, kubelet deviceplugin.Kubelet) deviceplugin.Node {
	n := deviceplugin.Node{GPUs: m.Unpartitioned(), Instances: map[string]int{}, Kubelet: kubelet}
	for _, p := range m.Partitioned {
		n.GPUs = append(n.GPUs, p.GPU)
		for _, i := range p.Instances {
			if i.UUID != "" {
				n.Instances[i.UUID] = p.Index
			}
		}
	}
	return n
}
