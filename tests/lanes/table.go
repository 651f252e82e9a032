// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"time"
)

// When says which runs a lane is part of.
type When string

const (
	// EveryChange is `make test`: before each change is submitted.
	EveryChange When = "test"
	// Complete is what `make test-all` has besides, and CI as far as its time allows.
	Complete When = "test-all"
	// Release is `make release-checks`: what changes rarely, or takes builds of its own.
	Release When = "release-checks"
	// OnRequest is in none of them: it is part of another lane, or makes something.
	OnRequest When = "-"
)

// Lane is a part of the checks that can be run by itself, with `make lane LANE=NAME`.
type Lane struct {
	Name string
	// Proves says what holds when the lane passes.
	Proves string
	When   When
	// Takes is about how long it takes on 2 cores with nothing else to do and warm build caches. A run
	// that has to end in time uses it; nothing is asserted of it.
	Takes time.Duration
	// Commands are run one after the other, before Suite if there is one.
	Commands []Command
	// Built says that Commands take what lanes with a Suite do: the driver's image, Helm, the programs of
	// a cluster.
	Built bool
	// Suite are tests on a cluster of their own.
	Suite *Suite
}

// Command is a part of a lane that needs no cluster.
type Command struct {
	// Shell is run by `sh -eu`, in the root of the checkout.
	Shell string
	// Tests are arguments of `go test -json`, in place of Shell. Where Dir is set, it is another
	// module's directory.
	Tests []string
	Dir   string
}

// Suite are the tests of a package, on a cluster that is made for them.
type Suite struct {
	Package string
	// Nodes are those of the cluster, as `cluster up --nodes` takes them; Gates and Kubernetes likewise.
	Nodes, Gates, Kubernetes string
	// Prepare, Install are run by `sh -eu` in the root of the checkout, before there is a cluster and
	// when there is one. They and Env can use $BUILD, $DIR, $HELM, and $CLUSTER, which is the command
	// that speaks to the cluster.
	Prepare, Install string
	// Then is run when all tests have passed.
	Then string
	// Images are archives that nodes have; by default the driver's.
	Images []string
	// Env are variables of the tests, NAME=VALUE.
	Env []string
	// Parallel is how many tests work at once, not counting those that wait for nodes; 0 is Go's default.
	Parallel int
	// Promised takes the tests that the table of promises names, or, if it is false, leaves them out. A
	// suite that names neither has all.
	Promised *bool
	// LeftOut are tests that are left out.
	LeftOut []string
}

const (
	installDriver = `tests/cluster/install-driver.sh "$BUILD/driver-image.tar" $CLUSTER`
	needsJQ       = `command -v jq >/dev/null || apt-get install --yes --no-install-recommends jq
`
	// installForE2E lets a test replace one node's plugin by another: see pluginWith of tests/suites/e2e.
	installForE2E = `HELM_ARGS='--set-json kubeletPlugin.affinity={"nodeAffinity":` +
		`{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[` +
		`{"key":"type","operator":"NotIn","values":["virtual-kubelet"]},` +
		`{"key":"e2e-own-plugin","operator":"DoesNotExist"}]}]}}}' ` + installDriver
	standinImage = `CGO_ENABLED=0 go build -buildvcs=false -o "$BUILD/standin" ./tests/standins/deviceplugin/standin
"$BUILD/bin/cluster" image build --name localhost/device-plugin-standin:latest --out "$BUILD/standin.tar" \
	--entrypoint /standin --file "$BUILD/standin=/standin:0755"
`
	// vet finds what lane lint does in the module of the directory that $module names.
	vet = `(cd "$module" && go vet -vettool="$BUILD/bin/lint" -tags e2e,hardware,cluster,` + buildTags + ` ./...)`
	// buildLint builds what vet needs.
	buildLint = `go build -C tests/tools -o "$BUILD/bin/lint" ./lint
`
	// releaseFiles makes those of a release, unless they are there.
	releaseFiles = `release=${RELEASE:-v0.0.0-dev}
[ -e "$BUILD/release/$release/SHA256SUMS" ] || RELEASE=$release make --no-print-directory release-artifacts
`
	buildPrometheus = `go build -C tests/suites/monitoring/prometheus -buildvcs=false \
	-tags remove_all_sd,enable_kubernetes_sd -o "$BUILD/bin/" \
	github.com/prometheus/prometheus/cmd/prometheus github.com/prometheus/prometheus/cmd/promtool`
	buildKueue = `go build -C tests/suites/queues/kueue -o "$BUILD/bin/" sigs.k8s.io/kueue/cmd/kueue
chart=$(go list -C tests/suites/queues/kueue -m -f '{{.Dir}}' sigs.k8s.io/kueue)/charts/kueue
"$HELM" template kueue "$chart" --namespace kueue-system >"$BUILD/kueue.yaml"`
	// buildOperators builds operators from their modules, and links these, which have their CRDs and webhooks.
	buildOperators = `mkdir -p "$BUILD/operators/source"
go build -C tests/suites/operators/components -o "$BUILD/operators/" sigs.k8s.io/jobset \
	github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager
go build -C tests/suites/operators/kuberay -o "$BUILD/operators/" github.com/ray-project/kuberay/ray-operator
link() { ln -sfn "$(go list -C "tests/suites/operators/$1" -m -f '{{.Dir}}' "$2")" "$BUILD/operators/source/$3"; }
link components sigs.k8s.io/jobset jobset
link components github.com/kubeflow/trainer/v2 trainer
link kuberay github.com/ray-project/kuberay/ray-operator kuberay
tests/suites/workloads/images.sh "$BUILD/operators" "$BUILD/bin/cluster" demo/operators/raycluster.yaml \
	demo/operators/jobset.yaml`
	// atOnce is how many tests of suite e2e work at once: with more, two processors are late with all of them.
	atOnce = 8
	// mainNodes are described in tests/suites/e2e/doc.go.
	mainNodes = "fill=v100x4:share share=a10x4:share whole=a100x8:default mixed=mixed switch=t4x1:share " +
		"kill=v100x4:share+stock-timers old=v100x4:share bad=v100x4:share modes=v100x4:mps flip=v100x4:share " +
		"dynamic=a100x8:dynamic topo=dgx1:topology mig=migx4:mig"
)

// lanes are all that there are, in the order in which they are run.
func lanes() []Lane {
	return slices.Concat(withoutCluster(), onClusters(), forReleases(), pictures())
}

// pictures make those of the documents again that show a terminal.
func pictures() []Lane {
	const draw = "tests/suites/picture/draw.sh"
	return []Lane{
		{Name: "picture", When: OnRequest, Takes: 2 * time.Minute,
			Proves: "nothing: it makes inspect.svg and first-claim.svg in docs/pictures again, with Debian's npm",
			Suite: &Suite{Package: "./tests/suites/picture", Nodes: "n1=v100x4:share n2=a10x4:share", Install: installDriver,
				Then: draw + ` "$BUILD/inspect.cast" docs/pictures/inspect.svg \
	"kubectl inspect cgpu in a terminal: how full each GPU is, what is used of it, and why a pod waits" --window --at 3000
` + draw + ` "$BUILD/first-claim.cast" docs/pictures/first-claim.svg \
	"A terminal: a first claim, who has which GPU, and why a pod waits" --window`}},
	}
}

func withoutCluster() []Lane {
	return []Lane{
		{Name: "lint", When: EveryChange, Takes: time.Minute,
			Proves: "gofmt, and the analyzers of go vet and of staticcheck, find nothing in any module that the lanes of " +
				"`make test` compile",
			Commands: []Command{{Shell: `unformatted=$(gofmt -l cmd pkg cdi deviceclasses deployments internal tests)
[ -z "$unformatted" ] || { echo "gofmt: run gofmt -w on these files:"; echo "$unformatted"; exit 1; } >&2
` + buildLint + `status=0
# The same tags everywhere: they are a part of what go vet keeps its findings by. What Prometheus is linked with, 300
# packages of clouds and databases, would be compiled for a vet of five files: lane monitoring, which needs it, has them.
for module in . tests/cluster tests/policies tests/chart tests/tools deployments/container/cdi-hook deployments/release
do
	` + vet + ` || status=1
done
exit "$status"`}}},
		{Name: "unit", When: EveryChange, Takes: 9 * time.Minute,
			Proves:   "each package does what its callers rely on, the policies and the chart what users rely on",
			Commands: testsOfModules()},
	}
}

// testsOfModules are the tests of all modules that need no cluster.
func testsOfModules(flags ...string) []Command {
	var commands []Command
	for _, dir := range []string{"", "tests/policies", "tests/chart", "tests/tools", "deployments/container/cdi-hook",
		"deployments/release", "tests/cluster"} {
		tests := append(slices.Clone(flags), "./...")
		if dir == "tests/tools" {
			// They read files of other modules, which `go test` does not see change.
			tests = append([]string{"-count=1"}, tests...)
		}
		commands = append(commands, Command{Dir: dir, Tests: tests})
	}
	return commands
}

func onClusters() []Lane {
	yes, no := true, false
	main := Suite{Package: "./tests/suites/e2e", Nodes: mainNodes, Install: installForE2E, Parallel: atOnce}
	promised, rest := main, main
	promised.Promised, rest.Promised = &yes, &no
	return []Lane{
		{Name: "e2e", When: EveryChange, Takes: 10 * time.Minute, Suite: &promised,
			Proves: "most of what the documents promise, a test for each promise, on a real Kubernetes of 13 nodes"},
		{Name: "e2e-rest", When: Complete, Takes: 13 * time.Minute, Suite: &rest,
			Proves: "all else that users rely on, 500 pods with kills among it"},
		{Name: "gang", When: Complete, Takes: 5 * time.Minute,
			Proves: "gangs, preemption, CPUs beside GPUs and the nodes that shares go to, where PodGroups are served",
			Suite: &Suite{Package: "./tests/suites/gang", Gates: "gang",
				Nodes:   "whole=v100x4:default share=v100x4:share linked=dgx1:topology",
				Install: `HELM_ARGS="--set options.preemption=true" ` + installDriver}},
		{Name: "mig", When: Complete, Takes: 3 * time.Minute,
			Proves: "MIG instances made on demand, beside static ones, whole GPUs and shares, with kills of the plugin",
			Suite: &Suite{Package: "./tests/suites/mig", Nodes: "static=migx4:mig dynamic=h100x8:mig share=v100x4:share",
				Install: `HELM_ARGS="--set kubeletPlugin.settings.MIG_INSTANCES=dynamic" ` + installDriver}},
		{Name: "migration", When: Complete, Takes: 4 * time.Minute, Suite: migration(""),
			Proves: "the commands of docs/migrate.md, in its order"},
		{Name: "elsewhere", When: Complete, Takes: time.Minute, Suite: elsewhere(""),
			Proves: "the chart in a namespace of its own, with the least rights, and helm test"},
		{Name: "workloads", When: Complete, Takes: time.Minute, Suite: workloads(),
			Proves: "the manifests of docs/workloads.md and docs/training.md, with stand-ins for programs and operators, " +
				"those for HAMi, NVIDIA's DRA driver and others, and AI conformance's rules for GPUs"},
		{Name: "hardware-simulated", Built: true, When: Complete, Takes: 5 * time.Minute,
			Proves: "the archive of `make gpu-bundle`, tried on a simulated node",
			Commands: []Command{{Shell: `deployments/hardware/simulated.sh "$(deployments/hardware/build.sh "$BUILD" \
	"$BUILD/bin/cluster" "$BUILD/driver-image.tar" quick)" ${GPU_BUNDLE_ARGS:---limit 15m}`}}},
		{Name: "cluster-tool", Built: true, When: Complete, Takes: 3 * time.Minute,
			Proves: "the tests' own cluster starts, changes and leaves nothing behind",
			Commands: []Command{{Dir: "tests/cluster",
				Tests: []string{"-tags=cluster," + buildTags, "-race", "-count=1", "./internal/cluster"}}}},
		{Name: "race", When: Complete, Takes: 14 * time.Minute,
			// What the tests are linked with is compiled a second time, and they take up to ten times as long. So tests that
			// try one thing after the other, as random ones do, try fewer (-short): they have no race to show.
			Proves:   "no data race in the tests of lane unit",
			Commands: testsOfModules("-race", "-short")},
	}
}

func migration(kubernetes string) *Suite {
	return &Suite{Package: "./tests/suites/migration", Nodes: "n1=v100x4:share n2=v100x4:share", Kubernetes: kubernetes,
		Prepare: needsJQ + standinImage, Images: []string{"$BUILD/driver-image.tar", "$BUILD/standin.tar"}}
}

func monitoring() Suite {
	return Suite{Package: "./tests/suites/monitoring", Nodes: "n1=v100x4:share n2=v100x4:mps", Install: installDriver,
		Env: []string{"PROMETHEUS=$BUILD/bin/prometheus", "HELM=$HELM"}}
}

// workloads has for each manifest an image that has the name of the program's.
func workloads() *Suite {
	images := []string{"$BUILD/driver-image.tar"}
	for _, manifest := range []string{"jupyter", "pytorch", "triton", "vllm"} {
		images = append(images, "$BUILD/workloads/"+manifest+".tar")
	}
	return &Suite{Package: "./tests/suites/workloads", Images: images,
		Nodes:   "whole=t4x2 mps=v100x4:mps cgpu=v100x4:cgpu dynamic=a100x8:dynamic mig=migx4:mig",
		Prepare: `tests/suites/workloads/images.sh "$BUILD/workloads" "$BUILD/bin/cluster"`,
		// As where NVIDIA's GPU nodes are tainted, and so that manifests of others leave that node alone.
		Install: `HELM_ARGS="--set options.nvidiaDra=true --set options.otherManifests=true
	--set-string controller.settings.NODE_FEATURES=true" ` + installDriver + `
$CLUSTER kubectl taint --overwrite node dynamic nvidia.com/gpu=present:NoSchedule`}
}

func elsewhere(kubernetes string) *Suite {
	return &Suite{Package: "./tests/suites/elsewhere", Nodes: "n1=v100x4:mps", Kubernetes: kubernetes,
		Env: []string{"HELM=$HELM"},
		Install: `"$HELM" install dra-driver-gpushare deployments/helm/dra-driver-gpushare --kubeconfig "$DIR/kubeconfig" \
	--namespace gpu-system --create-namespace \
	--set nvidiaDriverRoot=/run/nvidia/driver --set kubeletPlugin.settings.LIMITS_LIFTED_BY=classes \
	--set controller.settings.TEMPLATE_GRACE=5s --set test.deviceClass=mps.gpu.aliyun.com
$CLUSTER kubectl --namespace gpu-system rollout status daemonset/gpu-kubelet-plugin --timeout=300s
$CLUSTER kubectl --namespace gpu-system rollout status deployment/gpu-compat-controller --timeout=300s`}
}

func forReleases() []Lane {
	helmMigration, prometheus := migration(""), monitoring()
	helmMigration.Prepare += `"$HELM" package deployments/helm/dra-driver-gpushare --destination "$BUILD/migration"`
	helmMigration.Env = []string{"PATH=$BUILD/bin:$PATH",
		"MIGRATION_CHART=$BUILD/migration/dra-driver-gpushare-0.0.0-dev.tgz"}
	upgradeNodes := "share=v100x4:share whole=a10x4 mps=v100x4:mps dynamic=a100x8:dynamic topo=dgx1:topology"
	return []Lane{
		{Name: "install", Built: true, When: Release, Takes: time.Minute,
			Proves:   "README's three commands, with the files of a release",
			Commands: []Command{{Shell: releaseFiles + `tests/suites/install/run.sh "$BUILD" .cluster-install "$release"`}}},
		{Name: "supply-chain", Built: true, When: Release, Takes: 5 * time.Minute,
			Proves: "a release's files are verified or refused, krew installs the plugin, and no vulnerability is known of " +
				"what is shipped, where the list of them can be had",
			Commands: []Command{{Shell: releaseFiles + `tests/suites/supplychain/run.sh "$BUILD" "$release"`}}},
		{Name: "images", Built: true, When: Release, Takes: 2 * time.Minute,
			Proves: "the images of the Dockerfiles are those of `make image`, and the programs of those for arm64 start under " +
				"qemu, where simulated GPUs answer",
			Commands: []Command{{Shell: `tests/suites/dockerfile/run.sh "$BUILD"
deployments/release/tools.sh
deployments/container/build.sh "$BUILD" "$BUILD/bin/cluster" arm64
deployments/container/try.sh "$BUILD/driver-image-arm64.tar" aarch64
tests/standins/image/build.sh "$BUILD" "$BUILD/bin/cluster" arm64
tests/standins/image/try.sh "$BUILD"`}}},
		{Name: "chart-upgrade", When: Release, Takes: 4 * time.Minute,
			Proves: "upgrade, rollback and uninstallation by the chart, with pods that run and start",
			Suite: &Suite{Package: "./tests/suites/chartupgrade", Nodes: "share=v100x4:share mps=v100x4:mps",
				Prepare: `for version in 0.1.0 0.2.0; do
	VERSION=$version DRIVER_IMAGE_NAME=localhost/dra-driver-gpushare:$version \
		deployments/container/build.sh "$BUILD/chartupgrade/$version" "$BUILD/bin/cluster"
	"$HELM" package deployments/helm/dra-driver-gpushare --version $version --app-version $version \
		--destination "$BUILD/chartupgrade"
done`,
				Images: []string{"$BUILD/chartupgrade/0.1.0/driver-image.tar", "$BUILD/chartupgrade/0.2.0/driver-image.tar"},
				Env:    []string{"HELM=$HELM", "CHARTS=$BUILD/chartupgrade"}}},
		{Name: "upgrade", When: Release, Takes: 4 * time.Minute,
			Proves: "an update from an earlier commit, UPGRADE_FROM, with pods running in every mode",
			Suite: &Suite{Package: "./tests/suites/upgrade", Nodes: upgradeNodes,
				Prepare: `tests/suites/upgrade/old.sh "$BUILD/upgrade" "${UPGRADE_FROM:-e0238e8}"`,
				Images:  []string{"$BUILD/upgrade/old/.build/driver-image.tar"},
				Install: `old=$BUILD/upgrade/old
"$old/tests/cluster/install-driver.sh" "$old/.build/driver-image.tar" $CLUSTER`,
				Env: []string{"UPGRADE_NODES=" + upgradeNodes, "UPGRADE_IMAGE=$BUILD/driver-image.tar"}}},
		{Name: "migration-helm", When: Release, Takes: 5 * time.Minute, Suite: helmMigration,
			Proves: "the commands of Helm in docs/migrate.md"},
		{Name: "monitoring", When: Release, Takes: 2 * time.Minute,
			Proves: "alerts and dashboard, by promtool and by a real Prometheus that scrapes a cluster; the analyzers find " +
				"nothing in their module",
			Commands: []Command{
				{Shell: buildPrometheus},
				{Shell: buildLint + "module=tests/suites/monitoring/prometheus\n" + vet},
				{Shell: `cd tests/suites/monitoring/prometheus
PROMTOOL="$BUILD/bin/promtool" go test -count=1 ./...`}},
			Suite: &prometheus},
		{Name: "queues", When: Release, Takes: 4 * time.Minute,
			Proves: "the manifests of docs/queues.md with a real Kueue: quota in GiB, borrowing, preemption",
			Suite: &Suite{Package: "./tests/suites/queues", Nodes: "share=v100x4:share whole=t4x2", Prepare: buildKueue,
				Install: installDriver, Env: []string{"KUEUE=$BUILD/bin/kueue", "KUEUE_CHART=$BUILD/kueue.yaml"}}},
		{Name: "operators", When: Release, Takes: 5 * time.Minute,
			Proves: "manifests of docs/training.md with real operators: JobSet, Kubeflow Trainer, KubeRay; and what " +
				"docs/autoscaling.md says of Karpenter, by the allocator and the readiness of its core",
			Commands: []Command{{Shell: buildLint + "module=tests/karpenter\n" + vet},
				{Dir: "tests/karpenter", Tests: []string{"./..."}}},
			Suite: &Suite{Package: "./tests/suites/operators", Nodes: "mps=v100x4:mps", Prepare: buildOperators,
				Install: installDriver, Env: []string{"OPERATORS=$BUILD/operators"},
				Images: []string{"$BUILD/driver-image.tar", "$BUILD/operators/raycluster.tar",
					"$BUILD/operators/jobset.tar"}}},
		{Name: "pages", When: Release, Takes: 4 * time.Minute, Proves: "the commands of README.md and docs, page by page",
			// n1 to n3 are those of docs/gpu-models.md.
			Suite: &Suite{Package: "./tests/suites/pages", Nodes: "n1=mixed n2=t4x1:share n3=a10x4 n4=dgx1",
				Prepare: needsJQ}},
		{Name: "e2e-1.36", When: Release, Takes: 25 * time.Minute, Proves: "both lanes e2e, on Kubernetes 1.36",
			// Each node is to offer GPUs: an older Kubernetes does not serve mode dynamic, which three tests are about.
			Suite: &Suite{Package: "./tests/suites/e2e", Nodes: strings.Replace(mainNodes, ":dynamic", ":share", 1),
				Kubernetes: "1.36", Install: installForE2E, Parallel: atOnce,
				LeftOut: []string{"TestFiveModesOnOneNode", "TestModesNeverMeetOnAGPU", "TestNodesShowTheirAmounts"}}},
		{Name: "kind", Built: true, When: Release, Takes: 2 * time.Minute,
			Proves:   "demo/kind.sh, with stand-ins for docker and kind: a DaemonSet gives a node its simulated GPUs",
			Commands: []Command{{Shell: `tests/suites/kind/run.sh "$BUILD" .cluster-kind`}}},
		{Name: "migration-1.36", When: Release, Takes: 5 * time.Minute, Suite: migration("1.36"),
			Proves: "lane migration, on Kubernetes 1.36"},
		{Name: "elsewhere-1.36", Built: true, When: Release, Takes: 3 * time.Minute, Suite: elsewhere("1.36"),
			Proves: "lane elsewhere, the demonstration and doctor, on Kubernetes 1.36",
			Commands: []Command{{Shell: `trap '"$BUILD/bin/cluster" --dir .cluster-demo-1.36 down' EXIT
K8S=1.36 demo/demo.sh .cluster-demo-1.36
KUBECONFIG=.cluster-demo-1.36/kubeconfig "$BUILD/bin/kubectl-inspect-cgpu" doctor`}}},
	}
}
