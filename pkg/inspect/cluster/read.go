// SPDX-License-Identifier: Apache-2.0

// Package cluster reads from an API server what the tables of package inspect are
// made of: each kind of object once, whatever the size of the cluster, pods only where
// some hold GPUs without a claim, and nothing that it may not read.
package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
)

// Reader reads a cluster.
type Reader struct {
	Client kubernetes.Interface
	// Clock is the API server's; nil is that of the desk.
	Clock *Clock
	// Node, if it is not empty, is the one node to read.
	Node string
	// Namespace is the one whose claims are read where those of all namespaces
	// may not be.
	Namespace string
	// Bound has all pods read that are on nodes, if the user may. A cluster has many.
	Bound bool
	// Every, if it is not 0, is how often Watch shows what there is though nothing has changed.
	Every time.Duration
}

// scope is what the reader may read.
type scope struct {
	// claims is the namespace of the claims, metav1.NamespaceAll for all.
	claims            string
	noClaims, noNodes bool
}

// notes tells the user what is missing.
func (s scope) notes() []string {
	var notes []string
	switch {
	case s.noClaims:
		notes = append(notes, "You may not list resourceclaims.resource.k8s.io, neither of all namespaces nor of one: "+
			"what is allocated is not known and shown as a question mark.")
	case s.claims != metav1.NamespaceAll:
		notes = append(notes,
			fmt.Sprintf("You may list resourceclaims.resource.k8s.io of namespace %s only: what others hold is not counted, "+
				"and GPUs may be fuller than shown.", s.claims))
	}
	if s.noNodes {
		notes = append(notes, "You may not read nodes: their addresses are shown as unknown.")
	}
	return notes
}

// Read reads all that the user may read. Only where the ResourceSlices cannot be
// read, or anything fails for another reason than missing permission, is that an
// error; what else is missing is in the input's notes.
func (r Reader) Read(ctx context.Context) (inspect.Input, error) {
	in, _, err := r.read(ctx)
	if err == nil {
		err = (&podReader{Reader: r}).fill(ctx, &in)
	}
	if err == nil && (len(inspect.Silent(in.Slices)) > 0 || lacksSlices(in)) {
		in.Events, _ = r.readEvents(ctx) //nolint:errcheck // The table then says where to look.
	}
	return in, err
}

// lacksSlices reports whether a node has no ResourceSlice whose labels say that it has GPUs.
func lacksSlices(in inspect.Input) bool {
	published := nodesNamed(in.Slices)
	return slices.ContainsFunc(in.Nodes, func(n *corev1.Node) bool {
		return !slices.Contains(published, n.Name) &&
			(n.Labels[ack.NodeLabelSchedule] != "" || n.Labels[ack.NodeLabelModel] != "")
	})
}

// Nodes lists, in order, the nodes on which the driver runs.
func (r Reader) Nodes(ctx context.Context) ([]string, error) {
	published, err := r.readSlices(ctx)
	if err != nil {
		return nil, err
	}
	return nodesNamed(published), nil
}

// nodesNamed are the names of the nodes that publish something, in order.
func nodesNamed(published []*resourceapi.ResourceSlice) []string {
	names := map[string]bool{}
	for _, slice := range published {
		if slice.Spec.NodeName != nil {
			names[*slice.Spec.NodeName] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// readEvents reads what the driver says of nodes.
func (r Reader) readEvents(ctx context.Context) ([]corev1.Event, error) {
	selected := fields.Set{"involvedObject.kind": "Node", "source": "gpu-kubelet-plugin"}
	if r.Node != "" {
		selected["involvedObject.name"] = r.Node
	}
	var events []corev1.Event
	err := each(ctx, r.Client.CoreV1().Events(metav1.NamespaceDefault),
		metav1.ListOptions{FieldSelector: fields.SelectorFromSet(selected).String()},
		func(event *corev1.Event) { events = append(events, *event) })
	return events, err
}

func (r Reader) read(ctx context.Context) (inspect.Input, scope, error) {
	in := inspect.Input{Node: r.Node}
	var allowed scope
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		in.Slices, err = r.readSlices(ctx)
		return err
	})
	group.Go(func() (err error) {
		in.Claims, allowed.claims, allowed.noClaims, err = r.readClaims(ctx)
		return err
	})
	group.Go(func() (err error) {
		in.Nodes, allowed.noNodes, err = r.readNodes(ctx)
		return err
	})
	group.Go(func() (err error) {
		in.Bound, err = r.readBound(ctx)
		return err
	})
	err := group.Wait()
	in.ClaimsUnknown, in.Notes = allowed.noClaims, allowed.notes()
	if in.ClaimsUnknown || allowed.noNodes || allowed.claims != metav1.NamespaceAll {
		in.Bound = nil
	}
	return in, allowed, err
}

// sliceFields selects the slices to read.
func (r Reader) sliceFields() string {
	selected := fields.Set{resourceapi.ResourceSliceSelectorDriver: v1alpha1.DriverName}
	if r.Node != "" {
		selected[resourceapi.ResourceSliceSelectorNodeName] = r.Node
	}
	return fields.SelectorFromSet(selected).String()
}

func (r Reader) readSlices(ctx context.Context) ([]*resourceapi.ResourceSlice, error) {
	return r.readSlicesOf(ctx, r.sliceFields())
}

// readSlicesOf reads the slices that fields select.
func (r Reader) readSlicesOf(ctx context.Context, selected string) ([]*resourceapi.ResourceSlice, error) {
	found, err := list[*resourceapi.ResourceSlice](ctx, r.Client.ResourceV1().ResourceSlices(),
		metav1.ListOptions{FieldSelector: selected})
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("the GPUs are in ResourceSlices, which you may not list; ask for a ClusterRole with get, "+
			"list and watch on resourceslices and resourceclaims of resource.k8s.io, and on nodes: %w", err)
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("list ResourceSlices: this API server has no resource.k8s.io/v1, which comes with "+
			"Kubernetes 1.34: %w", err)
	case err != nil:
		return nil, fmt.Errorf("list ResourceSlices: %w", err)
	}
	return found, nil
}

// readClaims reads the claims of all namespaces or, where that is forbidden, those of
// one. There is no field to select them by.
func (r Reader) readClaims(ctx context.Context) (found []*resourceapi.ResourceClaim, namespace string, forbidden bool,
	err error) {
	namespaces := []string{metav1.NamespaceAll}
	if r.Namespace != metav1.NamespaceAll {
		namespaces = append(namespaces, r.Namespace)
	}
	for _, namespace = range namespaces {
		found, err = list[*resourceapi.ResourceClaim](ctx, r.Client.ResourceV1().ResourceClaims(namespace),
			metav1.ListOptions{})
		if !apierrors.IsForbidden(err) {
			break
		}
	}
	switch {
	case apierrors.IsForbidden(err):
		return nil, "", true, nil
	case err != nil:
		return nil, "", false, fmt.Errorf("list ResourceClaims: %w", err)
	}
	return found, namespace, false, nil
}

// readNodes reads the nodes.
func (r Reader) readNodes(ctx context.Context) (found []*corev1.Node, forbidden bool, err error) {
	if r.Node != "" {
		var node *corev1.Node
		if node, err = r.Client.CoreV1().Nodes().Get(ctx, r.Node, metav1.GetOptions{}); err == nil {
			return []*corev1.Node{node}, false, nil
		}
	} else {
		found, err = list[*corev1.Node](ctx, r.Client.CoreV1().Nodes(), metav1.ListOptions{})
	}
	switch {
	case apierrors.IsForbidden(err):
		return nil, true, nil
	case err != nil:
		return nil, false, fmt.Errorf("read nodes: %w", err)
	}
	return found, false, nil
}

// lister lists a kind of objects.
type lister[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
}

// list reads all pages of a list.
func list[T, L runtime.Object](ctx context.Context, of lister[L], options metav1.ListOptions) (found []T, err error) {
	err = each(ctx, of, options, func(item T) { found = append(found, item) })
	return found, err
}

// each calls a function for each object of a list, while its pages are read.
func each[T, L runtime.Object](ctx context.Context, of lister[L], options metav1.ListOptions, do func(T)) error {
	page := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return of.List(ctx, o) }
	return pager.New(page).EachListItem(ctx, options, func(object runtime.Object) error {
		item, ok := object.(T)
		if !ok {
			return fmt.Errorf("the API server lists a %T", object)
		}
		do(item)
		return nil
	})
}
