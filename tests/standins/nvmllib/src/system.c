// SPDX-License-Identifier: Apache-2.0

// The library itself, the driver, and the handles of its GPUs.

#include "machine.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static atomic_int users;

nvmlReturn_t initialised(void) { return users > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED; }

nvmlReturn_t nvmlInit_v2(void)
{
	char value[MAX_VALUE];
	TRY(ask_machine("init", value));
	users++;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void) { return nvmlInit_v2(); }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	return nvmlInit_v2();
}

nvmlReturn_t nvmlShutdown(void)
{
	TRY(initialised());
	users--;
	return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS: return "Success";
	case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
	case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND: return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case NVML_ERROR_TIMEOUT: return "Timeout";
	case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
	case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
	case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
	case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
	case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
	case NVML_ERROR_IN_USE: return "In use by another client";
	default: return "Unknown Error";
	}
}

// The answer to a question about the driver.
static nvmlReturn_t ask_driver(const char *key, char value[MAX_VALUE])
{
	TRY(initialised());
	return ask_machine(key, value);
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	char value[MAX_VALUE];
	TRY(ask_driver("version", value));
	return put(value, version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	char value[MAX_VALUE];
	TRY(ask_driver("nvml", value));
	return put(value, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *cudaDriverVersion)
{
	char value[MAX_VALUE];
	CHECK(cudaDriverVersion);
	TRY(ask_driver("cuda", value));
	*cudaDriverVersion = atoi(value);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *cudaDriverVersion)
{
	return nvmlSystemGetCudaDriverVersion_v2(cudaDriverVersion);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char path[64], text[256];
	CHECK(name && length > 0);
	TRY(initialised());
	snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
	FILE *file = fopen(path, "r");
	if (!file)
		return NVML_ERROR_NOT_FOUND;
	size_t n = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[n] = '\0';
	snprintf(name, length, "%s", text);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *deviceCount)
{
	char value[MAX_VALUE];
	CHECK(deviceCount);
	TRY(ask_driver("count", value));
	*deviceCount = atoi(value);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *deviceCount) { return nvmlDeviceGetCount_v2(deviceCount); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	char value[MAX_VALUE];
	unsigned int count;
	CHECK(device);
	TRY(nvmlDeviceGetCount_v2(&count));
	CHECK(index < count && index < MAX_GPUS);
	TRY(ask(device_at(index), "handle", value));
	*device = device_at(index);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

// As the driver it asks all GPUs: one that is lost, or hangs, keeps all others from being
// found. Any other error only means that it is not this one.
static nvmlReturn_t find_device(const char *property, const char *wanted, nvmlDevice_t *device)
{
	unsigned int count;
	CHECK(wanted && device);
	TRY(nvmlDeviceGetCount_v2(&count));
	device->handle = NULL;
	for (unsigned int i = 0; i < count && i < MAX_GPUS; i++) {
		char value[MAX_VALUE];
		nvmlReturn_t ret = ask(device_at(i), property, value);
		if (ret == NVML_ERROR_GPU_IS_LOST)
			return ret;
		if (ret == NVML_SUCCESS && strcasecmp(value, wanted) == 0)
			*device = device_at(i);
	}
	return device->handle ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	return find_device("uuid", uuid, device);
}

// Addresses come with four or eight digits of the domain.
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pciBusId, nvmlDevice_t *device)
{
	CHECK(pciBusId);
	const char *colon = strchr(pciBusId, ':');
	return find_device("pci", colon && colon - pciBusId == 8 ? pciBusId + 4 : pciBusId, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pciBusId, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(pciBusId, device);
}
