// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// The parts of a node's status that have the amounts.
const (
	capacity    = "capacity"
	allocatable = "allocatable"
)

// Owners says who wrote the amounts in a node's status. Its zero value says that
// nobody is known to have.
//
// The API server records a writer when it changes a value, or applies it, not when
// it writes what is there: a device plugin that comes to offer exactly what the
// controller has written before is not noticed.
type Owners struct {
	// written are in the order of managedFields. One is kept of each node of a cluster: a map of
	// eight entries takes twice the memory.
	written []written
}

// written is that a manager wrote a resource in a part of the status.
type written struct {
	part    string
	name    corev1.ResourceName
	manager string
}

// managers lists the writers of a resource in a part.
func (o Owners) managers(part string, name corev1.ResourceName) []string {
	var managers []string
	for _, w := range o.written {
		if w.part == part && w.name == name {
			managers = append(managers, w.manager)
		}
	}
	return managers
}

// ReadOwners reads the managedFields of a node. Where one of them cannot be read,
// nobody is known to have written anything: what is there is then left to others.
func ReadOwners(managedFields []metav1.ManagedFieldsEntry) Owners {
	owners := Owners{}
	for _, entry := range managedFields {
		if entry.FieldsV1 == nil {
			continue
		}
		var set fieldpath.Set
		if err := set.FromJSON(entry.FieldsV1.GetRawReader()); err != nil {
			return Owners{}
		}
		for _, part := range []string{capacity, allocatable} {
			for _, name := range Names() {
				if set.Has(fieldpath.MakePathOrDie("status", part, string(name))) {
					owners.written = append(owners.written, written{part, name, entry.Manager})
				}
			}
		}
	}
	return owners
}

// Equal reports whether the same managers wrote the same amounts.
func (o Owners) Equal(other Owners) bool { return slices.Equal(o.written, other.written) }

// OursAlone lists, in order, what nobody but the controller wrote, in capacity and in
// allocatable.
func (o Owners) OursAlone() (inCapacity, inAllocatable []corev1.ResourceName) {
	return o.oursAlone(capacity), o.oursAlone(allocatable)
}

func (o Owners) oursAlone(part string) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, name := range Names() {
		managers := o.managers(part, name)
		if len(managers) > 0 && !slices.ContainsFunc(managers, isOther) {
			out = append(out, name)
		}
	}
	return out
}

// Others reports whether anybody else wrote any of the amounts.
func (o Owners) Others() bool {
	return slices.ContainsFunc(o.written, func(w written) bool { return isOther(w.manager) })
}

func isOther(manager string) bool { return manager != v1alpha1.ControllerName }

// Foreign is an amount that the controller must not write.
type Foreign struct {
	Name    corev1.ResourceName
	Amount  string
	Manager string // who wrote it, "an unknown writer" where that is not recorded
}

// String is what to tell a person.
func (f Foreign) String() string {
	return fmt.Sprintf("%s is %s, written by %s", f.Name, f.Amount, f.Manager)
}

// Foreign lists, in order, what a device plugin offers, or may still be about to:
// amounts above zero of what device plugins serve, in capacity or in allocatable,
// that not the controller alone wrote. Nobody has been promised anything by a zero,
// which is also what a kubelet leaves behind when a device plugin is gone.
func (o Owners) Foreign(status corev1.NodeStatus) []Foreign {
	var out []Foreign
	for _, name := range served() {
		inCapacity, is := o.foreign(capacity, name, status.Capacity)
		if inAllocatable, isToo := o.foreign(allocatable, name, status.Allocatable); isToo {
			inCapacity, is = inAllocatable, true
		}
		if is {
			out = append(out, inCapacity)
		}
	}
	return out
}

// Offered is Foreign for what pods can be given at the moment: allocatable alone.
func (o Owners) Offered(list corev1.ResourceList) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, name := range served() {
		if _, is := o.foreign(allocatable, name, list); is {
			out = append(out, name)
		}
	}
	return out
}

func (o Owners) foreign(part string, name corev1.ResourceName, list corev1.ResourceList) (Foreign, bool) {
	amount := list[name]
	if amount.IsZero() {
		return Foreign{}, false
	}
	managers := o.managers(part, name)
	found := Foreign{Name: name, Amount: amount.String(), Manager: "an unknown writer"}
	if len(managers) == 0 {
		return found, true
	}
	i := slices.IndexFunc(managers, isOther)
	if i < 0 {
		return Foreign{}, false
	}
	found.Manager = managers[i]
	return found, true
}
