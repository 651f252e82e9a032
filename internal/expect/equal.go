// SPDX-License-Identifier: Apache-2.0

package expect

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/pmezard/go-difflib/difflib"
	"k8s.io/utils/dump"
)

// Equal fails the test, and lets it go on, if the values differ, and prints how. The format says whose values they are.
// Values are compared as by [Diff].
func Equal[T any](t testing.TB, want, got T, format string, args ...any) {
	t.Helper()
	if err := Diff(want, got); err != nil {
		t.Errorf(format+" %v", append(args, err)...)
	}
}

// Diff returns an error that prints how the values differ, where they do: for what need not hold yet. They are compared
// part by part, unexported ones too, but by the method Equal of a type that has one, as a quantity. Nil is not empty.
//
// go-cmp does that as well. But it names interfaces by their methods, which it looks up by number, and then the linker
// keeps the methods of all types: a test that is linked with client-go becomes twice as large by it.
func Diff[T any](want, got T) error {
	if same(reflect.ValueOf(&want).Elem(), reflect.ValueOf(&got).Elem()) {
		return nil
	}
	return fmt.Errorf("(-want +got):\n%s", lines(want, got))
}

// same reports whether two values of one type are the same.
func same(a, b reflect.Value) bool {
	if a.CanInterface() && hasEqual(a.Type()) && !(a.Kind() == reflect.Pointer && (a.IsNil() || b.IsNil())) {
		return a.MethodByName("Equal").Call([]reflect.Value{b})[0].Bool()
	}
	switch a.Kind() {
	case reflect.Pointer, reflect.Interface:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() && b.IsNil()
		}
		return a.Elem().Type() == b.Elem().Type() && same(a.Elem(), b.Elem())
	case reflect.Struct:
		for i := range a.NumField() {
			if !same(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case reflect.Slice, reflect.Array:
		if a.Kind() == reflect.Slice && a.IsNil() != b.IsNil() || a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !same(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		if a.IsNil() != b.IsNil() || a.Len() != b.Len() {
			return false
		}
		for _, key := range a.MapKeys() {
			if other := b.MapIndex(key); !other.IsValid() || !same(a.MapIndex(key), other) {
				return false
			}
		}
		return true
	case reflect.Func:
		return a.IsNil() && b.IsNil()
	default:
		return a.Equal(b)
	}
}

// hasEqual reports whether values of the type say themselves whether they equal another one.
func hasEqual(t reflect.Type) bool {
	if t.Kind() == reflect.Interface {
		return false // what is in it is asked
	}
	m, found := t.MethodByName("Equal")
	return found && m.Type.NumIn() == 2 && t.AssignableTo(m.Type.In(1)) && m.Type.NumOut() == 1 &&
		m.Type.Out(0).Kind() == reflect.Bool
}

// lines are those by which two values differ: of texts, of JSON, or of all there is where JSON does not show it.
func lines(want, got any) string {
	a, b := text(want), text(got)
	if a == b {
		a, b = dump.Pretty(want), dump.Pretty(got)
	}
	diff, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{A: difflib.SplitLines(a), B: difflib.SplitLines(b),
		Context: 3})
	if err != nil {
		return fmt.Sprintf("%s\n%s", a, b)
	}
	return diff
}

func text(value any) string {
	if s, is := value.(string); is {
		return s
	}
	encoded, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return ""
	}
	return string(encoded)
}
