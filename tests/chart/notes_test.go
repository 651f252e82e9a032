// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"strings"
	"testing"
)

// What the installation says next names what was installed, and fits the values.
func TestNotes(t *testing.T) {
	const image = "image: {repository: registry.example/gpushare, tag: v1}"
	const label = "  kubectl label node NODE ack.node.gpu.schedule="
	const run = "  helm test dra-driver-gpushare -n gpus --logs\n"
	const unprivileged = "kubectl label namespace gpus pod-security.kubernetes.io/enforce=privileged"
	for values, test := range map[string]struct {
		namespace  string
		has, lacks []string
	}{
		image: {"gpus", []string{"kubectl -n gpus rollout status", "registry.example/gpushare:v1", unprivileged,
			label + "share\n", run, "1Gi of a GPU of class share.gpu.aliyun.com,\nprints what it was given", "helm uninstall",
		}, []string{"push it", "migrat"}},
		"": {"kube-system", []string{"push it to your registry", "delete the pods of gpu-mps-supervisor"},
			[]string{"label namespace"}},
		"options: {migration: true}": {"gpus", []string{"the label gpu.aliyun.com/migrated", run}, []string{label}},
		"test: {deviceClass: core-mem.nvidia-a10.gpu.aliyun.com, command: [nvidia-smi, -L]}": {"gpus",
			[]string{"into mode core_mem ", label + "core_mem\n", "runs nvidia-smi -L, and ends"}, []string{"prints what"}},
		"test: {deviceClass: exclusive.gpu.aliyun.com, memory: ''}": {"gpus",
			[]string{label + "default\n", "asks for a GPU of class exclusive"}, nil},
		"test: {deviceClass: linked-2.topology.gpu.aliyun.com}": {"gpus", []string{label + "topology\n"}, nil},
		"test: {deviceClass: mine}":                             {"gpus", []string{label + "MODE\n"}, nil},
		"test: {enabled: false, deviceClass: mps.gpu.aliyun.com}": {"gpus",
			[]string{label + "share\n", `sed "s#your-image#`}, []string{"helm test", "mps.gpu"}},
	} {
		files, err := render(load(t), test.namespace, values)
		noError(t, err)
		notes := files["dra-driver-gpushare/templates/NOTES.txt"]
		for _, text := range test.has {
			if !strings.Contains(notes, text) {
				t.Errorf("%s: the notes do not say %q:\n%s", values, text, notes)
			}
		}
		for _, text := range test.lacks {
			if strings.Contains(notes, text) {
				t.Errorf("%s: the notes say %q:\n%s", values, text, notes)
			}
		}
	}
}
