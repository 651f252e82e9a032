// SPDX-License-Identifier: Apache-2.0

// Package deployments has no code, only what is installed.
package deployments

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func build(t *testing.T, dir string) string {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	expect.NoErrorf(t, err, "kubectl apply -k deployments/%s", dir)
	content, err := resources.AsYaml()
	expect.NoError(t, err)
	return string(content)
}

func TestEverythingCanBeInstalled(t *testing.T) {
	found := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "kustomization.yaml" {
			found++
			build(t, filepath.Dir(path))
		}
		return err
	})
	if err != nil || found == 0 {
		t.Errorf("%d kustomizations: %v", found, err)
	}
}

// What could do most harm in wrong hands comes only with the option that needs it.
func TestRightsThatComeWithOptions(t *testing.T) {
	for dir, want := range map[string]struct{ lists, evicts, budgets, nominates bool }{
		"manifests":                  {},
		"options/device-plugin-pods": {lists: true},
		"options/migration":          {lists: true},
		"options/audit-evicts":       {evicts: true},
		"options/preemption":         {evicts: true, budgets: true},
		"options/defragment":         {evicts: true, budgets: true},
		"options/best-node":          {nominates: true},
	} {
		built := build(t, dir)
		for right, is := range map[string]bool{"pods/eviction\n": want.evicts, "poddisruptionbudgets\n": want.budgets,
			"  - pods/status\n  verbs:\n": want.nominates} {
			expect.Equal(t, is, strings.Contains(built, right), "%s: there is %q", dir, right)
		}
		if strings.HasPrefix(dir, "options/") && !strings.Contains(built, "DaemonSet") {
			continue // in addition to the manifests
		}
		role := document(t, built, "ClusterRole", "gpushare:gpu-kubelet-plugin-pods")
		expect.Equal(t, want.lists, strings.Contains(role, "- list\n"), "%s: the plugin may list pods", dir)
		expect.Equal(t, want.lists, strings.Contains(built, "- name: DEVICE_PLUGIN_PODS\n          value: watch\n"),
			"%s: the plugin watches pods", dir)
		if strings.Contains(built, "PREEMPTION") || strings.Contains(built, "DEFRAGMENT:") {
			t.Errorf("%s has pods evicted", dir)
		}
	}
}

// kubectl apply removes no objects, and leaves rules that nothing is said of: a right that an
// earlier version had by default goes because its role is there without rules.
func TestApplyTakesEarlierRightsAway(t *testing.T) {
	built := build(t, "manifests")
	for _, name := range []string{"gpushare:gpu-kubelet-plugin-pods", "gpushare:gpu-compat-controller-evictions",
		"gpushare:gpu-compat-controller-evict-refused"} {
		if role := document(t, built, "ClusterRole", name); !strings.Contains("\n"+role, "\nrules: []\n") {
			t.Errorf("after an update there are the rules of before in\n%s", role)
		}
	}
}

// document is the object of a kind and name.
func document(t *testing.T, built, kind, name string) string {
	t.Helper()
	for _, document := range strings.Split(built, "\n---\n") {
		document += "\n"
		if strings.Contains(document, "\nkind: "+kind+"\n") && strings.Contains(document, "\n  name: "+name+"\n") {
			return document
		}
	}
	t.Fatalf("there is no %s %s", kind, name)
	return ""
}

// While nodes move, pods are converted only where somebody asked for it, and none are
// refused.
func TestMigrationRefusesNobody(t *testing.T) {
	converts := 0
	for _, document := range strings.Split(build(t, "options/migration"), "\n---\n") {
		switch {
		case !strings.Contains(document, "AdmissionPolicyBinding\n"):
		case strings.Contains(document, "policyName: gpushare-legacy-refuse"):
			t.Errorf("pods are refused by\n%s", document)
		case strings.Contains(document, "policyName: gpushare-legacy-convert"),
			strings.Contains(document, "policyName: gpushare-legacy-cpuset"),
			strings.Contains(document, "policyName: gpushare-legacy-elastic"),
			strings.Contains(document, "policyName: gpushare-legacy-gang"),
			strings.Contains(document, "policyName: gpushare-legacy-scheduler"):
			converts++
			if !strings.Contains(document, "    namespaceSelector:\n      matchLabels:\n        gpu.aliyun.com/legacy: "+
				"\"true\"\n") {
				t.Errorf("pods are converted everywhere by\n%s", document)
			}
		}
	}
	expect.Equal(t, 7, converts, "bindings convert pods or tell of it")
}

// A virtual node has no kubelet that would run a DaemonSet's pod: one that is bound there
// stays there for ever, and an update of the DaemonSet waits for it. So it is on a Windows node.
func TestNoDaemonsOnVirtualAndWindowsNodes(t *testing.T) {
	const spared = "- matchExpressions:\n              - key: type\n                operator: NotIn\n" +
		"                values:\n                - virtual-kubelet\n" + onLinux
	daemons := 0
	for _, document := range strings.Split(build(t, "manifests"), "\n---\n") {
		if strings.Contains(document, "kind: DaemonSet\n") {
			daemons++
			if !strings.Contains(document, spared) {
				t.Errorf("virtual or Windows nodes get pods of\n%s", document)
			}
		}
	}
	expect.Equal(t, 2, daemons, "DaemonSets")
}

// onLinux is the rule of an affinity by which pods need a node with Linux.
const onLinux = "              - key: kubernetes.io/os\n                operator: In\n" +
	"                values:\n                - linux\n"

// The controller runs on Linux, and keeps no node from being scaled down: in kube-system the cluster
// autoscaler moves only pods that say so.
func TestNodesOfTheController(t *testing.T) {
	controller := document(t, build(t, "manifests"), "Deployment", "gpu-compat-controller")
	for _, want := range []string{
		"- matchExpressions:\n" + onLinux,
		"      annotations:\n        cluster-autoscaler.kubernetes.io/safe-to-evict: \"true\"\n",
	} {
		if !strings.Contains(controller, want) {
			t.Errorf("without %q:\n%s", want, controller)
		}
	}
}

// Who describes a pod that does not start sees why, such as a setting that its program does not take.
func TestProgramsThatDoNotStartSayWhy(t *testing.T) {
	built := build(t, "manifests")
	for _, program := range [][2]string{{"DaemonSet", "gpu-kubelet-plugin"}, {"DaemonSet", "gpu-mps-supervisor"},
		{"Deployment", "gpu-compat-controller"}} {
		of := document(t, built, program[0], program[1])
		if !strings.Contains(of, "        terminationMessagePolicy: FallbackToLogsOnError\n") {
			t.Errorf("the container of %s keeps its last words to itself", program[1])
		}
	}
}

// A node whose new plugin does not get ready, as one that is away, holds a place of the update. A
// percentage is rounded up.
func TestUpdateGoesOnBesideANodeThatDoesNot(t *testing.T) {
	const want = "  updateStrategy:\n    rollingUpdate:\n      maxSurge: 10%\n      maxUnavailable: 0\n"
	if plugin := document(t, build(t, "manifests"), "DaemonSet", "gpu-kubelet-plugin"); !strings.Contains(plugin, want) {
		t.Errorf("without %q:\n%s", want, plugin)
	}
}

// A node without the label may be one whose device plugin is away for a moment. At the
// end no node needs it.
func TestMigrationOffersGPUsOnLabelledNodesOnly(t *testing.T) {
	const required = "- name: REQUIRED_NODE_LABEL\n          value: gpu.aliyun.com/migrated\n"
	expect.Equal(t, 1, strings.Count(build(t, "options/migration"), required),
		"containers of the option require the label")
	expect.Equal(t, 0, strings.Count(build(t, "manifests"), "REQUIRED_NODE_LABEL"),
		"containers require a label without the option")
}

// Where HAMi goes on serving other namespaces, the page's patch has the option convert in those that ask for it alone.
func TestOtherManifestsWhereAsked(t *testing.T) {
	page, err := os.ReadFile("../docs/other-manifests.md")
	expect.NoError(t, err)
	_, patches, _ := strings.Cut(string(page), "```yaml\n")
	patches, _, _ = strings.Cut(patches, "```")
	files, kustomization := filesys.MakeFsInMemory(), "resources:\n"
	for _, name := range []string{"policy.yaml", "apply-again.yaml", "refuse.yaml"} {
		content, err := os.ReadFile(filepath.Join("options", "other-manifests", name))
		if err == nil {
			err = files.WriteFile(name, content)
		}
		expect.NoError(t, err)
		kustomization += "- " + name + "\n"
	}
	expect.NoError(t, files.WriteFile("kustomization.yaml", []byte(kustomization+patches)))
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, ".")
	expect.NoError(t, err)
	bindings := 0
	for _, r := range resources.Resources() {
		if !strings.HasSuffix(r.GetKind(), "PolicyBinding") {
			continue
		}
		bindings++
		if text := r.MustYaml(); !strings.Contains(text, `gpu.aliyun.com/legacy: "true"`) || strings.Contains(text, "NotIn") {
			t.Errorf("%s selects other namespaces:\n%s", r.GetName(), text)
		}
	}
	expect.Equal(t, 3, bindings, "the option has bindings")
}
