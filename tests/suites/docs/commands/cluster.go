// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"regexp"
	"slices"
	"strings"
)

// Page is what tests/suites/pages has a reader choose, and do around the commands of a page.
type Page struct {
	// Choices are values for the words that stand for a reader's own, beside those of All.
	Choices map[string]string
	// Before and After are commands that make what the page takes for granted, and remove what
	// its commands leave.
	Before, After string
	// Shows has, for a command, what its block prints beside other things: an exit status says little of
	// a pod's log.
	Shows map[string]string
}

// All are values for words that stand for a reader's own. plugin and leader are variables with
// the names of pods.
var All = map[string]string{
	"NODE": "n3", "N": "n3", "GROUP": "developers", "POD": "$plugin", "CLAIM": "$claim", "REGISTRY": "localhost",
	"TAG": "dev",
}

// Pages are those of which something has to be said.
var Pages = map[string]Page{
	"docs/audit.md": {After: "kubectl delete -k deployments/options/audit-evicts\n" +
		"kubectl delete -k deployments/options/grace-limit"},
	"docs/autoscaling.md": {After: "kubectl -n kube-system delete configmap gpu-compat-controller"},
	"docs/dynamic.md": {Choices: map[string]string{"NODE": "n4"},
		After: "kubectl delete -f demo/dynamic/every-mode.yaml"},
	"README.md":          {Shows: map[string]string{"kubectl logs first": "/dev/nvidia"}},
	"docs/gpu-models.md": {After: "kubectl -n kube-system delete configmap gpu-compat-controller"},
	"docs/gpu-operator.md": {Before: "kubectl create namespace gpu-operator", After: "kubectl delete namespace " +
		"gpu-operator; kubectl label node n3 nvidia.com/gpu.deploy.device-plugin-"},
	"docs/health.md": {Choices: map[string]string{"POD": "first"}},
	"docs/inspect.md": {
		Choices: map[string]string{"sudo ": "", "/usr/local/bin/": "$bin/",
			"cgpu bundle":   "cgpu bundle -o $bin/bundle.tar.gz",
			"-f train.yaml": "-f demo/legacy/GPUtest.yaml"},
		Before: "kubectl create namespace team-a; kubectl create namespace team-b\n" +
			"first() { sed \"s#your-image#localhost/dra-driver-gpushare:dev#; $1\" demo/first-claim.yaml; }\n" +
			"first 's/: first/: train/; s/: 3Gi/: 999Gi/' | kubectl -n team-a apply -f -\n" +
			"first 's/: first/: big/' | kubectl -n team-b apply -f -\n" +
			"kubectl -n team-b wait pod/big --for=condition=Ready --timeout=2m",
		After: "kubectl delete namespace team-a team-b; kubectl delete clusterrole,clusterrolebinding gpu-inspect",
	},
	"docs/install.md": {
		Choices: map[string]string{"NAME": "elsewhere", "sudo ": "", "/usr/local/bin/": "$bin/"},
		After:   "kubectl delete namespace elsewhere",
	},
	"docs/isolation.md": {Before: "kubectl create namespace gpu-operator",
		After: "kubectl delete namespace gpu-operator; kubectl delete -k deployments/options/visible-devices\n" +
			"kubectl label node n3 gpu.aliyun.com/mps-daemon-"},
	"docs/legacy.md": {After: "kubectl delete -f demo/legacy/GPUtest.yaml"},
	// Further pages know the node in this mode.
	"docs/mig.md":             {After: "kubectl label --overwrite node n3 ack.node.gpu.schedule=share"},
	"docs/other-manifests.md": {After: "kubectl delete -k deployments/options/other-manifests"},
	"docs/packing.md": {After: "kubectl delete -k deployments/options/best-node\n" +
		"kubectl delete -k deployments/options/defragment\n" +
		"kubectl -n kube-system delete configmap gpu-compat-controller"},
	"docs/preemption.md": {After: "kubectl delete -k deployments/options/preemption\n" +
		"kubectl -n kube-system delete configmap gpu-compat-controller"},
	"docs/quota.md": {Before: "kubectl create namespace team-a", After: "kubectl delete namespace team-a\n" +
		"kubectl delete -k deployments/options/quota; kubectl delete -k deployments/options/share-limit"},
	// tests/suites/workloads runs it, on nodes of its own.
	"docs/workloads.md": {Choices: map[string]string{"NODE": "mps"}},
}

// Skipped are commands that the cluster of tests/suites/pages cannot run, and why.
var Skipped = []struct {
	Command *regexp.Regexp
	Why     string
}{
	{regexp.MustCompile(`^nvidia-smi `), "simulated nodes have no nvidia-smi"},
	{regexp.MustCompile(`^kubectl .*\btop `), "there is no metrics-server"},
	{regexp.MustCompile(`^kubectl .* logs POD --previous`), "no container of the pod has ended"},
	{regexp.MustCompile(`^helm install .* -n kube-system `),
		"tests/suites/install/run.sh runs it, with the files of a release"},
	{regexp.MustCompile(`^(make cluster |export KUBECONFIG=)`), "the test has its own cluster, with such nodes"},
	{regexp.MustCompile(`^kubectl -n kube-system create configmap gpu-kubelet-plugin --from-literal=AUDIT`),
		"the ConfigMap is there, with what simulated nodes need"},
}

// skip takes out of commands what cannot be run.
func skip(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		skipped := false
		for _, s := range Skipped {
			skipped = skipped || s.Command.MatchString(line)
		}
		if !skipped {
			out.WriteString(line)
		}
	}
	return out.String()
}

// choice is a word that stands for a reader's own: in capitals, no variable of the shell, and
// no head of a column.
var choice = regexp.MustCompile(`(?:^|[^$\w{.-])([A-Z]{2,}|N)(:\.|[^\w=(-]|$)`)

// names are words in capitals that are just called so.
var names = []string{"ALIYUN", "EOF", "NVIDIA"}

// Choices are the words of commands that stand for a reader's own.
func Choices(text string) []string {
	var out []string
	for _, found := range choice.FindAllStringSubmatch(text, -1) {
		if found[2] != ":." && !slices.Contains(names, found[1]) {
			out = append(out, found[1])
		}
	}
	return out
}

// On returns the block's commands for the cluster of tests/suites/pages: with values for the words
// that stand for a reader's own.
func (b Block) On() string {
	text := skip(b.Commands())
	// The ports of the controller are not the plugin's.
	text = regexp.MustCompile(`\bPOD:(8081|8481)\b`).ReplaceAllString(text, "$$leader:$1")
	for _, choices := range []map[string]string{Pages[b.Path].Choices, All} {
		for word, value := range choices {
			if !choice.MatchString(word) {
				text = strings.ReplaceAll(text, word, value)
				continue
			}
			pattern := regexp.MustCompile(`\b` + word + `\b(:\.)?`)
			text = pattern.ReplaceAllStringFunc(text, func(found string) string {
				if strings.HasSuffix(found, ":.") {
					return found
				}
				return value
			})
		}
	}
	return text
}
