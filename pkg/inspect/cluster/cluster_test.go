// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
)

func objects() []runtime.Object {
	return []runtime.Object{
		&resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"},
			Spec: resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, NodeName: ptr.To("n1")}},
		claim("team-a", "c"), claim("team-b", "c"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}},
	}
}

func claim(namespace, name string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// forbid lets the client be refused some requests, as in "list nodes" and, in a
// namespace, "list resourceclaims team-a".
func forbid(client *fake.Clientset, forbidden ...string) {
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		what := strings.TrimSpace(action.GetVerb() + " " + action.GetResource().Resource + " " + action.GetNamespace())
		if !slices.Contains(forbidden, what) {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("not allowed"))
	})
}

// answer has the API server answer requests so, or with the error.
func answer(client *fake.Clientset, verb, resource string, with runtime.Object, err error) {
	client.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, with, err
	})
}

// read is what was read, in short.
type read struct {
	Slices, Claims, Nodes []string
	ClaimsUnknown         bool
	Pods                  []string
}

func short(in inspect.Input) read {
	r := read{ClaimsUnknown: in.ClaimsUnknown}
	for _, slice := range in.Slices {
		r.Slices = append(r.Slices, slice.Name)
	}
	for _, claim := range in.Claims {
		r.Claims = append(r.Claims, claim.Namespace+"/"+claim.Name)
	}
	for _, node := range in.Nodes {
		r.Nodes = append(r.Nodes, node.Name)
	}
	for _, pod := range in.Pods {
		r.Pods = append(r.Pods, pod.Name)
	}
	return r
}

func TestReadsWhatItMay(t *testing.T) {
	tests := map[string]struct {
		forbidden []string
		node      string
		want      read
		notes     []string
	}{
		"everything": {
			nil, "", read{[]string{"s"}, []string{"team-a/c", "team-b/c"}, []string{"n1", "n2"}, false, nil}, nil,
		},
		"one node": {
			[]string{"list nodes"}, "n1", read{[]string{"s"}, []string{"team-a/c", "team-b/c"}, []string{"n1"}, false, nil}, nil,
		},
		"no nodes": {
			[]string{"list nodes"}, "", read{[]string{"s"}, []string{"team-a/c", "team-b/c"}, nil, false, nil},
			[]string{"You may not read nodes"},
		},
		"claims of one namespace": {
			[]string{"list resourceclaims"}, "", read{[]string{"s"}, []string{"team-a/c"}, []string{"n1", "n2"}, false, nil},
			[]string{"of namespace team-a only"},
		},
		"no claims": {
			[]string{"list resourceclaims", "list resourceclaims team-a"}, "",
			read{[]string{"s"}, nil, []string{"n1", "n2"}, true, nil},
			[]string{"what is allocated is not known"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(objects()...)
			forbid(client, test.forbidden...)
			in, err := cluster.Reader{Client: client, Node: test.node, Namespace: "team-a"}.Read(t.Context())
			expect.NoError(t, err)
			expect.Equal(t, test.want, short(in), "read")
			if len(in.Notes) != len(test.notes) {
				t.Fatalf("notes %q, want %q", in.Notes, test.notes)
			}
			for i, want := range test.notes {
				expect.Says(t, in.Notes[i], want)
			}
		})
	}
}

func TestReadErrors(t *testing.T) {
	for name, test := range map[string]struct {
		forbidden []string
		node      string
		want      string
	}{
		"no slices": {[]string{"list resourceslices"}, "", "the GPUs are in ResourceSlices, which you may not " +
			"list; ask for a ClusterRole"},
		"there is no such node": {nil, "n3", `nodes "n3" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(objects()...)
			forbid(client, test.forbidden...)
			_, err := cluster.Reader{Client: client, Node: test.node, Namespace: "team-a"}.Read(t.Context())
			expect.Error(t, err, test.want)
		})
	}
}

func TestOneListForEachKind(t *testing.T) {
	client := fake.NewClientset(objects()...)
	_, err := (cluster.Reader{Client: client, Namespace: "team-a"}).Read(t.Context())
	expect.NoError(t, err)
	if actions := client.Actions(); len(actions) != 3 {
		t.Errorf("asked the API server %d times: %v", len(actions), actions)
	}
}

// What is lost of free GPUs follows from all nodes, claims and pods: where some may not be read, no pods count.
func TestPodsOnNodesAreReadForWhatTheyRequest(t *testing.T) {
	const requested = "2"
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n1",
		Containers: []corev1.Container{{Image: "large", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(requested)}}}}}}
	for name, test := range map[string]struct {
		forbidden []string
		reader    cluster.Reader
		want      bool
	}{
		"where they are asked for":  {nil, cluster.Reader{Bound: true}, true},
		"nowhere else":              {nil, cluster.Reader{}, false},
		"not of one node":           {nil, cluster.Reader{Bound: true, Node: "n1"}, false},
		"not without permission":    {[]string{"list pods"}, cluster.Reader{Bound: true}, false},
		"not beside unknown nodes":  {[]string{"list nodes"}, cluster.Reader{Bound: true}, false},
		"not beside unknown claims": {[]string{"list resourceclaims"}, cluster.Reader{Bound: true}, false},
		"not beside some claims": {[]string{"list resourceclaims"}, cluster.Reader{Bound: true, Namespace: "team-a"},
			false},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(append(objects(), pod.DeepCopy())...)
			forbid(client, test.forbidden...)
			test.reader.Client = client
			in, err := test.reader.Read(t.Context())
			expect.NoError(t, err)
			if (len(in.Bound) == 1) != test.want {
				t.Fatalf("read are %v", in.Bound)
			}
			for _, p := range in.Bound {
				c := p.Spec.Containers[0]
				if cpu := c.Resources.Requests[corev1.ResourceCPU]; cpu.String() != requested || c.Image != "" {
					t.Errorf("kept is %+v, want what it requests alone", c)
				}
			}
		})
	}
}

// slice is what a node publishes of one GPU of 16130 MiB, of which so much is left.
func slice(name, node string, gib int64) *resourceapi.ResourceSlice {
	device := resourceapi.Device{
		Name: "gpu-0-share", AllowMultipleAllocations: ptr.To(true),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			v1alpha1.AttrMemoryMiB: {IntValue: ptr.To[int64](16130)}},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			v1alpha1.CapMemory: {Value: *resource.NewQuantity(gib*devices.GiB, resource.BinarySI)}},
	}
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: ptr.To(node), Pool: resourceapi.ResourcePool{Name: v1alpha1.PoolName(node)},
		Devices: []resourceapi.Device{device},
	}}
}

// withoutClaim is a pod that ACK's device plugin started, unless it asks for nothing.
func withoutClaim(name, amount string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name},
		Spec: corev1.PodSpec{NodeName: "n1"}}
	limits := corev1.ResourceList{"aliyun.com/gpu-mem": resource.MustParse(amount)}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "large", Resources: corev1.ResourceRequirements{
		Limits: limits}}}
	return pod
}

func TestPodsAreReadWhereSomeHoldNoClaim(t *testing.T) {
	objects := append(objects(), withoutClaim("old", "3"), withoutClaim("other", "0"))
	for name, test := range map[string]struct {
		left      int64
		forbidden []string
		pods      []string
		unknown   bool
		note      string
		lists     int
	}{
		"nothing taken": {15, nil, nil, false, "", 3},
		"some":          {12, nil, []string{"old"}, false, "", 4},
		"not allowed":   {12, []string{"list pods"}, nil, true, "You may not list pods", 4},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(append(objects, slice("s1", "n1", test.left))...)
			forbid(client, test.forbidden...)
			in, err := cluster.Reader{Client: client, Namespace: "team-a"}.Read(t.Context())
			expect.NoError(t, err)
			var pods []string
			for _, pod := range in.Pods {
				if pods = append(pods, pod.Name); pod.Spec.Containers[0].Image != "" {
					t.Error("more is kept of the pod than is needed")
				}
			}
			if !slices.Equal(test.pods, pods) || in.PodsUnknown != test.unknown {
				t.Errorf("pods %q, unknown: %t", pods, in.PodsUnknown)
			}
			expect.Says(t, strings.Join(in.Notes, "\n"), test.note)
			if actions := client.Actions(); len(actions) != test.lists {
				t.Errorf("asked the API server %d times: %v", len(actions), actions)
			}
		})
	}
}

// tables is a watch while it runs: what it shows, what it returns, and how to stop it.
type tables struct {
	shown  <-chan read
	result <-chan error
	stop   func()
}

// watching runs a watch of a cluster, once it has shown the first table and watches this resource: the client forgets
// what happens between an informer's list and its watch.
func watching(t *testing.T, client *fake.Clientset, resource string) (of tables, first read) {
	t.Helper()
	watched, once := make(chan struct{}), sync.Once{}
	client.PrependWatchReactor(resource, func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		once.Do(func() { close(watched) })
		return true, w, err
	})
	of = watchingAll(t, client)
	first = <-of.shown
	select {
	case <-watched:
	case err := <-of.result:
		t.Fatalf("the watch ended: %v", err)
	}
	return of, first
}

// until waits for a table that is so, and ends the test if the watch ends before.
func (of tables) until(t *testing.T, is func(read) bool) {
	t.Helper()
	for {
		select {
		case now := <-of.shown:
			if is(now) {
				return
			}
		case err := <-of.result:
			t.Fatalf("the watch ended: %v", err)
		}
	}
}

// watchingAll runs a watch of a cluster.
func watchingAll(t *testing.T, client *fake.Clientset) tables {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	shown, ended := make(chan read), make(chan error, 1)
	go func() {
		ended <- cluster.Reader{Client: client, Namespace: "team-a"}.Watch(ctx, func(in inspect.Input) error {
			select {
			case shown <- short(in):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return tables{shown, ended, cancel}
}

func TestWatchShowsChanges(t *testing.T) {
	client := fake.NewClientset(objects()...)
	of, first := watching(t, client, "resourceclaims")
	expect.Equal(t, 2, len(first.Claims), "claims at first: %+v", first)
	apitest.Create(t, client, claim("team-c", "new"))
	of.until(t, func(now read) bool { return len(now.Claims) == 3 })
	of.stop()
	expect.Error(t, <-of.result)
}

func TestWatchReadsPodsWhenNodesShowThem(t *testing.T) {
	client := fake.NewClientset(append(objects(), slice("s1", "n1", 15), withoutClaim("old", "3"))...)
	of, first := watching(t, client, "resourceslices")
	expect.Equal(t, 0, len(first.Pods), "pods at first: %+v", first)
	for _, change := range []struct {
		left int64
		pods int
	}{{12, 1}, {15, 0}} {
		apitest.Update(t, client, slice("s1", "n1", change.left))
		of.until(t, func(now read) bool { return len(now.Pods) == change.pods })
	}
	of.stop()
	expect.Error(t, <-of.result)
}

func TestWatchEndsWhereItIsForbidden(t *testing.T) {
	client := fake.NewClientset(objects()...)
	client.PrependWatchReactor("resourceclaims", func(clienttesting.Action) (bool, watch.Interface, error) {
		return true, nil, apierrors.NewForbidden(resourceapi.Resource("resourceclaims"), "", errors.New("not allowed"))
	})
	of := watchingAll(t, client)
	for {
		select {
		case <-of.shown:
			continue
		case err := <-of.result:
			expect.Error(t, err, "watching needs the permissions list and watch")
		}
		break
	}
}
