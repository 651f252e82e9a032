// SPDX-License-Identifier: Apache-2.0

//go:build gpu

// Package gpu tests the driver's packages on a machine with NVIDIA GPUs.
//
//	make test-gpu
//
// Without an NVIDIA driver the tests are skipped and say why. Where the driver
// is not in the usual place, the environment says where:
//
//	GPUSHARE_DRIVER_ROOT    directory that the driver is installed in; default "/"
//	GPUSHARE_NVML_LIBRARY   path of libnvidia-ml.so.1
//	GPUSHARE_LIBRARY_PATHS  directories with the driver's libraries, as seen from the
//	                        driver root, separated by ":"
//	GPUSHARE_NVIDIA_SMI     path of nvidia-smi; default: looked for in PATH
//	GPUSHARE_MPS_CONTROL    path of nvidia-cuda-mps-control below the driver root;
//	                        default: "/usr/bin/nvidia-cuda-mps-control"
//	GPUSHARE_SUPERVISOR     gpu-mps-supervisor, already built; default: go builds it
//	GPUSHARE_REQUIRE_GPU    if not empty, tests fail instead of being skipped
//	GPUSHARE_MACHINE        machine.yaml of a simulated node's root (tests/standins/sim/simnode),
//	                        to try the tests themselves without a GPU
package gpu
