// SPDX-License-Identifier: Apache-2.0

// Switches MIG mode, and makes and destroys MIG instances. Whoever serves the machine (sim.Partitioning) does it: a
// request is a file beside the machine file, and so is the answer. Without an answer the call does not return, as one
// of a driver that hangs.

#define _GNU_SOURCE
#include "machine.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// Asks for "CALL GPU NUMBER…", and returns the result; *id is that of what was made.
static nvmlReturn_t request(const char *text, int *id)
{
	static atomic_uint counter;
	char base[PATH_MAX], made[PATH_MAX + 16], path[PATH_MAX + 16];
	if (!machine_dir())
		return NVML_ERROR_UNINITIALIZED;
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	snprintf(base, sizeof base, "%s/state/mig", machine_dir());
	mkdir(base, 0777);
	// Programs in several containers have one number.
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(base, sizeof base, "%s/state/mig/%ld-%ld-%u", machine_dir(), (long)now.tv_sec, now.tv_nsec,
		 atomic_fetch_add(&counter, 1));
	snprintf(made, sizeof made, "%s.new", base);
	snprintf(path, sizeof path, "%s.ask", base);
	FILE *file = fopen(made, "w");
	if (!file)
		return NVML_ERROR_UNKNOWN;
	fprintf(file, "%s\n", text);
	if (fclose(file) != 0 || rename(made, path) != 0)
		return NVML_ERROR_UNKNOWN;
	snprintf(path, sizeof path, "%s.answer", base);
	while (!(file = fopen(path, "r")))
		nanosleep(&(struct timespec){.tv_nsec = 2 * 1000 * 1000}, NULL);
	int ret = NVML_ERROR_UNKNOWN, ignored;
	if (fscanf(file, "%d %d", &ret, id ? id : &ignored) != 2)
		ret = NVML_ERROR_UNKNOWN;
	fclose(file);
	unlink(path);
	return ret;
}

// The mode may be accepted and not be active yet: the activation status says why.
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activationStatus)
{
	char text[128];
	int status;
	unsigned int current, pending;
	CHECK(activationStatus && mode <= NVML_DEVICE_MIG_ENABLE && !is_mig_device(device));
	TRY(nvmlDeviceGetMigMode(device, &current, &pending));
	snprintf(text, sizeof text, "set-mode %d %u", device.handle->index, mode);
	TRY(request(text, &status));
	*activationStatus = status;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profileId,
						      const nvmlGpuInstancePlacement_t *placement,
						      nvmlGpuInstance_t *gpuInstance)
{
	char text[128];
	int id;
	CHECK(placement && gpuInstance && !is_mig_device(device));
	TRY(device_error(device));
	snprintf(text, sizeof text, "make-gi %d %u %u", device.handle->index, profileId, placement->start);
	TRY(request(text, &id));
	return nvmlDeviceGetGpuInstanceById(device, id, gpuInstance);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpuInstance)
{
	char text[128];
	nvmlGpuInstanceInfo_t info;
	TRY(nvmlGpuInstanceGetInfo(gpuInstance, &info));
	snprintf(text, sizeof text, "destroy-gi %d %u", info.device.handle->index, info.id);
	return request(text, NULL);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
						  nvmlComputeInstance_t *computeInstance)
{
	char text[128];
	nvmlGpuInstanceInfo_t info;
	CHECK(computeInstance);
	TRY(nvmlGpuInstanceGetInfo(gpuInstance, &info));
	snprintf(text, sizeof text, "make-ci %d %u %u", info.device.handle->index, info.id, profileId);
	TRY(request(text, NULL));
	return nvmlGpuInstanceGetComputeInstanceById(gpuInstance, 0, computeInstance);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t computeInstance)
{
	char text[128];
	nvmlComputeInstanceInfo_t info;
	nvmlGpuInstanceInfo_t gi;
	TRY(nvmlComputeInstanceGetInfo_v2(computeInstance, &info));
	TRY(nvmlGpuInstanceGetInfo(info.gpuInstance, &gi));
	snprintf(text, sizeof text, "destroy-ci %d %u %u", gi.device.handle->index, gi.id, info.id);
	return request(text, NULL);
}
