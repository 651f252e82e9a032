// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// sharedPolicy is what the test needs of a policy, of either kind.
type sharedPolicy struct {
	Spec struct {
		Variables       []admissionv1.Variable
		MatchConditions []admissionv1.MatchCondition
	}
}

// readPolicy reads the first document of a file of deployments/manifests/admission.
func readPolicy(t *testing.T, file string) sharedPolicy {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "deployments", "manifests", "admission", file))
	expect.NoError(t, err)
	first, _, _ := strings.Cut(string(content), "\n---\n")
	var policy sharedPolicy
	expect.NoErrorf(t, yaml.Unmarshal([]byte(first), &policy), "%s", file)
	return policy
}

// The policies of pods that ask as on ACK read them alike: what one leaves as it is, the
// other has to know for the same reason, and what a pod was converted from has to be found
// again. CEL has no functions of one's own, so the same expressions stand in each file.
func TestPoliciesReadPodsAlike(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "deployments", "manifests", "admission", "*.yaml"))
	expect.NoError(t, err)
	type expression struct{ file, text string }
	known := map[string]expression{}
	shared := map[string][]string{}
	for _, path := range files {
		file := filepath.Base(path)
		for _, v := range readPolicy(t, file).Spec.Variables {
			first, ok := known[v.Name]
			if !ok {
				known[v.Name] = expression{file, v.Expression}
				continue
			}
			expect.Equal(t, first.text, v.Expression, "variable %s of %s and of %s", v.Name, first.file, file)
			shared[file] = append(shared[file], v.Name)
		}
	}
	// Under another name a copy would not be compared. Files are read by name: each has in
	// common with those before it.
	for file, want := range map[string][]string{
		"convert.yaml": {"resources", "members", "amounts", "paths", "record"}, // with apply-again.yaml
		"refuse.yaml":  {"members", "leftAlone"},
	} {
		slices.Sort(want)
		slices.Sort(shared[file])
		expect.Equal(t, want, shared[file], "variables that %s shares with the files before it", file)
	}
}

// Who asks at all is the same for the policies that change pods and the one that refuses them, but for pods of Spark,
// which may ask later; and who has opted out for those that change them.
func TestPoliciesMatchAlike(t *testing.T) {
	condition := func(file, name string) string {
		for _, c := range readPolicy(t, file).Spec.MatchConditions {
			if c.Name == name {
				return c.Expression
			}
		}
		t.Errorf("%s has no condition %s", file, name)
		return ""
	}
	asks, rest, _ := strings.Cut(condition("convert.yaml", "asks-has-not-opted-out-and-is-not-static"), "\n&& ")
	asks, _, spark := strings.Cut(asks, "\n  || ")
	optOut, static, _ := strings.Cut(rest, " && ")
	refused := condition("refuse.yaml", "asks-or-names-a-node-and-is-not-static")
	if !spark || !strings.HasPrefix(refused, asks+"\n") || !strings.HasSuffix(refused, "\n&& "+static) {
		t.Errorf("refuse.yaml asks for %q, convert.yaml for %q", refused, asks+"\n&& "+static)
	}
	if all := condition("scheduler.yaml", "names-ack-co-scheduler-again"); optOut == "" || !strings.Contains(all, optOut) {
		t.Errorf("scheduler.yaml asks for %q, which has nothing of %q", all, optOut)
	}
}
