// SPDX-License-Identifier: Apache-2.0

// Package cache is what the controllers know of the cluster: what is watched, what is kept of
// each object, and by what it is found.
//
// A controller asks its Reader for the parts that it reads. What somebody asks for is watched,
// once for all, and a controller begins when its parts are listed. A transform leaves out what
// no controller reads; what the rest means is for the controllers to say.
package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/informer"
)

// Options are where the objects come from.
type Options struct {
	Client kubernetes.Interface
	// Metadata is for objects of which labels are read alone.
	Metadata metadata.Interface
	// Namespace is the driver's, where its node agents are.
	Namespace string
	// Resync is how often handlers are called for everything; zero for never.
	Resync time.Duration
}

// Cache has the parts that readers asked for. It is to be asked by one goroutine, and before
// Run.
type Cache struct {
	Options
	parts []*watched
	// live is whether somebody reads pods until they end, and all that nodes have for them.
	live bool
	errs []error
}

// New returns a cache that nobody has asked for anything.
func New(o Options) *Cache { return &Cache{Options: o} }

// Reader returns one for a controller.
func (c *Cache) Reader() *Reader { return &Reader{cache: c} }

// Err is why some part is not what was asked for.
func (c *Cache) Err() error { return errors.Join(c.errs...) }

// Run watches what was asked for, and returns when the context has ended.
func (c *Cache) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, p := range c.parts {
		wg.Go(func() { p.RunWithContext(ctx) })
	}
	wg.Wait()
}

func (c *Cache) failed(what string, err error) {
	if err != nil {
		c.errs = append(c.errs, fmt.Errorf("set up the cache of %s: %w", what, err))
	}
}

// part returns what is watched under that name: the informer, for the first who asks.
func (c *Cache) part(what string, of toolscache.SharedIndexInformer, slim toolscache.TransformFunc) *watched {
	for _, p := range c.parts {
		if p.what == what {
			return p
		}
	}
	w := &watched{SharedIndexInformer: of, what: what, slim: slim, handlers: map[bool]*handlers{}}
	c.failed(what, w.SetWatchErrorHandlerWithContext(w.noteError))
	c.failed(what, w.SetTransform(slim))
	c.parts = append(c.parts, w)
	return w
}

// pods is a part of the pods that the selectors select, of all namespaces or of one.
func (c *Cache) pods(what, namespace string, selected func(*metav1.ListOptions), slim toolscache.TransformFunc,
	indexers toolscache.Indexers) *watched {
	return c.part(what, coreinformers.NewFilteredPodInformer(c.Client, namespace, c.Resync, indexers, selected), slim)
}

// Reader is what one controller knows of the cluster. It waits for what it asks for.
type Reader struct {
	cache *Cache
	needs []*watched
}

// need notes that the reader waits for a part.
func (r *Reader) need(p *watched) *watched {
	if !slices.Contains(r.needs, p) {
		r.needs = append(r.needs, p)
	}
	return p
}

// Objects are some of those that a part has.
type Objects[T any] struct {
	toolscache.SharedIndexInformer
	cache *Cache
	part  *watched
	// of says which they are; nil for all.
	of func(T) bool
}

// ask returns all objects of a part, for which the reader waits.
func ask[T any](r *Reader, what string, of toolscache.SharedIndexInformer, slim toolscache.TransformFunc) *Objects[T] {
	return objects[T](r, r.need(r.cache.part(what, of, slim)), nil)
}

func objects[T any](r *Reader, p *watched, of func(T) bool) *Objects[T] {
	return &Objects[T]{SharedIndexInformer: p, cache: r.cache, part: p, of: of}
}

// one is the object of a store or a handler, if it is one of these.
func (o *Objects[T]) one(object any) (T, bool) {
	t, ok := informer.Object(object).(T)
	return t, ok && (o.of == nil || o.of(t))
}

func (o *Objects[T]) those(all []any) []T {
	var out []T
	for _, object := range all {
		if t, is := o.one(object); is {
			out = append(out, t)
		}
	}
	return out
}

// List returns them in no order.
func (o *Objects[T]) List() []T { return o.those(o.GetStore().List()) }

// Get returns the one with that key, namespace/name or a name; false where there is none.
func (o *Objects[T]) Get(key string) (T, bool) {
	// The store is a map: it knows no errors.
	object, _, _ := o.GetStore().GetByKey(key)
	return o.one(object)
}

// Put has an object known as its watch would have it known: what is kept of it. It is for tests
// that watch nothing.
func (o *Objects[T]) Put(object any) error {
	kept := object
	if o.part.slim != nil {
		var err error
		if kept, err = o.part.slim(object); err != nil {
			return err
		}
	}
	return o.GetStore().Update(kept)
}

// by returns those with a value of an index, which the part was made with.
func (o *Objects[T]) by(index, value string) []T {
	found, _ := o.GetIndexer().ByIndex(index, value)
	return o.those(found)
}

// Handler is what is called for objects. What is nil is not called.
type Handler[T any] struct {
	// Seen is called for one that comes and, where Changed is nil, for one that has changed; also
	// at each resync.
	Seen func(T)
	// Changed is called for one that was there before, also at each resync.
	Changed func(before, after T)
	// Gone is called for one that went, as it was last known.
	Gone func(T)
	// Waits says that these may wait for a lock that is held for long. All others are called one after the other.
	Waits bool
}

// Noting has note called with an object that comes or goes, and with one that has changed unless it is alike.
func Noting[T any](note func(T), alike func(before, after T) bool) Handler[T] {
	return Handler[T]{Seen: note, Gone: note, Changed: func(before, after T) {
		if !alike(before, after) {
			note(after)
		}
	}}
}

// SameVersion reports whether an object has not changed, as at a resync.
func SameVersion[T metav1.Object](before, after T) bool {
	return before.GetResourceVersion() == after.GetResourceVersion()
}

// On has a handler called. It is to be called before the cache runs.
func (o *Objects[T]) On(h Handler[T]) {
	if h.Seen == nil {
		h.Seen = func(T) {}
	}
	if h.Changed == nil {
		h.Changed = func(_, after T) { h.Seen(after) }
	}
	if h.Gone == nil {
		h.Gone = func(T) {}
	}
	o.cache.failed(o.part.what, o.part.on(h.Waits, toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if t, is := o.one(object); is {
				h.Seen(t)
			}
		},
		UpdateFunc: func(old, object any) {
			before, was := o.one(old)
			switch after, is := o.one(object); {
			case was && is:
				h.Changed(before, after)
			case is:
				h.Seen(after)
			case was:
				h.Gone(before)
			}
		},
		DeleteFunc: func(object any) {
			if t, was := o.one(object); was {
				h.Gone(t)
			}
		},
	}))
}

// index is a cache.IndexFunc of objects of a type: the values by which one is found.
func index[T any](of func(T) []string) toolscache.IndexFunc {
	return func(object any) ([]string, error) {
		if t, ok := object.(T); ok {
			return of(t), nil
		}
		return nil, nil
	}
}

// Key is that of an object: namespace/name.
func Key(object metav1.Object) string { return toolscache.MetaObjectToName(object).String() }

func withFields(selector string) func(*metav1.ListOptions) {
	return func(list *metav1.ListOptions) { list.FieldSelector = selector }
}

func withLabels(selector string) func(*metav1.ListOptions) {
	return func(list *metav1.ListOptions) { list.LabelSelector = selector }
}

// withoutManagedFields is a transform for objects of any kind.
func withoutManagedFields(object any) (any, error) {
	if o, err := meta.Accessor(object); err == nil {
		o.SetManagedFields(nil)
	}
	return object, nil
}

// withoutNotes is a transform for metadata: it also removes annotations, which
// with the managed fields are most of it.
func withoutNotes(object any) (any, error) {
	if o, err := meta.Accessor(object); err == nil {
		o.SetAnnotations(nil)
	}
	return withoutManagedFields(object)
}

// slimPod is a transform of pods: what tells a pod from others is left, its phase, and what keep copies.
func slimPod(keep func(pod, kept *corev1.Pod)) toolscache.TransformFunc {
	return func(object any) (any, error) {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return object, nil
		}
		kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		}, Status: corev1.PodStatus{Phase: pod.Status.Phase}}
		keep(pod, kept)
		return kept, nil
	}
}
