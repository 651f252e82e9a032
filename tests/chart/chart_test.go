// SPDX-License-Identifier: Apache-2.0

// Package chart tests deployments/helm/dra-driver-gpushare: what it installs is what the
// kustomizations do, of which it is made.
package chart

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	// checkout has links to directories of the checkout: what is not below this module Go does not
	// look at when it decides whether a test's last result still holds.
	checkout = "testdata"
	chartDir = checkout + "/deployments/helm/dra-driver-gpushare"
)

// objects are what is installed, by kind, namespace and name.
type objects map[string]map[string]any

// alike are two installations that Kubernetes takes for the same: in CEL one space is as good
// as many, of which kustomize makes more, and no variable of an environment refers to another.
var alike = cmp.Options{
	cmpopts.AcyclicTransformer("spaces", strings.Fields),
	cmp.FilterPath(
		func(path cmp.Path) bool { return strings.HasSuffix(path.GoString(), `["env"]`) },
		cmp.Transformer("env", func(env any) []string {
			variables, _ := env.([]any)
			var texts []string
			for _, variable := range variables {
				texts = append(texts, fmt.Sprint(variable))
			}
			slices.Sort(texts)
			return texts
		}),
	),
}

// noError ends the test if there is an error.
func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same fails the test, and lets it go on, if the values differ. The format says whose values they are.
func same(t *testing.T, want, got any, format string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf(format+" (-want +got):\n%s", append(args, diff)...)
	}
}

// sameObjects is same, of installations that Kubernetes takes for the same.
func sameObjects(t *testing.T, want, got objects, format string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got, alike); diff != "" {
		t.Errorf(format+" (-want +got):\n%s", append(args, diff)...)
	}
}

func (o objects) add(t *testing.T, manifests string) {
	t.Helper()
	for _, document := range strings.Split("\n"+manifests, "\n---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if len(object) == 0 {
			continue
		}
		metadata, _ := object["metadata"].(map[string]any)
		// Kustomize takes kinds that it does not know for such as have a namespace; kubectl does not.
		if object["kind"] == "DeviceClass" || strings.Contains(fmt.Sprint(object["kind"]), "AdmissionPolicy") {
			delete(metadata, "namespace")
		}
		key := fmt.Sprintf("%v %v/%v", object["kind"], metadata["namespace"], metadata["name"])
		if _, there := o[key]; there {
			t.Errorf("%s is there twice", key)
		}
		o[key] = object
	}
}

func kustomized(t *testing.T, dirs ...string) objects {
	t.Helper()
	// Kustomize follows links before it reads. Go remembers a directory that a test reads with the
	// sizes and times of what is in it.
	for _, name := range []string{"manifests", "options"} {
		noError(t, fs.WalkDir(os.DirFS(checkout+"/deployments/"+name), ".", func(_ string, _ fs.DirEntry, err error) error {
			return err
		}))
	}
	all := objects{}
	for _, dir := range dirs {
		resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
		if err != nil {
			t.Fatalf("kubectl kustomize %s: %v", dir, err)
		}
		content, err := resources.AsYaml()
		noError(t, err)
		all.add(t, string(content))
	}
	return all
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.Load(chartDir)
	noError(t, err)
	return c
}

// render is `helm template dra-driver-gpushare CHART --namespace NAMESPACE --values VALUES`.
func render(c *chart.Chart, namespace, values string) (map[string]string, error) {
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		return nil, err
	}
	options := chartutil.ReleaseOptions{Name: "dra-driver-gpushare", Namespace: namespace, IsInstall: true}
	rendered, err := chartutil.ToRenderValues(c, given, options, nil)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, rendered)
}

// installed is what the chart has in common with the kustomizations: all but `helm test`.
func installed(t *testing.T, namespace, values string) objects {
	t.Helper()
	return rendered(t, namespace, values, func(name string) bool {
		return !strings.HasSuffix(name, "NOTES.txt") && !strings.Contains(name, "/templates/tests/")
	})
}

func rendered(t *testing.T, namespace, values string, template func(name string) bool) objects {
	t.Helper()
	files, err := render(load(t), namespace, values)
	noError(t, err)
	all := objects{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if template(name) {
			all.add(t, files[name])
		}
	}
	return all
}

// An option is a directory of deployments/options, which the chart installs beside the manifests.
func TestChartInstallsWhatTheKustomizationsDo(t *testing.T) {
	const deployments = checkout + "/deployments"
	// These take the place of the manifests.
	of := map[string][]string{
		"":                                  {"manifests"},
		"options: {migration: true}":        {"options/migration"},
		"options: {devicePluginPods: true}": {"options/device-plugin-pods"},
	}
	for _, name := range optionDirs(t) {
		// Those that come with a setting have tests of their own below.
		switch name {
		case "migration", "device-plugin-pods", "audit-evicts", "preemption", "best-node", "best-node-gate", "nvidia-dra",
			"defragment":
		default:
			of["options: {"+valueOf(name)+": true}"] = []string{"manifests", "options/" + name}
		}
	}
	for values, dirs := range of {
		for i, dir := range dirs {
			dirs[i] = filepath.Join(deployments, dir)
		}
		// One after the other: kustomize keeps schemas in a global variable, without a lock.
		want := kustomized(t, dirs...)
		t.Run(values, func(t *testing.T) {
			t.Parallel()
			sameObjects(t, want, installed(t, "kube-system", values), "the chart")
		})
	}
}

// optionDirs are the names in deployments/options.
func optionDirs(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(checkout + "/deployments/options")
	noError(t, err)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// valueOf is the name of an option among the chart's values.
func valueOf(option string) string {
	words := strings.Split(option, "-")
	for i, word := range words[1:] {
		words[i+1] = strings.ToUpper(word[:1]) + word[1:]
	}
	return strings.Join(words, "")
}

// With the findings that pods are evicted for there is one object more, the settings.
func TestAuditEvicts(t *testing.T) {
	want := kustomized(t, checkout+"/deployments/manifests", checkout+"/deployments/options/audit-evicts")
	want.add(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: gpu-kubelet-plugin, namespace: kube-system, labels: {app.kubernetes.io/name: dra-driver-gpushare}}
data: {AUDIT_EVICT: over-share}
`)
	got := installed(t, "kube-system",
		"{options: {auditEvicts: true}, kubeletPlugin: {settings: {AUDIT_EVICT: over-share}}}")
	sameObjects(t, want, got, "the chart")
}

// These options are what is installed and the setting that makes use of it.
func TestOptionsWithASetting(t *testing.T) {
	const controller, plugin = "gpu-compat-controller", "gpu-kubelet-plugin"
	for options, of := range map[string]struct {
		dirs             []string
		program, setting string
	}{
		"{bestNode: true}":                     {[]string{"best-node"}, controller, `BEST_NODE: "true"`},
		"{bestNode: true, bestNodeGate: true}": {[]string{"best-node", "best-node-gate"}, controller, `BEST_NODE: "true"`},
		"{preemption: true}":                   {[]string{"preemption"}, controller, `PREEMPTION: "true"`},
		"{defragment: true}":                   {[]string{"defragment"}, controller, `DEFRAGMENT: dry-run`},
		"{nvidiaDra: true}":                    {[]string{"nvidia-dra"}, plugin, `NVIDIA_DRA: "true"`},
	} {
		dirs := []string{checkout + "/deployments/manifests"}
		for _, dir := range of.dirs {
			dirs = append(dirs, checkout+"/deployments/options/"+dir)
		}
		want := kustomized(t, dirs...)
		want.add(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: `+of.program+`, namespace: kube-system, labels: {app.kubernetes.io/name: dra-driver-gpushare}}
data: {`+of.setting+`}
`)
		sameObjects(t, want, installed(t, "kube-system", "options: "+options), "the chart with %s", options)
	}
}

// No option is missing in the chart.
func TestEveryOptionIsAValue(t *testing.T) {
	var want []string
	for _, name := range optionDirs(t) {
		want = append(want, valueOf(name))
	}
	slices.Sort(want)
	got, _ := load(t).Values["options"].(map[string]any)
	same(t, want, slices.Sorted(maps.Keys(got)), "options")
}

// The archive that users install has what the directory links to, and no code.
func TestArchive(t *testing.T) {
	path, err := chartutil.Save(load(t), t.TempDir())
	noError(t, err)
	packed, err := loader.Load(path)
	noError(t, err)
	for _, file := range packed.Files {
		if !strings.HasSuffix(file.Name, ".yaml") && file.Name != ".helmignore" &&
			file.Name != "files/deployments/monitoring/dashboard.json" {
			t.Errorf("the archive has %s", file.Name)
		}
	}
	want, err := render(load(t), "gpus", "")
	noError(t, err)
	got, err := render(packed, "gpus", "")
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v; the archive (-directory +archive):\n%s", err, diff)
	}
}

// In another namespace it is what a kustomization with "namespace:" is.
func TestAnotherNamespace(t *testing.T) {
	overlay := t.TempDir()
	base, err := filepath.Abs(checkout + "/deployments/manifests")
	noError(t, err)
	if base, err = filepath.Rel(overlay, base); err != nil {
		t.Fatal(err)
	}
	content := "namespace: gpus\nresources: [" + base + "]\n"
	noError(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(content), 0o600))
	sameObjects(t, kustomized(t, overlay), installed(t, "gpus", ""), "the chart in namespace gpus")
}

// A namespace may be called what YAML takes for a number.
func TestNamespaceOfDigits(t *testing.T) {
	const namespace = "0100"
	all := rendered(t, namespace, `{serviceMonitor: {enabled: true}, prometheusRule: {enabled: true},
		dashboards: {enabled: true}, resourceQuota: {enabled: true}, logVerbosity: 4}`,
		func(name string) bool { return !strings.HasSuffix(name, "NOTES.txt") })
	for key, object := range all {
		if got := part(t, object, "metadata", "namespace"); got != nil && got != namespace {
			t.Errorf("%s has namespace %#v, want %q", key, got, namespace)
		}
	}
	monitor := all["ServiceMonitor "+namespace+"/dra-driver-gpushare"]
	if got := part(t, any(monitor), "spec", "namespaceSelector", "matchNames", "0"); got != namespace {
		t.Errorf("the ServiceMonitor selects namespace %#v", got)
	}
}
