// SPDX-License-Identifier: Apache-2.0

// Package plan answers what kubectl inspect cgpu plan asks: would the pods of some manifests
// find their GPUs, on which nodes, what would be left, and what would the others wait for.
// Pods are placed one after the other, each beside those before it. Whether a pod finds its
// GPUs on a node is the scheduler's allocator's to say, as in explain (pkg/scheduling), and
// why it does not is said by package why. Nothing is created. The package is pure.
package plan

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Source is where something was written.
type Source struct {
	// File is its name, as it was given, Document its number in the file, from 1; 0 where
	// it is no file.
	File     string `json:"file"`
	Document int    `json:"document"`
}

// String is how errors name it.
func (s Source) String() string {
	if s.Document == 0 {
		return s.File
	}
	return fmt.Sprintf("%s, document %d", s.File, s.Document)
}

// Manifests are what is to be planned.
type Manifests struct {
	Workloads  []Workload
	Claims     []*resourceapi.ResourceClaim
	Templates  []*resourceapi.ResourceClaimTemplate
	Classes    []*resourceapi.DeviceClass
	Namespaces []*corev1.Namespace
	Skipped    []Skipped
}

// Workload is something that pods are made of.
type Workload struct {
	Source
	// Kind is as kubectl names it: deployment; Ordinals are the suffixes of the pods' names.
	Kind, Namespace, Name string
	Template              corev1.PodTemplateSpec
	// Pods is how many there are, First the number of the first. Of one that PerNode it is one
	// for each node that it can be on.
	Pods, First int
	PerNode     bool
	// On is the node where its pod is now, and stays if there is room.
	On string
	// Admitted is what the cluster's admission makes of Template, nil where that is not known.
	// Refused is why it would not let the pods be created.
	Admitted *corev1.PodTemplateSpec
	Refused  string
	// Note says what is special about its pods.
	Note string
}

// String is how it is named.
func (w *Workload) String() string { return w.Kind + "/" + w.Name }

// Created is what its pods are created from, as far as that is known.
func (w *Workload) Created() *corev1.PodTemplateSpec {
	if w.Admitted != nil {
		return w.Admitted
	}
	return &w.Template
}

// Skipped is a document that is not planned, and why.
type Skipped struct {
	Source
	Object string `json:"object"`
	Why    string `json:"why"`
}

// Input is what is to be planned, and the cluster.
type Input struct {
	scheduling.Snapshot
	Manifests
	// Templates and Namespaces of the manifests come before these of the cluster.
	KnownTemplates  []*resourceapi.ResourceClaimTemplate
	KnownNamespaces []*corev1.Namespace
	// Unread says of claims and templates that could not be read why, by kind/namespace/name,
	// and of namespaces by Namespace/name.
	Unread map[string]string
	// AdmittedClaims has the known specs that admission makes of claims, by the kind/namespace/name of the manifest: a
	// ResourceClaim, or the ResourceClaimTemplate of the claims.
	AdmittedClaims map[string]resourceapi.ResourceClaimSpec
	// Bound are the pods that are on nodes: CPU and memory are theirs. PodsUnknown says that
	// they could not be read.
	Bound       []*corev1.Pod
	PodsUnknown bool
	// Beside are pods without a node that are not planned: in their gangs they count as placed.
	Beside []*corev1.Pod
	// Converts selects the namespaces whose pods as on ACK are converted, as the binding
	// gpushare-legacy-convert says; nil stands for that of the driver's manifests.
	Converts *metav1.LabelSelector
	// OthersUnknown and NodesUnknown say what else could not be read, see why.Input.
	OthersUnknown, NodesUnknown bool
	Now                         time.Time
	Notes                       []string

	policies legacy.Policies
	engine   *scheduling.Engine
}

// Plan is the answer. Its JSON form is an interface: fields are added, never renamed.
type Plan struct {
	// Fits is how many pods find room, Waits how many do not. Of Unsearched it is not known: nodes were not searched to
	// the end.
	Fits       int   `json:"fits"`
	Waits      int   `json:"waits"`
	Unsearched int   `json:"unsearched,omitempty"`
	Pods       []Pod `json:"pods"`
	// Nodes say what is left.
	Nodes   []inspect.Node `json:"nodes"`
	Skipped []Skipped      `json:"skipped,omitempty"`
	Notes   []string       `json:"notes,omitempty"`

	// nothing says that the manifests have no workload that is read.
	nothing bool
	// left is the table of which Nodes are.
	left *inspect.Table
}

// Pod is where a pod would land, or why it would wait.
type Pod struct {
	Source
	// Workload is what makes it: deployment/train.
	Workload  string `json:"workload"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Asked are its requests for devices, a line for each.
	Asked []string `json:"asked,omitempty"`
	// Node is where it would land, empty if it would wait, or where that was not searched to the end, which Unsearched
	// says; Devices are those it would get.
	Node       string   `json:"node,omitempty"`
	Devices    []string `json:"devices,omitempty"`
	Unsearched bool     `json:"unsearched,omitempty"`
	// Why is why it waits, in a sentence, Lacks what each node lacks, Help what would help.
	Why   string     `json:"why,omitempty"`
	Lacks []NodeLack `json:"lacks,omitempty"`
	Help  []string   `json:"help,omitempty"`
}

// NodeLack is what a node lacks for a pod.
type NodeLack struct {
	Node  string   `json:"node"`
	GPUs  int      `json:"gpus"`
	Lacks []string `json:"lacks"`
}

// Nothing reports whether nothing was planned, because all of the manifests was skipped.
func (p *Plan) Nothing() bool { return p.nothing && len(p.Skipped) > 0 }

// AllFit reports whether all pods are known to find room.
func (p *Plan) AllFit() bool { return p.Waits == 0 && p.Unsearched == 0 }

// Of plans. An error is one of the objects, or the context's.
func Of(ctx context.Context, in Input) (*Plan, error) {
	if err := in.prepare(); err != nil {
		return nil, err
	}
	in.engine = scheduling.NewEngine(scheduling.ExpressionsMost)
	pods := expand(ctx, &in)
	first, s, err := run(ctx, &in, pods, false)
	if err != nil {
		return nil, err
	}
	if first.Waits > 0 && len(in.Nodes) > 1 {
		packed, _, err := run(ctx, &in, pods, true)
		if err != nil {
			return nil, err
		}
		if more := packed.Fits - first.Fits; more > 0 {
			first.Notes = append(first.Notes, fmt.Sprintf("%d more would fit if the scheduler filled one node after the "+
				"other: docs/packing.md.", more))
		}
	}
	first.left = s.table()
	first.Nodes, first.Skipped, first.nothing = first.left.Nodes, in.Skipped, len(in.Workloads) == 0
	first.Notes = slices.Concat(in.Notes, notLookedAt(&in, pods), first.Notes)
	return first, nil
}

// prepare makes of the input what the API server would have made of it, and ready what pods are compared with.
func (in *Input) prepare() (err error) {
	classes := slices.DeleteFunc(slices.Clone(in.Snapshot.Classes), func(c *resourceapi.DeviceClass) bool {
		return scheduling.Named(in.Manifests.Classes, "", c.Name) != nil
	})
	in.Snapshot.Classes = withProfiles(append(classes, in.Manifests.Classes...), in)
	in.Snapshot.Claims = slices.Clone(in.Snapshot.Claims)
	for _, claim := range in.Manifests.Claims {
		// One that is there may be allocated, and cannot be changed.
		if scheduling.Named(in.Snapshot.Claims, claim.Namespace, claim.Name) == nil {
			in.Snapshot.Claims = append(in.Snapshot.Claims, in.admitted("ResourceClaim", claim.Name, claim))
		}
	}
	in.policies, err = legacy.NewPolicies(in.Converts)
	return err
}

// withProfiles are the classes with those of the MIG profiles that nodes offer, which gpu-compat-controller makes, and
// of those that pods ask for as of a device plugin: so a pod is told what there is instead.
func withProfiles(classes []*resourceapi.DeviceClass, in *Input) []*resourceapi.DeviceClass {
	var profiles []string
	for _, slice := range in.Slices {
		for _, d := range slice.Spec.Devices {
			if p := d.Attributes[v1alpha1.AttrProfile].StringValue; p != nil && slice.Spec.Driver == v1alpha1.DriverName {
				profiles = append(profiles, *p)
			}
		}
	}
	for i := range in.Workloads {
		spec := &in.Workloads[i].Created().Spec
		for _, c := range slices.Concat(spec.Containers, spec.InitContainers) {
			for name := range c.Resources.Limits {
				if profile, is := deviceclasses.ProfileOf(name); is {
					profiles = append(profiles, profile)
				}
			}
		}
	}
	return deviceclasses.WithProfiles(classes, profiles)
}
