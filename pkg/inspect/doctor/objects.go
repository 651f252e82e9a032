// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
)

// stuckAfter is for how long a claim may be in a state that passes.
const stuckAfter = 5 * time.Minute

// SearchCost are the policies that bound what a pod may cost the scheduler; searchCostMutating are those that write
// what they use.
var (
	SearchCost = []string{
		"gpushare-search-cost", "gpushare-search-cost-pods", "gpushare-several-claims-claim",
		"gpushare-several-claims-cpus", "gpushare-several-claims-named", "gpushare-several-claims-template",
	}
	searchCostMutating = []string{"gpushare-own-class-labels", "gpushare-own-classes", "gpushare-several-claims"}
)

// The names of the driver's other policies (deployments/manifests; a test compares them): guards
// that keep what the driver's accounts may do to what they have to, and checks of claims; and
// those by which pods are converted that ask as on ACK.
var (
	guards = []string{
		"gpushare-allocated-claims-stay", "gpushare-claim-advice", "gpushare-claim-amounts", "gpushare-controller-templates",
		"gpushare-controller-writes", "gpushare-keep-limits", "gpushare-plugin-claim-status", "gpushare-plugin-events",
		"gpushare-quota-advice", "gpushare-slice-names", "gpushare-slices-of-own-node", "gpushare-supervisor-events",
		"gpushare-workload-advice",
	}
	guardsMutating = []string{"gpushare-numbered-slices"}
	legacyMutating = []string{
		"gpushare-legacy-apply-again", "gpushare-legacy-convert", "gpushare-legacy-copies", "gpushare-legacy-cpuset",
		"gpushare-legacy-cpuset-claims", "gpushare-legacy-elastic", "gpushare-legacy-gang", "gpushare-legacy-limit-range",
		"gpushare-legacy-scheduler",
	}
	legacyValidating = []string{
		"gpushare-legacy-elastic-advice", "gpushare-legacy-first-tries", "gpushare-legacy-lost-claims",
		"gpushare-legacy-refuse",
	}
	// migrationLeavesOut are those that nothing binds while nodes move from device plugins: no pod
	// is refused then (docs/migrate.md).
	migrationLeavesOut = []string{"gpushare-legacy-refuse"}
)

// classes looks for DeviceClasses that are missing or changed.
func classes(s *Snapshot) []Finding {
	if s.cannotRead("deviceclasses.resource.k8s.io") {
		return nil
	}
	there := map[string]*resourceapi.DeviceClass{}
	for _, class := range s.Classes {
		there[class.Name] = class
	}
	installed, err := deviceclasses.All()
	if err != nil {
		return []Finding{{Level: Error, Text: "this program's DeviceClasses cannot be read: " + err.Error(),
			Do: "install kubectl-inspect-cgpu again"}}
	}
	var missing []string
	out := sameResource(s.Classes, installed)
	for _, class := range installed {
		has := there[class.Name]
		switch {
		case has == nil:
			missing = append(missing, class.Name)
		case !slices.EqualFunc(has.Spec.Selectors, class.Spec.Selectors, sameSelector):
			out = append(out, Finding{Level: Warning, Object: "deviceclass/" + class.Name,
				Text: "its selectors are not those that the driver is installed with",
				Do:   "apply the driver's manifests again, unless you changed the class on purpose"})
		}
	}
	if len(missing) > 0 {
		out = append(out, Finding{Level: Error, Text: "DeviceClasses are missing: " + strings.Join(missing, ", "),
			Do: "apply the driver's manifests again: claims that name one of them wait"})
	}
	return out
}

// sameResource finds classes of others with an extended resource of the driver's. The scheduler allocates by the newer
// class alone (KEP-5004), wherever a pod may run, and forgets both when one of them is deleted.
func sameResource(all, installed []*resourceapi.DeviceClass) []Finding {
	own := map[string]bool{}
	for _, class := range installed {
		own[class.Name] = true
	}
	var out []Finding
	for _, class := range all {
		resource := class.Spec.ExtendedResourceName
		if !own[class.Name] || resource == nil {
			continue
		}
		for _, other := range all {
			if !own[other.Name] && ptr.Deref(other.Spec.ExtendedResourceName, "") == *resource {
				out = append(out, Finding{Level: Warning, Object: "deviceclass/" + other.Name,
					Text: fmt.Sprintf("it has the extended resource %s, as the class %s: pods that ask for it get devices of "+
						"the newer class alone, on all nodes", *resource, class.Name),
					Do: "take spec.extendedResourceName off the class that is not to serve it: " +
						"docs/install.md#beside-another-dra-driver"})
			}
		}
	}
	return out
}

func sameSelector(a, b resourceapi.DeviceSelector) bool {
	return a.CEL != nil && b.CEL != nil && strings.TrimSpace(a.CEL.Expression) == strings.TrimSpace(b.CEL.Expression)
}

// policy is a policy and what its binding is.
type policy struct{ there, bound bool }

// states returns the state of each policy by its name: of those that exist, and of those that a binding names.
func states[P metav1.Object, B any](policies []P, bindings []B, of func(B) string) map[string]policy {
	out := map[string]policy{}
	for _, p := range policies {
		out[p.GetName()] = policy{there: true}
	}
	for _, b := range bindings {
		out[of(b)] = policy{out[of(b)].there, true}
	}
	return out
}

// unboundedSearch is what it means where one of SearchCost is off.
const unboundedSearch = "what a pod may cost the scheduler is not bounded: one can keep it busy for all others"

// policies looks for admission policies that are missing, or that nothing binds.
func policies(s *Snapshot) []Finding {
	var out []Finding
	mutating := states(s.Mutating, s.MutatingBindings, func(b *admissionv1.MutatingAdmissionPolicyBinding) string {
		return b.Spec.PolicyName
	})
	validating := states(s.Validating, s.ValidatingBindings, func(b *admissionv1.ValidatingAdmissionPolicyBinding) string {
		return b.Spec.PolicyName
	})
	if m := s.migration(); m.unknown || m.label != "" {
		for _, name := range migrationLeavesOut {
			validating[name] = policy{validating[name].there, true}
		}
	}
	const mutatingKind, validatingKind = "mutatingadmissionpolicy", "validatingadmissionpolicy"
	if !s.cannotRead("validatingadmissionpolicies.admissionregistration.k8s.io",
		"validatingadmissionpolicybindings.admissionregistration.k8s.io") {
		out = append(out, lacking(validatingKind, guards, validating, Error,
			"a guard of the driver's rights, or a check of claims, is off")...)
		out = append(out, lacking(validatingKind, SearchCost, validating, Warning, unboundedSearch)...)
		out = append(out, lacking(validatingKind, legacyValidating, validating, Warning, "legacy pods are not checked")...)
	}
	if !s.cannotRead("mutatingadmissionpolicies.admissionregistration.k8s.io",
		"mutatingadmissionpolicybindings.admissionregistration.k8s.io") {
		out = append(out, lacking(mutatingKind, guardsMutating, mutating, Error, "nodes create no ResourceSlices")...)
		out = append(out, lacking(mutatingKind, searchCostMutating, mutating, Warning, unboundedSearch)...)
		out = append(out, lacking(mutatingKind, legacyMutating, mutating, Warning, "legacy pods are not converted")...)
	}
	return out
}

// lacking are findings of policies that are missing, or that nothing binds.
func lacking(kind string, names []string, there map[string]policy, level Level, means string) []Finding {
	var missing, unbound []string
	for _, name := range names {
		switch p := there[name]; {
		case !p.there:
			missing = append(missing, name)
		case !p.bound:
			unbound = append(unbound, name)
		}
	}
	var out []Finding
	for text, which := range map[string][]string{"missing": missing, "bound by nothing": unbound} {
		if len(which) > 0 {
			out = append(out, Finding{Level: level, Object: kind + "/" + which[0],
				Text: fmt.Sprintf("%s: %s (%s)", text, strings.Join(which, ", "), means),
				Do:   "apply the driver's manifests again, unless it was left out on purpose"})
		}
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.Text, b.Text) })
	return out
}

// ForGonePods are, of the claims that hold GPUs of the driver and are no new ones, those that are reserved for pods
// that are gone, with these pods. That passes within seconds: see cluster.Reader.
func (s *Snapshot) ForGonePods() map[*resourceapi.ResourceClaim][]resourceapi.ResourceClaimConsumerReference {
	out := map[*resourceapi.ResourceClaim][]resourceapi.ResourceClaimConsumerReference{}
	if s.cannotRead("pods") {
		return out
	}
	pods := map[types.UID]bool{}
	for _, pod := range s.Pods {
		pods[pod.UID] = true
	}
	for _, c := range s.Claims {
		if !holdsOurs(c) || s.Now.Sub(c.CreationTimestamp.Time) <= stuckAfter {
			continue
		}
		users, _ := claim.Pods(c)
		for _, pod := range users {
			if !pods[pod.UID] {
				out[c] = append(out[c], pod)
			}
		}
	}
	return out
}

// claims looks for claims that hold GPUs for nobody, or do not end.
func claims(s *Snapshot) []Finding {
	unused := s.ForGonePods()
	var out []Finding
	for _, c := range s.Claims {
		if !holdsOurs(c) {
			continue
		}
		add := func(text, do string) {
			out = append(out, Finding{Level: Warning, Object: "resourceclaim/" + c.Name + " -n " + c.Namespace,
				Text: text, Do: do})
		}
		var gone []string
		for _, pod := range unused[c] {
			gone = append(gone, pod.Name)
		}
		switch {
		case c.DeletionTimestamp != nil && s.Now.Sub(c.DeletionTimestamp.Time) > stuckAfter:
			add(fmt.Sprintf("it has been deleted %s ago and still holds its GPUs (finalizers: %s)",
				s.Now.Sub(c.DeletionTimestamp.Time).Round(time.Minute), strings.Join(c.Finalizers, ", ")),
				"see that its pods have ended and that kube-controller-manager runs, which takes the finalizer off")
		case len(gone) > 0:
			add("it is reserved for pods that are gone: "+strings.Join(gone, ", "),
				"see that kube-controller-manager runs, which ends that; then delete the claim if nobody needs it")
		}
	}
	return out
}

// dear names what waits and was created before the policies that would refuse it.
func dear(s *Snapshot) []Finding {
	var out []Finding
	for _, r := range s.Dear {
		out = append(out, Finding{Level: Warning, Object: r.Object,
			Text: "it is older than the policies that bound what a pod may cost the scheduler, and would be refused now: " +
				r.Why,
			Do: "delete it and its pods, and create them again within the bounds: until then each try to place one takes long"})
	}
	if s.Untried != "" {
		out = append(out, Finding{Level: Note, Text: "whether all that waits keeps to the bounds of what a pod may cost " +
			"the scheduler is not known: " + s.Untried,
			Do: "run it as who may create pods and claims in all namespaces: it asks by dry runs"})
	}
	return out
}

// holdsOurs reports whether a claim is allocated devices of the driver.
func holdsOurs(claim *resourceapi.ResourceClaim) bool {
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
		func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Driver == v1alpha1.DriverName })
}
