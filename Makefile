# Everything here needs root, Go and gcc; `make cluster` installs what else it
# takes from Debian. Nothing needs a GPU.

# The nodes of the cluster: name=machine[:mode], machines from demo/machines.
NODES ?= n1=v100x4:share
# The directory of the cluster. A second one can be up beside it.
CLUSTER_DIR ?= .cluster

BUILD := .build
CLUSTER := $(BUILD)/bin/cluster --dir $(CLUSTER_DIR)
DRIVER_IMAGE := $(BUILD)/driver-image.tar

.PHONY: cluster cluster-down images $(BUILD)/bin/cluster

# A Kubernetes with the driver installed and one node per entry of NODES. The
# kubeconfig is $(CLUSTER_DIR)/kubeconfig.
cluster: $(BUILD)/bin/cluster images
	$(CLUSTER) up --nodes "$(NODES)" --image $(DRIVER_IMAGE)
	tests/cluster/install-driver.sh $(DRIVER_IMAGE) $(CLUSTER)

cluster-down: $(BUILD)/bin/cluster
	$(CLUSTER) down

# The image of the driver, as an archive.
images: $(BUILD)/bin/cluster
	deployments/container/build.sh $(BUILD)

# Go knows best whether it is up to date.
$(BUILD)/bin/cluster:
	go build -C tests/cluster -buildvcs=false -o "$(CURDIR)/$@" .
