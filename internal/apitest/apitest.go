// SPDX-License-Identifier: Apache-2.0

// Package apitest lets tests write and read objects at a fake API server as others do, whatever the
// clients of the code under test are answered. All but Get may be called while such a client waits
// for an answer. Who wrote a field is not kept: where that matters, tests write by a client.
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
)

// Object is one of the API.
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

// Update writes an object that is there.
func Update(t testing.TB, server *fake.Clientset, object Object) {
	t.Helper()
	if err := server.Tracker().Update(resourceOf(t, object), object, object.GetNamespace()); err != nil {
		t.Error(err)
	}
}

// Get returns the object of that name, which ends the test where there is none.
func Get[T Object](t testing.TB, server *fake.Clientset, namespace, name string) T {
	t.Helper()
	object, there := find[T](t, server, namespace, name)
	if !there {
		t.FailNow()
	}
	return object
}

// Change writes the object of that name as it is with a change.
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

// find returns the object of that name; where there is none the test has failed.
func find[T Object](t testing.TB, server *fake.Clientset, namespace, name string) (T, bool) {
	t.Helper()
	found, err := server.Tracker().Get(resourceOf(t, none[T]()), namespace, name)
	object, is := found.(T)
	if err != nil || !is {
		t.Errorf("%s/%s is a %T: %v", namespace, name, found, err)
	}
	return object, is
}

// none is an empty object of a type.
func none[T Object]() Object {
	object, _ := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(Object)
	return object
}

// resourceOf is what the API server calls objects such as this one.
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
