package legacy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"
)

// readPolicy reads the first document of a file of deployments/manifests/admission.
func readPolicy(t *testing.T, file string, policy any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "deployments", "manifests", "admission", file))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(content), "\n---\n")
	if err := yaml.UnmarshalStrict([]byte(first), policy); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// What a pod was converted from has to be found again.
func TestPoliciesRecordPodsAlike(t *testing.T) {
	var convert, again admissionv1.MutatingAdmissionPolicy
	readPolicy(t, "convert.yaml", &convert)
	readPolicy(t, "apply-again.yaml", &again)
	variables := map[string]string{}
	for _, v := range convert.Spec.Variables {
		variables[v.Name] = v.Expression
	}
	for _, v := range again.Spec.Variables {
		if diff := cmp.Diff(variables[v.Name], v.Expression); diff != "" {
			t.Errorf("variable %s (-convert +apply-again):\n%s", v.Name, diff)
		}
	}
}

// What one policy leaves as it is, the other has to know for the same reason.
func TestPoliciesReadPodsAlike(t *testing.T) {
	var convert admissionv1.MutatingAdmissionPolicy
	var refuse admissionv1.ValidatingAdmissionPolicy
	readPolicy(t, "convert.yaml", &convert)
	readPolicy(t, "refuse.yaml", &refuse)
	variables := map[string]string{}
	for _, v := range refuse.Spec.Variables {
		variables[v.Name] = v.Expression
	}
	for _, v := range convert.Spec.Variables {
		if diff := cmp.Diff(variables[v.Name], v.Expression); diff != "" {
			t.Errorf("variable %s (-refuse +convert):\n%s", v.Name, diff)
		}
		if v.Name == "convertible" {
			break
		}
	}
	if diff := cmp.Diff(refuse.Spec.MatchConditions[0].Expression, convert.Spec.MatchConditions[0].Expression); diff != "" {
		t.Errorf("who asks (-refuse +convert):\n%s", diff)
	}
}
