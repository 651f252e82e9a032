# Everything here needs root, Go and gcc; `make cluster` installs what else it
# takes from Debian. Nothing needs a GPU.

# The nodes of the cluster: name=machine[:mode], machines from demo/machines.
NODES ?= n1=v100x4:share
# Parts of Kubernetes to enable that are off by default: gang.
GATES ?=
# Its Kubernetes, of those that tests/cluster builds: 1.36, or the newest if none is named.
K8S ?=
export K8S
# The directory of the cluster. A second one can be up beside it.
CLUSTER_DIR ?= .cluster

# What the programs say they are.
export VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

BUILD := .build
CLUSTER := $(BUILD)/bin/cluster --dir "$(CLUSTER_DIR)"
DRIVER_IMAGE := $(BUILD)/driver-image.tar

.PHONY: cluster cluster-down images $(BUILD)/bin/cluster kubectl-inspect-cgpu $(BUILD)/bin/kubectl-inspect-cgpu

# A Kubernetes with the driver installed and one node per entry of NODES. The
# kubeconfig is $(CLUSTER_DIR)/kubeconfig.
cluster: $(BUILD)/bin/cluster $(BUILD)/bin/helm images
	$(CLUSTER) up --nodes "$(NODES)" --image $(DRIVER_IMAGE) $(GATES:%=--gates=%) $(K8S:%=--kubernetes=%)
	tests/cluster/install-driver.sh $(DRIVER_IMAGE) $(CLUSTER)

cluster-down: $(BUILD)/bin/cluster
	$(CLUSTER) down

# The image of the driver, as an archive: push it to your registry. Demonstrations and
# tests run the same.
.PHONY: image
image images: $(BUILD)/bin/cluster
	deployments/container/build.sh $(BUILD) $(BUILD)/bin/cluster

# The Helm chart as an archive, .build/dra-driver-gpushare-$(CHART_VERSION).tgz, whose image has the
# tag IMAGE_TAG if none is given at the installation.
CHART_VERSION ?= 0.0.0-dev
IMAGE_TAG ?= dev
.PHONY: chart
chart:
	mkdir -p $(BUILD)
	go run -C tests/chart ./pack "$(CURDIR)/deployments/helm/dra-driver-gpushare" "$(CHART_VERSION)" "$(IMAGE_TAG)" "$(CURDIR)/$(BUILD)"

# Helm, of the version that tests/chart/go.mod names. Nothing but that decides whether it is up
# to date. Its symbols would make half of the program.
HELM_VERSION = $(shell go list -C tests/chart -m -f '{{.Version}}' helm.sh/helm/v3)
HELM_LDFLAGS = -s -w -X helm.sh/helm/v3/internal/version.version=$(HELM_VERSION)
.PHONY: helm
helm: $(BUILD)/bin/helm

$(BUILD)/bin/helm: tests/chart/go.mod
	go build -C tests/chart -buildvcs=false -trimpath -ldflags "$(HELM_LDFLAGS)" -o "$(CURDIR)/$@" helm.sh/helm/v3/cmd/helm

# A release: its files, and then all the checks that are too heavy for `make test`, each with
# the time it took. release-artifacts makes the files alone: in .build/release/$(RELEASE) the
# image for linux/amd64 and linux/arm64, the chart, the kubectl plugin for four platforms,
# SBOMs, provenance and checksums. RELEASE_URL is where the files will lie.
.PHONY: release release-artifacts release-checks
RELEASE ?= v0.0.0-dev
RELEASE_URL ?= https://github.com/gpushare/dra-driver-gpushare/releases/download/$(RELEASE)
release:
	@began=$$(date +%s); $(MAKE) --no-print-directory release-artifacts && $(MAKE) --no-print-directory release-checks; \
	status=$$?; tests/took.sh release $$began $$status; exit $$status

release-artifacts: $(BUILD)/bin/cluster
	@began=$$(date +%s); deployments/release/tools.sh && deployments/release/build.sh $(BUILD) $(BUILD)/bin/cluster "$(RELEASE)" "$(RELEASE_URL)"; \
	status=$$?; tests/took.sh release-artifacts $$began $$status; exit $$status

# The lanes of release-checks, in their order.
RELEASE_LANES ?= test-install test-dockerfile release-image-arm64 test-chart-upgrade upgrade rehearsal-helm \
	test-prometheus test-pages e2e-1.36
release-checks:
	@tests/release/checks.sh $(RELEASE_LANES)

# Starts the programs of the image for arm64 under qemu.
.PHONY: release-image-arm64
release-image-arm64: $(BUILD)/bin/cluster
	deployments/release/tools.sh
	deployments/container/build.sh $(BUILD) $(BUILD)/bin/cluster arm64
	deployments/container/try.sh $(BUILD)/driver-image-arm64.tar aarch64

# The commands of README.md that lead from a cluster without the driver to a pod with a share,
# with the files of release-artifacts, timed.
.PHONY: test-install
test-install: $(BUILD)/bin/cluster $(BUILD)/bin/helm
	tests/install/run.sh $(BUILD) .cluster-install "$(RELEASE)"

# The image of deployments/container/Dockerfile, compared with that of `make image`.
.PHONY: test-dockerfile
test-dockerfile: images
	tests/dockerfile/run.sh $(BUILD)

# What simulated nodes have for NVIDIA's NVML library.
.PHONY: nvmllib
nvmllib:
	tests/nvmllib/build.sh $(BUILD)/libnvidia-ml.so

# Go knows best whether it is up to date.
$(BUILD)/bin/cluster:
	go build -C tests/cluster -buildvcs=false -o "$(CURDIR)/$@" .

# The plugin behind "kubectl inspect cgpu": put it somewhere in your PATH. Without cgo it
# runs on machines of any kind.
INSPECT_CGO ?= 0
kubectl-inspect-cgpu: $(BUILD)/bin/kubectl-inspect-cgpu

$(BUILD)/bin/kubectl-inspect-cgpu:
	CGO_ENABLED=$(INSPECT_CGO) go build -buildvcs=false -trimpath -ldflags "-s -w -X github.com/gpushare/dra-driver-gpushare/internal/version.linked=$(VERSION)" -o $@ ./cmd/kubectl-inspect-cgpu

# The demonstration: two nodes, the driver and demo/quickstart, and what came
# of it. It can be run again.
.PHONY: demo demo-down
demo:
	@demo/demo.sh "$(CLUSTER_DIR)"

demo-down: cluster-down

# The tables of docs that say what the code says: flags, labels, metrics, Events, values. A
# unit test fails while they are not current.
.PHONY: docs
docs:
	go run ./tests/docs/generate

# README.md and docs as a site, in .build/site. It takes Hugo, of Debian's package or another
# version from 0.111 on. A link that leads nowhere is an error.
.PHONY: site
HUGO ?= hugo
site:
	@command -v $(HUGO) >/dev/null || apt-get install --yes --no-install-recommends hugo
	rm -rf $(BUILD)/site
	$(HUGO) --source docs/site --destination "$(CURDIR)/$(BUILD)/site" --noBuildLock --panicOnWarning --quiet
	go run ./tests/docs/site $(BUILD)/site

# The picture of kubectl inspect cgpu in the documents, docs/pictures/inspect.svg, of what it writes
# into a terminal on a cluster of its own.
.PHONY: picture
picture: $(BUILD)/bin/cluster $(BUILD)/bin/helm images kubectl-inspect-cgpu
	tests/picture/run.sh $(BUILD) .cluster-picture

# All checks, in two lanes that each print how long they took: `check`, which is
# formatting, static analysis and the unit tests with the race detector, and `e2e`, the
# end-to-end tests on a real cluster of their own.
.PHONY: test check lint unit e2e test-gpu test-gpu-simulated
test: check e2e

check:
	@began=$$(date +%s); $(MAKE) --no-print-directory lint unit; status=$$?; \
	tests/took.sh check $$began $$status; exit $$status

# go-nvml declares functions that NVIDIA's header has deprecated; the compiler
# need not say so each time.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
# A go.work above the checkout is somebody else's.
export GOWORK := off
# As the image is built: static analysis, image and tests then share what Go has compiled.
GOFLAGS := $(filter-out -trimpath,$(shell go env GOFLAGS)) -trimpath
export GOFLAGS

# Go's garbage collector runs a quarter as often in static analysis and tests: a third less
# time, and more memory.
lint unit: export GOGC = 400

lint:
	@test -z "$$(gofmt -l cmd pkg cdi deviceclasses deployments internal tests | tee /dev/stderr)" || { echo "gofmt: the files above are not formatted: run gofmt -w on them" >&2; exit 1; }
	go vet -tags "e2e gpu" ./...
	go tool -modfile=tests/tools/go.mod staticcheck -tags "e2e gpu" ./...
	cd tests/cluster && go vet ./... && go tool -modfile=../tools/go.mod staticcheck ./...
	cd tests/admission && go vet ./... && go tool -modfile=../tools/go.mod staticcheck ./...
	cd tests/chart && go vet ./... && go tool -modfile=../tools/go.mod staticcheck ./...
	cd tests/prometheus && go vet ./... && go tool -modfile=../tools/go.mod staticcheck ./...
	cd deployments/container/cdi-hook && go vet ./... && go tool -modfile=../../../tests/tools/go.mod staticcheck ./...
	cd deployments/release && go vet ./... && go tool -modfile=../../tests/tools/go.mod staticcheck ./...

# The cluster tool's tests build Kubernetes where that has not been done yet.
# The policies and the chart lie outside the modules of their tests: Go does not see that
# they changed. What the API server makes of the policies takes four times as long under the
# race detector, and those tests start nothing that could race. `lint` vets all of it: the vet of
# `go test` would read each dependency a second time, for its build with the race detector.
unit:
	go test -vet=off -race ./...
	cd tests/admission && go test -vet=off -count=1 ./...
	cd tests/chart && go test -vet=off -count=1 ./...
	cd deployments/container/cdi-hook && go test -vet=off -race ./...
	cd deployments/release && go test -vet=off -race ./...
	cd tests/cluster && go test -vet=off -race -timeout 60m ./...

# E2E_DIR is the cluster of the end-to-end tests. KEEP=1 leaves it up, for a
# look at it or for running single tests: see docs/internals/development.md.
E2E_DIR ?= .cluster-e2e
E2E_RUN ?= .
e2e:
	tests/e2e/run.sh "$(E2E_DIR)" '$(E2E_RUN)'

# The same on Kubernetes 1.36, but for the tests that tests/e2e/LEFTOUT-1.36 names, with reasons.
.PHONY: e2e-1.36
e2e-1.36:
	K8S=1.36 tests/e2e/run.sh .cluster-1.36 '$(E2E_RUN)'

# docs/migrate.md step by step, on a cluster of its own. It is part of e2e.
# rehearsal-helm is the same by the commands of Helm.
.PHONY: rehearsal rehearsal-helm
rehearsal: $(BUILD)/bin/cluster kubectl-inspect-cgpu images
	tests/migration/run.sh $(BUILD) .cluster-migration

rehearsal-helm: $(BUILD)/bin/cluster $(BUILD)/bin/helm kubectl-inspect-cgpu images
	tests/migration/run.sh $(BUILD) .cluster-migration-helm helm

# From a released version to this one, on a cluster of its own, with pods running. It is
# not part of test: it builds two versions of the driver. UPGRADE_FROM is the commit.
.PHONY: upgrade
UPGRADE_FROM ?= e0238e8
upgrade: $(BUILD)/bin/cluster $(BUILD)/bin/helm images
	tests/upgrade/run.sh $(BUILD) .cluster-upgrade $(UPGRADE_FROM)

# From a version of the chart to the next and back, and its uninstallation, with pods that run
# and that start, on a cluster of its own. It is not part of test.
.PHONY: test-chart-upgrade
test-chart-upgrade: $(BUILD)/bin/cluster $(BUILD)/bin/helm images
	tests/chartupgrade/run.sh $(BUILD) .cluster-chart-upgrade

# Alerts and dashboard of deployments/monitoring: promtool, and a real Prometheus that scrapes
# the driver on a cluster of its own. It is not part of test: it builds Prometheus.
.PHONY: test-prometheus
test-prometheus: $(BUILD)/bin/cluster $(BUILD)/bin/helm images
	tests/prometheus/run.sh $(BUILD) .cluster-prometheus

# The commands of README.md and docs, page by page, on a cluster of its own. It is not part of
# test; a unit test holds that each block of commands is run, or says why not.
.PHONY: test-pages
test-pages: $(BUILD)/bin/cluster $(BUILD)/bin/helm images kubectl-inspect-cgpu
	tests/pages/run.sh $(BUILD) .cluster-pages

# The same reading, publishing and CDI code on a machine with an NVIDIA driver.
test-gpu:
	GPUSHARE_REQUIRE_GPU=1 go test -count=1 -v -tags gpu ./tests/gpu/...

# The tests of test-gpu themselves, tried on a simulated node, with stand-ins
# for MPS and CUDA.
test-gpu-simulated: nvmllib
	CGO_ENABLED=0 go build -buildvcs=false -o $(BUILD)/mpsstandin ./tests/mpsstandin
	go run ./tests/simnode --machine demo/machines/h200x8.yaml --root $(BUILD)/gpu-node --node n1 \
		--nvml $(BUILD)/libnvidia-ml.so --mps-control $(BUILD)/mpsstandin
	GPUSHARE_REQUIRE_GPU=1 GPUSHARE_MACHINE="$(CURDIR)/$(BUILD)/gpu-node/machine.yaml" go test -count=1 -tags gpu ./tests/gpu/...

# One archive with all that trying the driver on a real GPU takes: a cluster, the driver as
# it is shipped, CUDA programs. On a machine with an NVIDIA driver, unpack it and start
# ./run: docs/hardware.md.
.PHONY: gpu-bundle gpu-bundle-simulated
gpu-bundle: $(BUILD)/bin/cluster images
	tests/gpubundle/build.sh $(BUILD) $(BUILD)/bin/cluster $(DRIVER_IMAGE)

# The same archive, tried on a simulated node of this machine. It is part of e2e. The
# archive of gpu-bundle is taken if it is up to date, else one of the same content that is
# hardly compressed.
# A run takes 2 to 4 minutes; the limit is for a machine that is busy with other things.
GPU_BUNDLE_ARGS ?= --limit 15m
gpu-bundle-simulated: $(BUILD)/bin/cluster images
	tests/gpubundle/simulated.sh "$$(tests/gpubundle/build.sh $(BUILD) $(BUILD)/bin/cluster $(DRIVER_IMAGE) quick)" $(GPU_BUNDLE_ARGS)

# The driver measured against the least that a driver can be, on a cluster of
# its own: a table, which docs/internals/performance.md explains. Nothing else should
# run on the machine. BENCH_ARGS go to tests/bench (see its --help).
.PHONY: bench bench-claims
BENCH_ARGS ?=
bench: bench-claims bench-spread bench-scale
bench-claims: $(BUILD)/bin/cluster $(BUILD)/bin/helm images
	tests/bench/run.sh $(BUILD) .cluster-bench $(BENCH_ARGS)

# How evenly shares come to lie on a node's cards.
.PHONY: bench-spread
bench-spread:
	@tests/bench/spread.sh .cluster-spread

# What it costs that a ResourceQuota counts the GiB of 500 legacy pods.
.PHONY: bench-quota
bench-quota:
	@tests/bench/quota.sh .cluster-bench-quota

# What the policies, with those of all options, add to the creation of a pod.
.PHONY: bench-admission
bench-admission: $(BUILD)/bin/cluster $(BUILD)/bin/helm images
	@tests/bench/admission.sh .cluster-bench-admission

# What the driver's devices cost the scheduler of a cluster of 1000 nodes, on a
# cluster of its own: a table, which docs/internals/performance.md explains. SCALE_ARGS go
# to tests/bench/scale (see its --help).
.PHONY: bench-scale
SCALE_ARGS ?=
bench-scale: $(BUILD)/bin/cluster
	@tests/bench/scale.sh $(BUILD) .cluster-scale $(SCALE_ARGS)

# Which nodes shares go to with deployments/options/pack-nodes and without, and what that
# costs: a table for 20 nodes, and one for 1000.
.PHONY: bench-placements
bench-placements: $(BUILD)/bin/cluster
	@tests/bench/scale.sh $(BUILD) .cluster-scale --placements --nodes 20 $(SCALE_ARGS)
	@tests/bench/scale.sh $(BUILD) .cluster-scale --placements --nodes 1000 $(SCALE_ARGS)

# What a crowd costs gpu-compat-controller: a table, which docs/internals/performance.md explains.
# It needs no cluster. CONTROLLER_ARGS go to tests/bench/controller (see its --help).
.PHONY: bench-controller
CONTROLLER_ARGS ?=
bench-controller:
	@go run ./tests/bench/controller $(CONTROLLER_ARGS)

# How long `kubectl inspect cgpu` takes on a cluster of 1000 nodes with 8000
# shares. INSPECT_ARGS go to tests/bench/inspect (see its --help).
.PHONY: bench-inspect
INSPECT_ARGS ?=
bench-inspect: $(BUILD)/bin/cluster kubectl-inspect-cgpu
	@tests/bench/inspect.sh $(BUILD) .cluster-inspect $(INSPECT_ARGS)
