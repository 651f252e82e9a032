// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart"
	"sigs.k8s.io/yaml"
)

// digest is that of an image.
const digest = "abababababababababababababababababababababababababababababababab"

// part returns what is under some keys of an object; "0" is the first of a list.
func part(t *testing.T, object any, keys ...string) any {
	t.Helper()
	for _, key := range keys {
		switch o := object.(type) {
		case map[string]any:
			object = o[key]
		case []any:
			object = o[0]
		default:
			t.Fatalf("there is no %s", strings.Join(keys, "."))
		}
	}
	return object
}

func parsed(t *testing.T, text string) (value any) {
	t.Helper()
	noError(t, yaml.Unmarshal([]byte(text), &value))
	return value
}

func TestValues(t *testing.T) {
	all := installed(t, "kube-system", `
image: {repository: registry.example/gpushare, tag: "1.2", pullPolicy: Always}
imagePullSecrets: [{name: pull}]
nvidiaDriverRoot: /run/nvidia/driver
logVerbosity: 6
kubeletPlugin:
  settings: {GPU_READ_INTERVAL: 10s, MPS_MEMORY_OVERHEAD_MIB: 3000000}
  nodeSelector: {gpu: "true"}
  tolerations: []
  podAnnotations: {a: b}
  podLabels: {team: gpu}
  affinity: {podAffinity: {x: y}}
  resources: {limits: {memory: 1Gi}}
  maxSurge: 3
  kubeletPluginsDirectoryPath: /data/kubelet/plugins
  podResourcesDirectoryPath: /data/kubelet/pod-resources
  cdiDirectoryPath: /etc/cdi
mpsSupervisor: {nodeSelector: {gpu: "true"}, affinity: {nodeAffinity: {x: y}}}
controller: {podAnnotations: {a: b}, podLabels: {team: gpu}, affinity: {nodeAffinity: {x: y}}, replicas: 3,
  settings: {CLASS_GRACE: 1m}, priorityClassName: ""}
`)
	labels := func(component string) string {
		return "{app.kubernetes.io/name: dra-driver-gpushare, app.kubernetes.io/component: " + component + ", team: gpu}"
	}
	pod := []string{"spec", "template", "spec"}
	plugin := all["DaemonSet kube-system/gpu-kubelet-plugin"]
	for _, test := range []struct {
		object string
		keys   []string
		want   string
	}{
		{"DaemonSet kube-system/gpu-kubelet-plugin", append(pod, "containers", "0", "image"),
			"registry.example/gpushare:1.2"},
		{"DaemonSet kube-system/gpu-mps-supervisor", append(pod, "containers", "0", "image"),
			"registry.example/gpushare:1.2"},
		{"Deployment kube-system/gpu-compat-controller", append(pod, "containers", "0", "imagePullPolicy"), "Always"},
		{"DaemonSet kube-system/gpu-mps-supervisor", append(pod, "imagePullSecrets"), "[{name: pull}]"},
		{"DaemonSet kube-system/gpu-kubelet-plugin", append(pod, "nodeSelector"), `{gpu: "true"}`},
		{"DaemonSet kube-system/gpu-mps-supervisor", append(pod, "nodeSelector"), `{gpu: "true"}`},
		{"DaemonSet kube-system/gpu-kubelet-plugin", append(pod, "tolerations"), "[]"},
		{"DaemonSet kube-system/gpu-mps-supervisor", append(pod, "tolerations"), "[{operator: Exists}]"},
		{"DaemonSet kube-system/gpu-kubelet-plugin", []string{"spec", "template", "metadata", "annotations"},
			`{a: b, cluster-autoscaler.kubernetes.io/enable-ds-eviction: "false"}`},
		{"DaemonSet kube-system/gpu-mps-supervisor", []string{"spec", "template", "metadata", "annotations"},
			`{cluster-autoscaler.kubernetes.io/enable-ds-eviction: "false"}`},
		{"DaemonSet kube-system/gpu-kubelet-plugin", []string{"spec", "template", "metadata", "labels"},
			labels("gpu-kubelet-plugin")},
		{"Deployment kube-system/gpu-compat-controller", []string{"spec", "template", "metadata", "labels"},
			labels("gpu-compat-controller")},
		{"Deployment kube-system/gpu-compat-controller", []string{"spec", "template", "metadata", "annotations"},
			`{a: b, cluster-autoscaler.kubernetes.io/safe-to-evict: "true"}`},
		// Labels of nodes come on top of those that the manifests require.
		{"DaemonSet kube-system/gpu-kubelet-plugin", append(pod, "affinity"), `{podAffinity: {x: y}, nodeAffinity:
			{requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [
			{key: type, operator: NotIn, values: [virtual-kubelet]},
			{key: kubernetes.io/os, operator: In, values: [linux]}]}]}}}`},
		{"DaemonSet kube-system/gpu-kubelet-plugin", []string{"spec", "updateStrategy"},
			"{type: RollingUpdate, rollingUpdate: {maxSurge: 3, maxUnavailable: 0}}"},
		{"DaemonSet kube-system/gpu-mps-supervisor", append(pod, "affinity"), "{nodeAffinity: {x: y}}"},
		{"Deployment kube-system/gpu-compat-controller", append(pod, "affinity", "nodeAffinity"), "{x: y}"},
		{"DaemonSet kube-system/gpu-kubelet-plugin", append(pod, "containers", "0", "resources"),
			"{requests: {cpu: 10m, memory: 64Mi}, limits: {memory: 1Gi}}"},
		{"Deployment kube-system/gpu-compat-controller", []string{"spec", "replicas"}, "3"},
		{"Deployment kube-system/gpu-compat-controller", append(pod, "priorityClassName"), `""`},
		{"ConfigMap kube-system/gpu-kubelet-plugin", []string{"data"}, `{GPU_READ_INTERVAL: 10s, LOG_VERBOSITY: "6",
			MPS_MEMORY_OVERHEAD_MIB: "3000000", NVIDIA_DRIVER_ROOT: /run/nvidia/driver}`},
		{"ConfigMap kube-system/gpu-compat-controller", []string{"data"}, `{CLASS_GRACE: 1m, LOG_VERBOSITY: "6"}`},
	} {
		if all[test.object] == nil {
			t.Errorf("there is no %s", test.object)
			continue
		}
		same(t, parsed(t, test.want), part(t, all[test.object], test.keys...), "%s of %s", strings.Join(test.keys, "."),
			test.object)
	}

	for tag, want := range map[string]string{
		"": "r.example:5000/g@sha256:" + digest, "tag: v1, ": "r.example:5000/g:v1@sha256:" + digest,
	} {
		image := part(t, installed(t, "gpus", "{enabled: true, image: {repository: r.example:5000/g, "+tag+"digest: 'sha256:"+
			digest+"'}}")["DaemonSet gpus/gpu-kubelet-plugin"], append(pod, "containers", "0", "image")...)
		if image != want {
			t.Errorf("image %s, want %s", image, want)
		}
	}
	counting := installed(t, "gpus", `{options: {quota: true}, quota: {schedulers: [a, "b:c"]}}`)
	if got := part(t, counting["MutatingAdmissionPolicy <nil>/gpushare-quota"], "spec", "variables", "0",
		"expression"); got != `["a","b:c"]` {
		t.Errorf("the schedulers whose claims do not count are %v", got)
	}
	quota := installed(t, "gpus", "resourceQuota: {enabled: true}")["ResourceQuota gpus/dra-driver-gpushare-critical-pods"]
	if quota == nil || !cmp.Equal(part(t, quota, "spec", "hard"), parsed(t, `{pods: "1000"}`)) {
		t.Errorf("the quota of critical pods is %v", quota)
	}

	// A directory of the host is a setting, a volume and a mount.
	env := part(t, plugin, append(pod, "containers", "0", "env")...).([]any)
	want := parsed(t, `[{name: KUBELET_PLUGINS_DIR, value: /data/kubelet/plugins}, {name: CDI_DIR, value: /etc/cdi},
		{name: KUBELET_POD_RESOURCES_SOCKET, value: /data/kubelet/pod-resources/kubelet.sock}]`)
	same(t, want, any(env[len(env)-3:]), "the plugin's environment")
	// An affinity replaces those of its kind only.
	for _, kept := range []struct{ object, kind string }{
		{"DaemonSet kube-system/gpu-kubelet-plugin", "nodeAffinity"},
		{"Deployment kube-system/gpu-compat-controller", "podAntiAffinity"},
	} {
		if part(t, all[kept.object], append(pod, "affinity", kept.kind)...) == nil {
			t.Errorf("%s has lost its %s", kept.object, kept.kind)
		}
	}
	text, err := yaml.Marshal(plugin)
	noError(t, err)
	for _, line := range []string{"path: /data/kubelet/plugins/gpu.aliyun.com", "path: /etc/cdi",
		"mountPath: /data/kubelet/plugins/gpu.aliyun.com", "mountPath: /etc/cdi", "path: /var/lib/kubelet/plugins_registry"} {
		if strings.Count(string(text), line+"\n") != 1 {
			t.Errorf("the plugin does not have %q once:\n%s", line, text)
		}
	}
}

// What cannot be meant is refused before anything is installed, and says what to do.
func TestWrongValues(t *testing.T) {
	for values, want := range map[string]string{
		"kubeletplugin: {}":                                    "kubeletplugin",
		"enabled: false":                                       "has this one as a dependency",
		"image: {pullPolicy: Sometimes}":                       "pullPolicy",
		"image: {repository: ''}":                              "repository",
		"nvidiaDriverRoot: run/nvidia":                         "nvidiaDriverRoot",
		"controller: {replicas: 0}":                            "replicas",
		"options: {migrations: true}":                          "migrations",
		"options: {migration: 'yes'}":                          "migration",
		"kubeletPlugin: {settings: {CLASS_GRACE: 1m}}":         "CLASS_GRACE",
		"controller: {settings: {AUDIT_INTERVAL: 1s}}":         "AUDIT_INTERVAL",
		"options: {auditEvicts: true}":                         "evicts nothing without",
		"options: {packNodes: true}":                           "controller.settings.NODE_PLACEMENT=binpack instead",
		"options: {spreadNodes: true}":                         "controller.settings.NODE_PLACEMENT=spread instead",
		"options: {migration: true, nvidiaGpuClaims: true}":    "from nodes that have not moved",
		"kubeletPlugin: {settings: {AUDIT_EVICT: over-share}}": "needs options.auditEvicts",
		"{options: {auditEvicts: true}, kubeletPlugin: {settings: {AUDIT_EVICT: 'over-share,no-grant'}}}": "no-grant needs " +
			"options.devicePluginPods",
		"kubeletPlugin: {settings: {DEVICE_PLUGIN_PODS: none}}":         "set options.devicePluginPods instead",
		"kubeletPlugin: {settings: {NVIDIA_DRIVER_ROOT: /x}}":           "set nvidiaDriverRoot instead",
		"controller: {settings: {LOG_VERBOSITY: 4}}":                    "set logVerbosity instead",
		"controller: {settings: {PREEMPTION: true}}":                    "set options.preemption instead",
		"controller: {settings: {BEST_NODE: true}}":                     "set options.bestNode instead",
		"controller: {settings: {NODE_PLACEMENT: spread}}":              "needs options.bestNode",
		"controller: {settings: {DEFRAGMENT: evict}}":                   "needs options.defragment",
		"options: {bestNodeGate: true}":                                 "needs options.bestNode",
		"controller: {settings: {HEALTH_ADDRESS: ':1'}}":                "do not follow it",
		"controller: {settings: {LEGACY_POLICY: mine}}":                 "allows gpushare-legacy-refuse",
		"kubeletPlugin: {settings: {MPS_DIR: /run/mps}}":                "do not follow it",
		"kubeletPlugin: {settings: {KUBELET_POD_RESOURCES_SOCKET: /x}}": "set kubeletPlugin.podRes",
		"image: {digest: abc}":                                          "digest",
		"image: {repository: 'r.example:5000/g:v1'}":                    "g:v1 names a tag or a digest: set image.tag",
		"image: {repository: 'r.example/g@sha256:ab'}":                  "g@sha256:ab names a tag or a digest",
		"kubeletPlugin: {resources: {claims: [{name: gpu}]}}":           "claims",
		"test: {resources: {claims: [{name: gpu}]}}":                    "claims",
		"kubeletPlugin: {maxSurge: 0}":                                  "maxSurge",
		"kubeletPlugin: {maxSurge: 0%}":                                 "maxSurge",
		"kubeletPlugin: {maxSurge: 101%}":                               "maxSurge",
		"kubeletPlugin: {maxSurge: '3'}":                                "maxSurge",
		"resourceQuota: {pods: many}":                                   "pods",
		"resourceQuota: {pods: 0}":                                      "pods",
		"test: {memory: lots}":                                          "memory",
		"mpsSupervisor: {podLabels: {app.kubernetes.io/component: x}}":  "'app.kubernetes.io/component'",
		"controller: {affinity: {nodeaffinity: {}}}":                    "nodeaffinity",
		"kubeletPlugin: {tolerations: [{operater: Exists}]}":            "operater",
		"mpsSupervisor: {tolerations: [{operator: exists}]}":            "operator",
		"test: {tolerations: [{key: a, effect: NoSchedulle}]}":          "effect",
		"test: {image: registry.example/cuda}":                          "test.image needs test.command",
		"test: {memory: 1}":                                             "memory",
		"test: {memory: 512Mi}":                                         "memory",
		"test: {memory: 1.5Gi}":                                         "memory",
		"test: {memory: 0Gi}":                                           "memory",
		"test: {memory: '1'}":                                           "memory",
		"test: {cores: 7}":                                              "cores",
		"test: {cores: '0'}":                                            "cores",
		"test: {cores: 105}":                                            "cores",
		"test: {cores: 20}":                                             "class share.gpu.aliyun.com grants no compute",
		"test: {deviceClass: core-mem.gpu.aliyun.com, memory: ''}":      "test.memory: class core-mem.gpu.aliyun.com needs",
		"resourceQuota: {enabled: true}":                                "would limit the critical pods of others",
	} {
		if _, err := render(load(t), "kube-system", values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that names %q", values, err, want)
		}
	}
}

// What a user empties is refused, or does no harm: Helm takes a value of null for one that is
// not there.
func TestEmptiedValues(t *testing.T) {
	var empty func(values map[string]any, path ...string)
	empty = func(values map[string]any, path ...string) {
		for key, value := range values {
			keys := append(slices.Clone(path), key)
			if under, ok := value.(map[string]any); ok {
				empty(under, keys...)
			}
			text := strings.Join(keys, ": {") + ": null" + strings.Repeat("}", len(keys)-1)
			files, err := render(load(t), "gpus", text)
			if err != nil {
				if !strings.Contains(err.Error(), key) {
					t.Errorf("%s: error %v does not name it", text, err)
				}
				continue
			}
			for name, content := range files {
				if strings.Contains(content, "nil>") {
					t.Errorf("%s: %s has\n%s", text, name, content)
				}
			}
		}
	}
	empty(load(t).Values)
}

// A value of another kind than the chart's own is refused, whichever it is.
func TestValuesOfAnotherKind(t *testing.T) {
	var mistake func(values map[string]any, path ...string)
	mistake = func(values map[string]any, path ...string) {
		for key, value := range values {
			keys := append(slices.Clone(path), key)
			wrong := []string{"[x]", "{x: {}}"}
			switch value := value.(type) {
			case map[string]any:
				wrong = []string{"[x]", "x"}
				mistake(value, keys...)
			case []any:
				wrong = []string{"{x: {}}", "x"}
			case bool:
				wrong = append(wrong, "sometimes")
			}
			for _, w := range wrong {
				text := strings.Join(keys, ": {") + ": " + w + strings.Repeat("}", len(keys)-1)
				if _, err := render(load(t), "gpus", text); err == nil || !strings.Contains(err.Error(), key) {
					t.Errorf("%s: error %v, want one that names it", text, err)
				}
			}
		}
	}
	mistake(load(t).Values)
}

// A copy of the chart without what its links point to is refused: nothing would be installed.
func TestChartThatLostItsLinks(t *testing.T) {
	c := load(t)
	c.Files = nil
	if _, err := render(c, "gpus", ""); err == nil || !strings.Contains(err.Error(), "this copy lost its links") {
		t.Errorf("error %v", err)
	}
	c = load(t)
	const lost = "files/deployments/manifests/daemonset.yaml"
	c.Files = slices.DeleteFunc(c.Files, func(f *chart.File) bool { return f.Name == lost })
	if _, err := render(c, "gpus", ""); err == nil || !strings.Contains(err.Error(), "has no "+lost) {
		t.Errorf("error %v", err)
	}
}

// documentedSetting is a row of the tables of settings, for a component of the chart. The initial is empty where the
// page has none, or words.
type documentedSetting struct{ component, name, initial string }

// documentedSettings are the rows of the tables that users meet, and of that of the host, which names the programs.
func documentedSettings(t *testing.T) []documentedSetting {
	t.Helper()
	var all []documentedSetting
	row := regexp.MustCompile("(?m)^\\| `([A-Z0-9_]+)` \\|(?: ([a-z, ]+) \\|)?(?: `([^`]+)` \\|)?")
	for _, table := range []struct{ page, name string }{{"docs/reference.md", "settings-node"},
		{"docs/reference.md", "settings-cluster"}, {"docs/internals/settings.md", "settings-host"}} {
		content, err := os.ReadFile(filepath.Join(checkout, table.page))
		noError(t, err)
		_, rows, _ := strings.Cut(string(content), `"make docs": `+table.name+" -->")
		rows, _, ended := strings.Cut(rows, "<!-- end of "+table.name)
		if !ended {
			t.Fatalf("%s has no table %s", table.page, table.name)
		}
		for _, found := range row.FindAllStringSubmatch(rows, -1) {
			if table.name != "settings-cluster" && found[2] != "controller" {
				all = append(all, documentedSetting{"kubeletPlugin", found[1], found[3]})
			}
			if table.name == "settings-cluster" || strings.Contains(found[2], "controller") {
				all = append(all, documentedSetting{"controller", found[1], found[3]})
			}
		}
	}
	return all
}

// The settings that the schema knows are those of the documents.
func TestSettingsOfTheSchema(t *testing.T) {
	// These two are for who writes a DaemonSet.
	given := []string{"READY_FILE", "SETTINGS_DIR"}
	want := map[string][]string{}
	for _, s := range documentedSettings(t) {
		if !slices.Contains(given, s.name) {
			want[s.component] = append(want[s.component], s.name)
		}
	}
	schema := parsed(t, string(load(t).Schema))
	for component, names := range want {
		slices.Sort(names)
		var got []string
		settings := part(t, schema, "properties", component, "properties", "settings", "propertyNames", "enum")
		for _, name := range settings.([]any) {
			got = append(got, name.(string))
		}
		same(t, names, got, "settings of %s", component)
	}
}

// A setting that turns something off takes the right to do it away.
func TestRightsFollowSettings(t *testing.T) {
	const role = "ClusterRole <nil>/gpushare:gpu-kubelet-plugin"
	for values, want := range map[string]bool{
		"": true,
		"kubeletPlugin: {settings: {CLAIM_STATUS: true}}":  true,
		"kubeletPlugin: {settings: {CLAIM_STATUS: false}}": false,
		"kubeletPlugin: {settings: {CLAIM_STATUS: '0'}}":   false,
	} {
		text, err := yaml.Marshal(installed(t, "gpus", values)[role])
		noError(t, err)
		for _, resource := range []string{"resourceclaims/status", "resourceclaims/driver"} {
			if got := strings.Contains(string(text), "- "+resource+"\n"); got != want {
				t.Errorf("%s: the plugin may patch %s: %t", values, resource, got)
			}
		}
		if !strings.Contains(string(text), "- resourceslices\n") {
			t.Errorf("%s: the plugin's role is\n%s", values, text)
		}
	}
}

// What could do most harm in wrong hands – to evict any pod, to read all pods – comes only with
// the option that needs it. Off is what evictions could be set to before there was an option.
func TestRightsThatComeWithOptions(t *testing.T) {
	const evicts, lists = "pods/eviction", "ClusterRole <nil>/gpushare:gpu-kubelet-plugin-pods"
	for values, want := range map[string]struct{ evicts, lists bool }{
		"":                                  {},
		"options: {preemption: true}":       {evicts: true},
		"options: {defragment: true}":       {evicts: true},
		"options: {devicePluginPods: true}": {lists: true},
		"options: {migration: true}":        {lists: true},
		"{options: {auditEvicts: true}, kubeletPlugin: {settings: {AUDIT_EVICT: over-share}}}": {evicts: true},
	} {
		all := installed(t, "gpus", values)
		text, err := yaml.Marshal(all)
		noError(t, err)
		if got := strings.Contains(string(text), evicts); got != want.evicts {
			t.Errorf("%s: pods can be evicted: %t", values, got)
		}
		rules, _ := all[lists]["rules"].([]any)
		if got := len(rules) > 0; got != want.lists {
			t.Errorf("%s: the plugin may list pods: %t", values, got)
		}
	}
}
