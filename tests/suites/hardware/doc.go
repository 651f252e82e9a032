// SPDX-License-Identifier: Apache-2.0

// Package hardware tests the driver on a node with real GPUs, which nothing else uses: pods with claims in each mode,
// whose containers run CUDA programs. It is run on that node, as root:
//
//	go test -c -tags hardware -o .build/hardware.test ./tests/suites/hardware
//	KUBECONFIG=… GPUSHARE_IMAGE=… .build/hardware.test -test.v -test.timeout=20m
//
// Each check is a row of the report, in a table for each mode: deployments/hardware/report. The archive of `make
// gpu-bundle` brings a cluster up, and runs the same program there.
// The environment has:
//
//	KUBECONFIG              the cluster, which has the driver installed in namespace kube-system
//	E2E_CLUSTER_DIR         instead: the directory of a cluster of tests/cluster
//	GPUSHARE_NODE           the node; by default the machine's host name
//	GPUSHARE_IMAGE          the pods' image, with testdata/cudaprobe.c and gpu-probe: .build/gpu-cuda.tar, which
//	                        `make gpu-bundle` leaves; by default localhost/gpu-cuda:latest
//	GPUSHARE_DRIVER_ROOT    the directory that the NVIDIA driver is installed in, if it is not found
//	GPUSHARE_REPORT         the file for the report, or of the one that is gone on with
//	GPUSHARE_CUT            the UUID of the GPU that is cut into MIG instances, and put back by the archive's run alone
//	GPUSHARE_SIMULATED      the driver root of a simulated node, to try the tests without a GPU
package hardware
