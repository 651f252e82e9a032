// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/manifests"
)

const template = "template: {spec: {containers: [{name: c, image: i}]}}"

func read(t *testing.T, text string) (*manifests.Reader, error) {
	t.Helper()
	r := &manifests.Reader{Namespace: "team"}
	return r, r.Read("m.yaml", strings.NewReader(text))
}

func TestWhatMakesPods(t *testing.T) {
	for text, want := range map[string]string{
		"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}":          "pod/p",
		"apiVersion: v1\nkind: Pod\nmetadata: {generateName: p-}\nspec: {containers: [{name: c, image: i}]}": "pod/p-x",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {" + template +
			"}": "deployment/d",
		"apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {name: d}\nspec: {replicas: 0, " + template +
			"}": "replicaset/d*0",
		"apiVersion: v1\nkind: ReplicationController\nmetadata: {name: d}\nspec: {replicas: 2, " + template +
			"}": "replicationcontroller/d*2",
		"apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: d}\nspec: {replicas: 3, ordinals: {start: 2}, " + template +
			"}": "statefulset/d*3 from 2",
		"apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: d}\nspec: {" + template +
			"}": "daemonset/d per node",
		"apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {" + template +
			"}": "job/j",
		"apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {parallelism: 4, completions: 3, " + template +
			"}": "job/j*3",
		"apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {suspend: true, " + template +
			"}": "job/j: it is suspended: planned as if it ran",
		"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: j}\nspec: {jobTemplate: {spec: {parallelism: 2, " + template +
			"}}}": "cronjob/j*2: planned as one of its runs",
		`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}`: "pod/p",
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: " +
			"[{name: c}]}}": "pod/p",
		"---\n# nothing\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: other}\nspec: {containers: " +
			"[{name: c}]}\n---\n": "pod/p of other",
	} {
		r, err := read(t, text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		m := r.Manifests()
		if len(m.Workloads) != 1 {
			t.Errorf("%s: makes %+v", text, m)
			continue
		}
		w := m.Workloads[0]
		got := w.String()
		if w.Pods != 1 && !w.PerNode {
			got += "*" + string(rune('0'+w.Pods))
		}
		if w.First != 0 {
			got += " from " + string(rune('0'+w.First))
		}
		if w.PerNode {
			got += " per node"
		}
		if w.Namespace != "team" {
			got += " of " + w.Namespace
		}
		if w.Note != "" {
			got += ": " + w.Note
		}
		expect.Equal(t, want, got, "requests of %s", text)
	}
}

func TestBadManifests(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
	for text, want := range map[string]string{
		"this: is\n  no: YAML":                          "m.yaml, document 1: yaml: line 2: mapping values are not allowed",
		pod + "spec: {containers: [{name: c}]}\n---\n{": "m.yaml, document 2: ",
		"just a text": "m.yaml, document 1: this is no Kubernetes object: it is no map with " +
			"apiVersion and kind",
		"apiVersion: v1\nkind: List\nitems: [null]": "item 1: this is no Kubernetes object",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: []}": "m.yaml, document 1: this is no Kubernetes object: " +
			"error unmarshaling",
		"a: b": "m.yaml, document 1: this is no Kubernetes object: it has no " +
			"apiVersion or no kind",
		pod + "spec: {containers: [{name: c, resources: {limits: {cpu: x}}}]}": "m.yaml, document 1: Pod/p: quantities " +
			"must match",
		pod + "spec: {contaners: []}": `m.yaml, document 1: Pod/p: strict ` +
			`decoding error: unknown field "spec.contaners"`,
		pod + "spec: {containers: []}": "m.yaml, document 1: Pod/p has no containers",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: -1, " + template +
			"}": "m.yaml, document 1: Deployment/d makes -1 pods",
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 5001, " + template +
			"}": "a plan is for 0 to 5000 of one object",
		"apiVersion: v1\nkind: ReplicationController\nmetadata: {name: d}\nspec: {replicas: 2}": "ReplicationController/d " +
			"has no template",
		"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {}": "ResourceClaim/ has no name",
		"apiVersion: v1\nkind: List\nitems:\n- {kind: Pod}": "m.yaml, document 1: " +
			"item 1: this is no Kubernetes object",
		"a: 1\na: 2": "m.yaml, document 1: ",
	} {
		_, err := read(t, text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

func TestWhatPodsAskFor(t *testing.T) {
	r, err := read(t, `
apiVersion: resource.k8s.io/v1beta2
kind: ResourceClaim
metadata: {name: beta2}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: c}}]}}
---
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaim
metadata: {name: beta1}
spec: {devices: {requests: [{name: gpu, deviceClassName: c}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: t, namespace: other}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: c}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: c}
spec: {}
---
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
---
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: ray}
`)
	expect.NoError(t, err)
	m := r.Manifests()
	if len(m.Claims) != 1 || m.Claims[0].Namespace != "team" ||
		m.Claims[0].Spec.Devices.Requests[0].Exactly.DeviceClassName != "c" ||
		len(m.Templates) != 1 || m.Templates[0].Namespace != "other" || len(m.Classes) != 1 || len(m.Namespaces) != 1 {
		t.Errorf("got %+v", m)
	}
	var skipped []string
	for _, s := range m.Skipped {
		skipped = append(skipped, s.Source.String()+": "+s.Object+": "+s.Why)
	}
	want := []string{
		"m.yaml, document 2: ResourceClaim/beta1: plan reads resource.k8s.io/v1: `kubectl convert`, or write it so",
		"m.yaml, document 6: ConfigMap/settings: it makes no pods that plan knows of",
		"m.yaml, document 7: RayJob/ray: RayJob of ray.io/v1 is not known here: pods that it makes are not planned",
	}
	expect.Equal(t, want, skipped, "skipped")
}

// As with kubectl apply, the last one of a name counts.
func TestTheLastOfANameCounts(t *testing.T) {
	const claim = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: a}\nspec: {}\n---\n"
	r, err := read(t, claim+"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: 1, "+template+
		"}\n"+
		"---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, namespace: b}\nspec: {replicas: 2, "+template+"}\n"+
		"---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {replicas: 3, "+template+"}\n---\n"+claim)
	expect.NoError(t, err)
	m := r.Manifests()
	if len(m.Workloads) != 2 || m.Workloads[0].Pods != 2 || m.Workloads[1].Pods != 3 || len(m.Claims) != 1 {
		t.Errorf("got %+v", m)
	}
	if len(m.Skipped) != 2 || m.Skipped[0].Document != 2 ||
		m.Skipped[0].Why != "the one of m.yaml, document 4 takes its place" {
		t.Errorf("skipped %+v", m.Skipped)
	}
}

func TestFilesAndDirectories(t *testing.T) {
	dir := t.TempDir()
	pod := func(name string) []byte {
		return []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec: {containers: [{name: c}]}\n")
	}
	for _, d := range []string{"below", "empty"} {
		expect.NoError(t, os.Mkdir(filepath.Join(dir, d), 0o755))
	}
	nothing := filepath.Join(t.TempDir(), "nothing.yaml")
	expect.NoError(t, os.WriteFile(nothing, []byte("# nothing\n---\n"), 0o644))
	for name, data := range map[string][]byte{"b.yaml": pod("b"), "a.yml": pod("a"), "notes.txt": []byte("{"),
		"below/c.json": []byte(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c"}, "spec": {"containers": ` +
			`[{"name": "c"}]}}`)} {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	for name, test := range map[string]struct {
		files     []string
		recursive bool
		want, err string
	}{
		"a directory":      {[]string{dir}, false, "a b", ""},
		"those below":      {[]string{dir}, true, "a b c", ""},
		"a file and stdin": {[]string{filepath.Join(dir, "b.yaml"), "-"}, false, "b piped", ""},
		"no such file":     {[]string{filepath.Join(dir, "absent")}, false, "", "read the manifests: stat "},
		"an empty one":     {[]string{filepath.Join(dir, "empty")}, false, "", "has no manifests"},
		"no manifest":      {[]string{filepath.Join(dir, "notes.txt")}, false, "", "notes.txt, document 1: "},
		"no object":        {[]string{nothing}, false, "", "there is no object in " + nothing},
		"one twice":        {[]string{dir, filepath.Join(dir, "b.yaml")}, false, "a b", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := manifests.Reader{Namespace: "team"}
			err := r.ReadAll(test.files, test.recursive, strings.NewReader(string(pod("piped"))))
			if test.err != "" {
				expect.Error(t, err, test.err)
				return
			}
			var names []string
			for _, w := range r.Manifests().Workloads {
				names = append(names, w.Name)
			}
			if got := strings.Join(names, " "); err != nil || got != test.want {
				t.Errorf("got %s, %v, want %s", got, err, test.want)
			}
		})
	}
}
