// SPDX-License-Identifier: Apache-2.0

package deployments

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// object is what the tests look at of a manifest.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Subjects []struct {
		Kind      string `json:"kind"`
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"subjects"`
	Spec struct {
		MatchConditions []expression `json:"matchConditions"`
		Variables       []expression `json:"variables"`
		Validations     []expression `json:"validations"`
	} `json:"spec"`
}

type expression struct {
	Name       string `json:"name"`
	Expression string `json:"expression"`
}

// other is a namespace that the manifests know nothing of.
const other = "other"

// inNamespace is what a kustomization installs that has the manifests, or options, in the namespace other.
func inNamespace(t *testing.T, dirs ...string) []object {
	t.Helper()
	overlay := t.TempDir()
	var bases []string
	for _, dir := range dirs {
		installed, err := filepath.Abs(dir)
		expect.NoError(t, err)
		// Kustomize takes no absolute paths.
		base, err := filepath.Rel(overlay, installed)
		expect.NoError(t, err)
		bases = append(bases, base)
	}
	kustomization := "namespace: " + other + "\nresources: [" + strings.Join(bases, ", ") + "]\n"
	expect.NoError(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(kustomization), 0o600))
	var objects []object
	for _, document := range strings.Split(build(t, overlay), "\n---\n") {
		var o object
		expect.NoError(t, yaml.Unmarshal([]byte(document), &o))
		objects = append(objects, o)
	}
	return objects
}

// accounts are the driver's ServiceAccounts.
func accounts(objects []object) []string {
	var names []string
	for _, o := range objects {
		if o.Kind == "ServiceAccount" {
			names = append(names, o.Metadata.Name)
		}
	}
	return names
}

func userOf(namespace, account string) string {
	return "system:serviceaccount:" + namespace + ":" + account
}

// sliceRequest is a request about a ResourceSlice.
type sliceRequest struct {
	user              string
	groups            []string
	operation, driver string
}

// holdsFor reports whether a match condition about who asks holds for a user, of no group, who makes something.
func holdsFor(t *testing.T, condition, user string) bool {
	t.Helper()
	return holds(t, condition, sliceRequest{user: user, operation: "CREATE", driver: "gpu.aliyun.com"})
}

func holds(t *testing.T, condition string, r sliceRequest) bool {
	t.Helper()
	env, err := cel.NewEnv(cel.Variable("request", cel.DynType), cel.Variable("object", cel.DynType),
		cel.Variable("oldObject", cel.DynType))
	expect.NoError(t, err)
	ast, issues := env.Compile(condition)
	if issues.Err() != nil {
		t.Fatalf("%s: %v", condition, issues.Err())
	}
	program, err := env.Program(ast)
	expect.NoError(t, err)
	slice := map[string]any{"spec": map[string]any{"driver": r.driver}}
	result, _, err := program.Eval(map[string]any{"object": slice, "oldObject": slice, "request": map[string]any{
		"operation": r.operation, "userInfo": map[string]any{"username": r.user, "groups": r.groups}}})
	expect.NoErrorf(t, err, "%s", condition)
	value, ok := result.Value().(bool)
	return ok && value
}

// Kubelets are bounded where they write the driver's slices. Those of other drivers, and removals, cost a kubelet no
// more than the condition. What else is about the driver's accounts is not about kubelets.
func TestKubeletsAreBoundedWhereTheyPublish(t *testing.T) {
	const ours, others = "gpu.aliyun.com", "gpu.example.com"
	objects := inNamespace(t, "manifests")
	names, found := accounts(objects), false
	for _, o := range objects {
		ofSlices := o.Metadata.Name == "gpushare-slices-of-own-node"
		for _, condition := range o.Spec.MatchConditions {
			if !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(condition.Expression, name) }) {
				continue
			}
			found = found || ofSlices
			for _, operation := range []string{"CREATE", "UPDATE", "DELETE"} {
				for _, driver := range []string{ours, others} {
					r := sliceRequest{user: "system:node:n1", groups: []string{"system:nodes"}, operation: operation, driver: driver}
					want := ofSlices && driver == ours && operation != "DELETE"
					expect.Equal(t, want, holds(t, condition.Expression, r),
						"policy %s: condition %s holds for %+v", o.Metadata.Name, condition.Name, r)
				}
			}
		}
	}
	if !found {
		t.Error("no policy bounds who writes ResourceSlices")
	}
}

// What the tokens of the driver's accounts are worth is bounded in whatever namespace
// they are installed. A condition that let one of them off by its name would be a way
// out for whoever may create a ServiceAccount of that name.
func TestAccountsAreBoundedInAnyNamespace(t *testing.T) {
	objects := inNamespace(t, "manifests")
	names := accounts(objects)
	if len(names) != 3 {
		t.Fatalf("the accounts %q are installed, want three", names)
	}
	bounded := map[string]bool{}
	for _, o := range objects {
		for _, condition := range o.Spec.MatchConditions {
			for _, name := range names {
				if !strings.Contains(condition.Expression, name) {
					continue
				}
				for _, namespace := range []string{other, "kube-system"} {
					if !holdsFor(t, condition.Expression, userOf(namespace, name)) {
						t.Errorf("policy %s: condition %s does not hold for %s", o.Metadata.Name, condition.Name, userOf(namespace, name))
					}
				}
				for _, user := range []string{"admin", userOf(other, "default"), userOf(other, "not-"+name)} {
					if holdsFor(t, condition.Expression, user) {
						t.Errorf("policy %s: condition %s holds for %s", o.Metadata.Name, condition.Name, user)
					}
				}
				bounded[name] = true
			}
		}
	}
	for _, name := range names {
		if !bounded[name] {
			t.Errorf("no policy is about %s", name)
		}
	}
}

// Nor does anything else in the policies refer to the namespace that the driver is in by
// default. Kubernetes' own accounts are always in kube-system.
func TestPoliciesDoNotNameTheDriversNamespace(t *testing.T) {
	for _, dir := range []string{"manifests", "options/migration"} {
		objects := inNamespace(t, dir)
		for _, o := range objects {
			for _, e := range append(append(o.Spec.MatchConditions, o.Spec.Variables...), o.Spec.Validations...) {
				for _, name := range accounts(objects) {
					if strings.Contains(e.Expression, userOf("kube-system", name)) {
						t.Errorf("policy %s names %s:\n%s", o.Metadata.Name, userOf("kube-system", name), e.Expression)
					}
				}
			}
		}
	}
}

// Everything of the driver is in that namespace, and its accounts are given their
// rights there.
func TestInstallInAnotherNamespace(t *testing.T) {
	objects := inNamespace(t, "manifests")
	subjects := 0
	for _, o := range objects {
		if o.Metadata.Namespace != "" && o.Metadata.Namespace != other {
			t.Errorf("%s %s is in namespace %s", o.Kind, o.Metadata.Name, o.Metadata.Namespace)
		}
		for _, s := range o.Subjects {
			subjects++
			if s.Kind != "ServiceAccount" || s.Namespace != other {
				t.Errorf("%s %s is for %s %s of namespace %s", o.Kind, o.Metadata.Name, s.Kind, s.Name, s.Namespace)
			}
		}
	}
	if subjects < len(accounts(objects)) {
		t.Errorf("%d subjects are given rights, of %d accounts", subjects, len(accounts(objects)))
	}
}

// An option with rights has an overlay of its own there, beside that of the manifests or in it.
func TestOptionsWithRightsInAnotherNamespace(t *testing.T) {
	for dir, account := range map[string]string{
		"options/preemption":   "gpu-compat-controller",
		"options/defragment":   "gpu-compat-controller",
		"options/audit-evicts": "gpu-kubelet-plugin",
	} {
		for _, with := range [][]string{{dir}, {"manifests", dir}} {
			found := false
			for _, o := range inNamespace(t, with...) {
				for _, s := range o.Subjects {
					found = found || s.Name == account
					expect.Equal(t, other, s.Namespace,
						"%q: %s %s is for %s %s of namespace", with, o.Kind, o.Metadata.Name, s.Kind, s.Name)
				}
			}
			if !found {
				t.Errorf("%q give %s no rights", with, account)
			}
		}
	}
}

// Events of nodes are in the namespace default: rights to them that are those of a
// namespace would move with the driver.
func TestEventsOfNodesCanBeWrittenFromAnyNamespace(t *testing.T) {
	bound := map[string]bool{}
	objects := inNamespace(t, "manifests")
	for _, o := range objects {
		for _, s := range o.Subjects {
			if o.Kind == "ClusterRoleBinding" {
				bound[s.Name] = true
			}
		}
	}
	for _, name := range accounts(objects) {
		if !bound[name] {
			t.Errorf("%s has rights in its own namespace only, and cannot write the Events of its node", name)
		}
	}
}
