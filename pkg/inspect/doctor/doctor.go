// SPDX-License-Identifier: Apache-2.0

// Package doctor finds what is not in order with the driver's installation, as far as the API
// server shows it: each check is a function of one snapshot of the cluster.
package doctor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// Snapshot is a cluster at one time. A list that could not be read is nil, and said in
// Unread or Unserved; checks that need it find nothing.
type Snapshot struct {
	Now time.Time
	// ServerVersion is the API server's, as in v1.37.1; empty where it is not known.
	ServerVersion string
	// SchedulerRole is what Kubernetes lets its scheduler do; nil where that could not be read.
	SchedulerRole *rbacv1.ClusterRole
	// Unread are the lists that could not be read, as in "nodes".
	Unread []string
	// Unserved are the lists that the API server does not know.
	Unserved    []string
	Nodes       []*corev1.Node
	Namespaces  []*corev1.Namespace
	Pods        []*corev1.Pod
	DaemonSets  []*appsv1.DaemonSet
	Deployments []*appsv1.Deployment
	// ConfigMaps are those that the driver's programs take settings from.
	ConfigMaps []*corev1.ConfigMap
	// Slices are the driver's, CPUs those of dra-driver-cpu.
	Slices, CPUs []*resourceapi.ResourceSlice
	// NodeEvents are what the plugin says of nodes.
	NodeEvents []corev1.Event
	Claims     []*resourceapi.ResourceClaim
	Classes    []*resourceapi.DeviceClass
	Quotas     []*corev1.ResourceQuota

	Mutating           []*admissionv1.MutatingAdmissionPolicy
	MutatingBindings   []*admissionv1.MutatingAdmissionPolicyBinding
	Validating         []*admissionv1.ValidatingAdmissionPolicy
	ValidatingBindings []*admissionv1.ValidatingAdmissionPolicyBinding

	// Dear are claims and pods that wait, and that the SearchCost policies would refuse; Untried is why that is not
	// known of all.
	Dear    []Refused
	Untried string
}

// Refused is an object, as kubectl names it, and why policies would refuse it.
type Refused struct{ Object, Why string }

// Level is how bad a finding is.
type Level string

// The levels.
const (
	// Error: pods do not get their GPUs, or a guard is off.
	Error Level = "error"
	// Warning: something is not as it should be, and most goes on.
	Warning Level = "warning"
	// Note: it may be meant so.
	Note Level = "note"
)

func (l Level) rank() int { return slices.Index([]Level{Error, Warning, Note}, l) }

// Finding is something that is not in order. Its JSON form is an interface: fields are added,
// never renamed.
type Finding struct {
	Level Level `json:"level"`
	// Check is the name of the check that found it.
	Check string `json:"check"`
	// Object is what it is about, as kubectl names it; empty where that is the cluster.
	Object string `json:"object,omitempty"`
	// Text says what is the matter, Do what to do about it.
	Text string `json:"text"`
	Do   string `json:"do"`
}

// Report is what was found.
type Report struct {
	// Checks are the names of all checks that were made.
	Checks   []string  `json:"checks"`
	Findings []Finding `json:"findings"`
}

// Sound reports whether nothing has to be done.
func (r *Report) Sound() bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Level != Note })
}

// check is one check; its findings need not name it.
type check struct {
	name string
	find func(s *Snapshot) []Finding
}

// checks are all of them, in the order in which one would look.
var checks = []check{
	{"rights", unread},
	{"kubernetes", kubernetes},
	{"pods", pods},
	{"versions", versions},
	{"registered", registered},
	{"modes", modes},
	{"device-plugin", devicePlugin},
	{"other-drivers", otherDrivers},
	{"nvidia-dra", nvidiaDRA},
	{"pools", pools},
	{"health", health},
	{"classes", classes},
	{"policies", policies},
	{"claims", claims},
	{"search-cost", dear},
	{"legacy-pods", legacyPods},
	{"quotas", quotas},
	{"gates", gates},
	{"cpus", cpusOfOwn},
	{"stranded", strandedGPUs},
}

// Examine makes all checks. Its findings are ordered by their level, the worst first.
func Examine(s *Snapshot) *Report {
	r := &Report{Findings: []Finding{}}
	for _, c := range checks {
		r.Checks = append(r.Checks, c.name)
		for _, f := range c.find(s) {
			f.Check = c.name
			r.Findings = append(r.Findings, f)
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(a.Level.rank(), b.Level.rank()) })
	return r
}

// unread says what the user may not read, or the API server does not know.
func unread(s *Snapshot) []Finding {
	var out []Finding
	if len(s.Unread) > 0 {
		out = append(out, Finding{Level: Warning,
			Text: "you may not list " + strings.Join(s.Unread, ", ") + ": what depends on them was not checked",
			Do:   "run it as an administrator, or ask for the ClusterRole of docs/inspect.md#permissions"})
	}
	if len(s.Unserved) > 0 {
		out = append(out, Finding{Level: Warning,
			Text: "this Kubernetes does not serve " + strings.Join(s.Unserved, ", ") +
				": what depends on them was not checked",
			Do: "update Kubernetes: docs/install.md says which versions the driver works on"})
	}
	return out
}

// cannotRead reports whether one of some lists could not be read.
func (s *Snapshot) cannotRead(lists ...string) bool {
	return slices.ContainsFunc(lists, func(what string) bool {
		return slices.Contains(s.Unread, what) || slices.Contains(s.Unserved, what)
	})
}
