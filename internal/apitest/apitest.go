// SPDX-License-Identifier: Apache-2.0

// Package apitest lets tests write and read objects of a fake API server as other clients do, whatever the server
// answers the code under test. A test may call all functions but Get while that code waits for an answer. The server
// does not keep who wrote a field: a test that needs this writes through a client.
package apitest

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

// Object is an object of the API.
type Object interface {
	runtime.Object
	metav1.Object
}

// Create creates objects.
func Create[T runtime.Object](t testing.TB, server *fake.Clientset, objects ...T) {
	t.Helper()
	for _, object := range objects {
		if err := server.Tracker().Add(object); err != nil {
			t.Error(err)
		}
	}
}

// Answer has the server answer requests by how, which comes before what answered them until now. Others may send
// requests meanwhile: PrependReactor alone is a data race then.
func Answer(server *fake.Clientset, verb, resource string, how clienttesting.ReactionFunc) {
	server.Lock()
	defer server.Unlock()
	server.PrependReactor(verb, resource, how)
}

// Update overwrites an existing object.
func Update(t testing.TB, server *fake.Clientset, object Object) {
	t.Helper()
	if err := server.Tracker().Update(resourceOf(t, object), object, object.GetNamespace()); err != nil {
		t.Error(err)
	}
}

// Get returns the object of that name. It ends the test if there is none.
func Get[T Object](t testing.TB, server *fake.Clientset, namespace, name string) T {
	t.Helper()
	object, there := find[T](t, server, namespace, name)
	if !there {
		t.FailNow()
	}
	return object
}

// Change changes the object of that name, as the server has it.
func Change[T Object](t testing.TB, server *fake.Clientset, namespace, name string, change func(T)) {
	t.Helper()
	if object, there := find[T](t, server, namespace, name); there {
		change(object)
		Update(t, server, object)
	}
}

// Delete deletes the object of that name.
func Delete[T Object](t testing.TB, server *fake.Clientset, namespace, name string) {
	t.Helper()
	if err := server.Tracker().Delete(resourceOf(t, none[T]()), namespace, name); err != nil {
		t.Error(err)
	}
}

// find returns the object of that name. It fails the test if there is none.
func find[T Object](t testing.TB, server *fake.Clientset, namespace, name string) (T, bool) {
	t.Helper()
	found, err := server.Tracker().Get(resourceOf(t, none[T]()), namespace, name)
	object, is := found.(T)
	if err != nil || !is {
		t.Errorf("%s/%s is a %T: %v", namespace, name, found, err)
	}
	return object, is
}

// none returns an empty object of the type.
func none[T Object]() Object {
	object, _ := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(Object)
	return object
}

// resourceOf returns the API resource of the object.
func resourceOf(t testing.TB, object runtime.Object) schema.GroupVersionResource {
	t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		t.Error(err)
		return schema.GroupVersionResource{}
	}
	resource, _ := meta.UnsafeGuessKindToResource(kinds[0])
	return resource
}
