// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
)

// lists are those of a snapshot, each with what takes it away.
var lists = map[string]func(s *doctor.Snapshot){
	"nodes":                          func(s *doctor.Snapshot) { s.Nodes = nil },
	"namespaces":                     func(s *doctor.Snapshot) { s.Namespaces = nil },
	"pods":                           func(s *doctor.Snapshot) { s.Pods = nil },
	"events":                         func(s *doctor.Snapshot) { s.NodeEvents = nil },
	"resourcequotas":                 func(s *doctor.Snapshot) { s.Quotas = nil },
	"configmaps":                     func(s *doctor.Snapshot) { s.ConfigMaps = nil },
	"daemonsets.apps":                func(s *doctor.Snapshot) { s.DaemonSets = nil },
	"deployments.apps":               func(s *doctor.Snapshot) { s.Deployments = nil },
	"resourceslices.resource.k8s.io": func(s *doctor.Snapshot) { s.Slices, s.CPUs = nil, nil },
	"resourceclaims.resource.k8s.io": func(s *doctor.Snapshot) { s.Claims = nil },
	"deviceclasses.resource.k8s.io":  func(s *doctor.Snapshot) { s.Classes = nil },
	"mutatingadmissionpolicies.admissionregistration.k8s.io": func(s *doctor.Snapshot) {
		s.Mutating = nil
	},
	"mutatingadmissionpolicybindings.admissionregistration.k8s.io": func(s *doctor.Snapshot) {
		s.MutatingBindings = nil
	},
	"validatingadmissionpolicies.admissionregistration.k8s.io": func(s *doctor.Snapshot) {
		s.Validating = nil
	},
	"validatingadmissionpolicybindings.admissionregistration.k8s.io": func(s *doctor.Snapshot) {
		s.ValidatingBindings = nil
	},
}

// Who may not read one list of a cluster in order is told so, and of no fault that there is not.
func TestOneListThatMayNotBeRead(t *testing.T) {
	for name, change := range map[string]func(s *doctor.Snapshot){
		"installed": func(*doctor.Snapshot) {},
		"migrating": migrating, "configured": configured,
		"a node without the NVIDIA driver": func(s *doctor.Snapshot) {
			s.Slices, s.NodeEvents = s.Slices[:1], []corev1.Event{driverUnavailable("n2")}
		},
		"a quota that counts": func(s *doctor.Snapshot) {
			limited("requests.aliyun.com/gpu-mem")(s)
			counts(s)
		},
		"a namespace that did not opt in": func(s *doctor.Snapshot) {
			asksAsOnACK(s)
			optIn(s)
		},
	} {
		for _, what := range slices.Sorted(maps.Keys(lists)) {
			t.Run(name+"/"+what, func(t *testing.T) {
				s := installed(t)
				change(s)
				lists[what](s)
				s.Unread = []string{what}
				for _, f := range doctor.Examine(s).Findings {
					if f.Check != "rights" && f.Level != doctor.Note {
						t.Errorf("found %s %s %s: %s", f.Level, f.Check, f.Object, f.Text)
					}
				}
			})
		}
	}
}

// Who may read nothing is told so, and of nothing else.
func TestNothingThatCouldNotBeReadIsFoundMissing(t *testing.T) {
	const admission = ".admissionregistration.k8s.io"
	s := &doctor.Snapshot{Now: now, Unread: []string{"nodes", "pods", "daemonsets.apps", "deployments.apps",
		"resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io", "deviceclasses.resource.k8s.io",
		"mutatingadmissionpolicies" + admission, "mutatingadmissionpolicybindings" + admission,
		"validatingadmissionpolicies" + admission, "validatingadmissionpolicybindings" + admission}}
	r := doctor.Examine(s)
	expect.Equal(t, "warning rights : you may not list "+strings.Join(s.Unread, ", ")+
		": what depends on them was not checked", told(r), "findings")
}
