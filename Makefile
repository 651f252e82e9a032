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
	go build -C tests/chart -ldflags "$(HELM_LDFLAGS)" -o "$(CURDIR)/$@" helm.sh/helm/v3/cmd/helm

# A release: its files, and then the checks that are no part of `make test-all`. release-artifacts
# makes the files alone: in .build/release/$(RELEASE) the image for linux/amd64 and linux/arm64, the
# chart, the kubectl plugin for four platforms, SBOMs, provenance and checksums. RELEASE_URL is where
# the files will lie. RELEASE_LANES are the lanes that release-checks runs.
.PHONY: release release-artifacts release-checks
export RELEASE ?= v0.0.0-dev
RELEASE_URL ?= https://github.com/gpushare/dra-driver-gpushare/releases/download/$(RELEASE)
RELEASE_LANES ?= release-checks
release: release-artifacts
	$(MAKE) --no-print-directory release-checks

release-artifacts: $(BUILD)/bin/cluster
	deployments/release/tools.sh && deployments/release/build.sh $(BUILD) $(BUILD)/bin/cluster "$(RELEASE)" "$(RELEASE_URL)"

release-checks:
	@$(LANES) $(RELEASE_LANES)

# What simulated nodes have for NVIDIA's NVML library.
.PHONY: nvmllib
nvmllib:
	tests/standins/nvmllib/build.sh $(BUILD)/libnvidia-ml.so

# Go knows best whether it is up to date.
$(BUILD)/bin/cluster:
	go build -C tests/cluster -o "$(CURDIR)/$@" .

# The plugin behind "kubectl inspect cgpu": put it somewhere in your PATH. Without cgo it
# runs on machines of any kind.
kubectl-inspect-cgpu: $(BUILD)/bin/kubectl-inspect-cgpu

$(BUILD)/bin/kubectl-inspect-cgpu:
	CGO_ENABLED=0 go build -ldflags "-s -w -X github.com/gpushare/dra-driver-gpushare/internal/version.linked=$(VERSION)" -o $@ ./cmd/kubectl-inspect-cgpu

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
	go run ./internal/docs/generate

# README.md and docs as a site, in .build/site. It takes Hugo, of Debian's package or another
# version from 0.111 on. A link that leads nowhere is an error.
.PHONY: site
HUGO ?= hugo
site:
	@command -v $(HUGO) >/dev/null || apt-get install --yes --no-install-recommends hugo
	rm -rf $(BUILD)/site
	$(HUGO) --source docs/site --destination "$(CURDIR)/$(BUILD)/site" --noBuildLock --panicOnWarning --quiet
	go run ./tests/suites/docs/site $(BUILD)/site

# The checks. Each is a lane of one table, tests/lanes, which says what it proves and when it is run:
# `make lanes` prints it. `make test` is what to run before a change is submitted, `make test-all` that
# and the rest, `make check` the part of `make test` without a cluster. `make lane LANE=gang` runs one
# lane, or several. RUN is a pattern that chooses tests, and with KEEP=1 the lane's cluster,
# .cluster-NAME, stays up for the next run: see docs/internals/development.md.
.PHONY: test test-all check lanes lane ci test-gpu
RUN ?=
KEEP ?=
# A pattern may end with a $, which make takes for a variable of its own.
LANES = go run ./tests/lanes $(if $(value RUN),-run '$(value RUN)') $(if $(KEEP),-keep)
test:
	@$(LANES) test

test-all:
	@$(LANES) test-all

check:
	@$(LANES) lint unit

lane:
	@$(LANES) $(LANE)

lanes:
	@go run ./tests/lanes list

# What CI runs: test, and of the rest as much as ends in time. One lane of release-checks a day is part of it.
ci:
	@$(LANES) -within 60m -in-turn test-all

# The lanes that developers name most.
.PHONY: lint unit e2e
lint unit e2e:
	@$(LANES) $@

# go-nvml declares functions that NVIDIA's header has deprecated; the compiler
# need not say so each time.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
# A go.work above the checkout is somebody else's.
export GOWORK := off
# As the image is built, see deployments/container/files.sh: image, Kubernetes, static analysis and tests
# then share what Go has compiled.
export GOFLAGS := -buildvcs=false -trimpath -gcflags=all=-dwarf=false -tags=netgo,osusergo,grpcnotrace,urfave_cli_no_template

# The tests of real GPUs, on the node of a cluster that is there: KUBECONFIG names it, GPUSHARE_IMAGE the pods' image
# (.build/gpu-cuda.tar of gpu-bundle, in a registry). TABLES is a pattern that chooses tables of the report.
TABLES ?= .
test-gpu:
	mkdir -p $(BUILD)
	rm -f $(BUILD)/gpu-report.json
	GPUSHARE_REPORT="$(CURDIR)/$(BUILD)/gpu-report.json" \
		go test -v -count=1 -timeout 30m -tags hardware,netgo,osusergo,grpcnotrace,urfave_cli_no_template \
		-run '^TestHardware$$/$(TABLES)' ./tests/suites/hardware; \
		status=$$?; go run ./deployments/hardware report $(BUILD)/gpu-report.json >$(BUILD)/gpu-report.md && exit $$status

# One archive with all that trying the driver on a real GPU takes: a cluster, the driver as
# it is shipped, CUDA programs. On a machine with an NVIDIA driver, unpack it and start
# ./run: docs/hardware.md.
.PHONY: gpu-bundle gpu-bundle-simulated
gpu-bundle: $(BUILD)/bin/cluster images
	deployments/hardware/build.sh $(BUILD) $(BUILD)/bin/cluster $(DRIVER_IMAGE)

# The same archive, tried on a simulated node of this machine. It is part of e2e. The
# archive of gpu-bundle is taken if it is up to date, else one of the same content that is
# hardly compressed.
gpu-bundle-simulated:
	@$(LANES) hardware-simulated

# The driver measured against the least that a driver can be, on a cluster of
# its own: a table, which docs/internals/performance.md explains. Nothing else should
# run on the machine. BENCH_ARGS go to tests/bench (see its --help). NVIDIA is a checkout of
# kubernetes-sigs/dra-driver-nvidia-gpu, to measure that driver beside.
.PHONY: bench bench-claims
BENCH_ARGS ?=
bench: bench-claims bench-scale
bench-claims: $(BUILD)/bin/cluster $(BUILD)/bin/helm images
	tests/bench/run.sh $(BUILD) .cluster-bench $(BENCH_ARGS)

# What the driver's devices cost the scheduler of a cluster of 1000 nodes, on a
# cluster of its own: a table, which docs/internals/performance.md explains. SCALE_ARGS go
# to tests/bench/scale (see its --help).
.PHONY: bench-scale
SCALE_ARGS ?=
bench-scale: $(BUILD)/bin/cluster
	@tests/bench/nodes.sh $(BUILD) .cluster-scale scale $(SCALE_ARGS)

# How many GPUs pods get of Alibaba's published trace, by the driver's score of nodes, by the stock scheduler and by the
# policies of the paper on it: a table. bench-placement needs no cluster. bench-placement-scheduler has a stock scheduler
# place them, without and with the options best-node and best-node-gate.
# PLACEMENT_ARGS go to tests/bench/placement (see its --help); --trace DIRECTORY says where the trace is.
.PHONY: bench-placement bench-placement-scheduler
bench-placement:
	@go run ./tests/bench/placement $(PLACEMENT_ARGS)

bench-placement-scheduler: $(BUILD)/bin/cluster
	@for policy in stock "best + taint" "best + taint + gate"; do \
		tests/bench/nodes.sh $(BUILD) .cluster-placement placement --only "$$policy" $(PLACEMENT_ARGS) || exit; done

# The dearest pods for the scheduler that the admission policies let through: fails where one takes the
# allocator more than 100 ms of CPU on a node. It needs no cluster. DEAREST_ARGS go to tests/policies/dearest
# (see its --help): --out FILE for the table, --pods FILE for the ten dearest as manifests.
.PHONY: bench-dearest
DEAREST_ARGS ?= --minutes 10
bench-dearest:
	@go run -C tests/policies ./dearest $(DEAREST_ARGS)

# How long a pod without GPUs waits beside the dearest ones of DEAREST_PODS, a file of bench-dearest --pods.
.PHONY: bench-beside-dearest
bench-beside-dearest: $(BUILD)/bin/cluster $(BUILD)/bin/helm images
	@tests/bench/dearest.sh .cluster-dearest "$(DEAREST_PODS)"

# Lines of Go, by room.
.PHONY: weight
weight:
	@tests/tools/weight.sh
