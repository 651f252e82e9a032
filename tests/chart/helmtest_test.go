// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"strings"
	"testing"
)

// helmTest is what `helm test` and its release have: the template of a claim, and the pod.
func helmTest(t *testing.T, values string) (template, pod map[string]any) {
	t.Helper()
	all := rendered(t, "gpus", values, func(name string) bool { return strings.Contains(name, "/templates/tests/") })
	for key, object := range all {
		if strings.HasPrefix(key, "ResourceClaimTemplate gpus/gpushare-test-") {
			template = object
		}
	}
	pod = all["Pod gpus/gpushare-test"]
	if len(all) != 2 || template == nil || pod == nil {
		t.Fatalf("there are %v", all)
	}
	return template, pod
}

func TestHelmTest(t *testing.T) {
	container := []string{"spec", "containers", "0"}
	for name, test := range map[string]struct{ values, request, image, command, nodeSelector, resources string }{
		"as it is": {
			values:  "image: {tag: v1}",
			request: "{deviceClassName: share.gpu.aliyun.com, capacity: {requests: {memory: 1Gi}}}",
			image:   "localhost/dra-driver-gpushare:v1",
			command: "[/usr/bin/gpu-kubelet-plugin, given]", nodeSelector: "{}",
			// A ResourceQuota of CPU or memory keeps pods out that request none.
			resources: "{claims: [{name: gpu}], requests: {cpu: 10m, memory: 64Mi}}",
		},
		"as much compute as given": {
			values: `{image: {tag: v1}, test: {deviceClass: core-mem.gpu.aliyun.com, memory: 2Gi, cores: 20,
				resources: {requests: {cpu: 1}, limits: {memory: 1Gi}}}}`,
			request: `{deviceClassName: core-mem.gpu.aliyun.com, capacity: {requests: {memory: 2Gi, cores: "20"}}}`,
			image:   "localhost/dra-driver-gpushare:v1",
			command: "[/usr/bin/gpu-kubelet-plugin, given]", nodeSelector: "{}",
			resources: "{claims: [{name: gpu}], requests: {cpu: 1, memory: 64Mi}, limits: {memory: 1Gi}}",
		},
		"a whole GPU, by a program of the user": {
			values: `test: {deviceClass: exclusive.gpu.aliyun.com, memory: "", nodeSelector: {kubernetes.io/hostname: n7},
				image: "registry.example/cuda:13", command: [nvidia-smi, -L], resources: null}`,
			request: "{deviceClassName: exclusive.gpu.aliyun.com}",
			image:   "registry.example/cuda:13", command: "[nvidia-smi, -L]",
			nodeSelector: "{kubernetes.io/hostname: n7}", resources: "{claims: [{name: gpu}]}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			template, pod := helmTest(t, test.values)
			for what, values := range map[string]struct {
				got  any
				want string
			}{
				"request":   {part(t, template, "spec", "spec", "devices", "requests", "0", "exactly"), test.request},
				"image":     {part(t, pod, append(container, "image")...), test.image},
				"command":   {part(t, pod, append(container, "command")...), test.command},
				"resources": {part(t, pod, append(container, "resources")...), test.resources},
				"nodes":     {part(t, pod, "spec", "nodeSelector"), test.nodeSelector},
				"template":  {part(t, pod, "spec", "resourceClaims", "0", "resourceClaimTemplateName"), nameOf(template)},
				"hook":      {part(t, pod, "metadata", "annotations", "helm.sh/hook"), "test"},
			} {
				same(t, parsed(t, values.want), values.got, "%s", what)
			}
			// Helm takes every hook of a test for a pod with a log.
			if metadata := template["metadata"].(map[string]any); metadata["annotations"] != nil {
				t.Errorf("the template is a hook: %v", metadata)
			}
		})
	}
}

// Of each mode a class has a template that the policies take, as tests/policies shows of these.
func TestHelmTestOfEachMode(t *testing.T) {
	content, err := os.ReadFile(checkout + "/helm-test.yaml")
	noError(t, err)
	want := objects{}
	want.add(t, string(content))
	if len(want) < 6 {
		t.Errorf("there are %d templates", len(want))
	}
	for _, object := range want {
		class := part(t, object, "spec", "spec", "devices", "requests", "0", "exactly", "deviceClassName").(string)
		values := "test: {deviceClass: " + class + "}"
		if strings.HasPrefix(class, "exclusive.") {
			values = "test: {memory: '', deviceClass: " + class + "}"
		}
		template, _ := helmTest(t, values)
		same(t, object["spec"], template["spec"], "%s", values)
	}
}

// A template that asks for something else is another one: what a template asks for is immutable,
// and `helm upgrade` would fail.
func TestHelmTestAsksForSomethingElse(t *testing.T) {
	one, _ := helmTest(t, "")
	other, _ := helmTest(t, "test: {memory: 2Gi}")
	if nameOf(one) == nameOf(other) {
		t.Errorf("both templates are called %s", nameOf(one))
	}
}

func TestNoHelmTest(t *testing.T) {
	if all := rendered(t, "gpus", "test: {enabled: false}", func(name string) bool {
		return strings.Contains(name, "/templates/tests/")
	}); len(all) > 0 {
		t.Errorf("there are %v", all)
	}
}

func nameOf(object map[string]any) string {
	metadata, _ := object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	return name
}
