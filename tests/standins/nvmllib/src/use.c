// SPDX-License-Identifier: Apache-2.0

// Who uses a GPU, how it may be used, and how well it is.

#define _GNU_SOURCE
#include "machine.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Compute modes are what is set at run time. They lie in files of their own beside the
// machine file, in a directory that is writable where the rest of the driver root is not.
static nvmlReturn_t mode_file(nvmlDevice_t device, char path[PATH_MAX])
{
	char uuid[MAX_VALUE];
	TRY(ask(device, "uuid", uuid));
	int n = snprintf(path, PATH_MAX, "%s/state/%s.compute-mode", machine_dir(), uuid);
	return n < PATH_MAX ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode)
{
	char path[PATH_MAX];
	unsigned long long number;
	CHECK(mode);
	TRY(ask_number(device, "computeMode", &number));
	TRY(mode_file(device, path));
	FILE *file = fopen(path, "r");
	if (file) {
		int digit = fgetc(file);
		if (digit >= '0' && digit <= '9')
			number = digit - '0';
		fclose(file);
	}
	*mode = number;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
	char path[PATH_MAX], made[PATH_MAX + 16];
	unsigned long long ignored;
	CHECK(mode < NVML_COMPUTEMODE_COUNT);
	if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD)
		return NVML_ERROR_NOT_SUPPORTED;
	TRY(ask_number(device, "computeMode", &ignored));
	TRY(ask_number(device, "setComputeMode", &ignored));
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	TRY(mode_file(device, path));
	snprintf(made, sizeof made, "%s.%d", path, gettid());
	FILE *file = fopen(made, "w");
	if (!file)
		return NVML_ERROR_UNKNOWN;
	int written = fprintf(file, "%d\n", (int)mode);
	if (fclose(file) != 0 || written < 0 || rename(made, path) != 0)
		return NVML_ERROR_UNKNOWN;
	return NVML_SUCCESS;
}

// A process is a line "PID MIB SM MPS GI CI" of the machine file; SM is its share of the time of
// the multiprocessors in percent, below 0 where it has not computed anything, MPS 1 for a
// client of MPS.
struct process {
	unsigned int pid;
	unsigned long long mib;
	int sm, mps;
	int gi, ci; // -1 for none
};

struct processes {
	struct process all[1024];
	unsigned int count;
};

static bool add_process(const char *value, void *context)
{
	struct processes *list = context;
	struct process *next = &list->all[list->count];
	if (sscanf(value, "%u %llu %d %d %d %d", &next->pid, &next->mib, &next->sm, &next->mps, &next->gi, &next->ci) == 6)
		list->count++;
	return list->count < sizeof list->all / sizeof list->all[0];
}

// A MIG device has those of its GPU that are in it.
static void list_processes(nvmlDevice_t device, struct processes *list)
{
	if (!is_mig_device(device)) {
		for_each_of(device, "process", add_process, list);
		return;
	}
	for_each_of(device_at(device.handle->index), "process", add_process, list);
	unsigned int in = 0;
	for (unsigned int i = 0; i < list->count; i++)
		if (list->all[i].gi == device.handle->gi && list->all[i].ci == device.handle->ci)
			list->all[in++] = list->all[i];
	list->count = in;
}

static nvmlReturn_t all_processes(nvmlDevice_t device, struct processes *list)
{
	char value[MAX_VALUE];
	list->count = 0;
	TRY(ask(device, "processes", value));
	list_processes(device, list);
	return NVML_SUCCESS;
}

// A caller is told of the processes in its own PID namespace only, as by NVIDIA's driver.
static nvmlReturn_t ask_processes(nvmlDevice_t device, struct processes *list)
{
	TRY(all_processes(device, list));
	unsigned int seen = 0;
	for (unsigned int i = 0; i < list->count; i++)
		if (kill((pid_t)list->all[i].pid, 0) == 0 || errno == EPERM)
			list->all[seen++] = list->all[i];
	list->count = seen;
	return NVML_SUCCESS;
}

// The same for a caller who has room for so many infos, and is told how many there are.
static nvmlReturn_t ask_processes_for(nvmlDevice_t device, unsigned int *infoCount, const void *infos,
				      struct processes *list)
{
	CHECK(infoCount);
	TRY(ask_processes(device, list));
	unsigned int room = *infoCount;
	*infoCount = list->count;
	if (list->count > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	CHECK(infos || list->count == 0);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
						     nvmlProcessInfo_t *infos)
{
	struct processes list;
	TRY(ask_processes_for(device, infoCount, infos, &list));
	for (unsigned int i = 0; i < list.count; i++)
		infos[i] = (nvmlProcessInfo_t){list.all[i].pid, list.all[i].mib << 20, list.all[i].gi, list.all[i].ci};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *infoCount,
						     nvmlProcessInfo_v2_t *infos)
{
	return nvmlDeviceGetComputeRunningProcesses_v3(device, infoCount, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *infoCount,
						  nvmlProcessInfo_v1_t *infos)
{
	struct processes list;
	TRY(ask_processes_for(device, infoCount, infos, &list));
	for (unsigned int i = 0; i < list.count; i++)
		infos[i] = (nvmlProcessInfo_v1_t){list.all[i].pid, list.all[i].mib << 20};
	return NVML_SUCCESS;
}

// Clients of MPS are listed with all others, and here apart, as nvidia-smi shows them by
// the type M+C.
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
							nvmlProcessInfo_t *infos)
{
	struct processes list;
	unsigned int count = 0;
	CHECK(infoCount);
	TRY(ask_processes(device, &list));
	for (unsigned int i = 0; i < list.count; i++)
		if (list.all[i].mps)
			list.all[count++] = list.all[i];
	unsigned int room = *infoCount;
	*infoCount = count;
	if (count > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	CHECK(infos || count == 0);
	for (unsigned int i = 0; i < count; i++)
		infos[i] = (nvmlProcessInfo_t){list.all[i].pid, list.all[i].mib << 20, list.all[i].gi, list.all[i].ci};
	return NVML_SUCCESS;
}

// Nothing draws.
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *infoCount,
						      nvmlProcessInfo_t *infos)
{
	char value[MAX_VALUE];
	(void)infos;
	CHECK(infoCount);
	TRY(ask(device, "processes", value));
	*infoCount = 0;
	return NVML_SUCCESS;
}

// What the GPU's processes have of its memory, also where they cannot be listed.
static unsigned long long used_memory(nvmlDevice_t device)
{
	struct processes list = {.count = 0};
	unsigned long long bytes = 0;
	list_processes(device, &list);
	for (unsigned int i = 0; i < list.count; i++)
		bytes += list.all[i].mib << 20;
	return bytes;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	unsigned long long mib, reserved;
	CHECK(memory);
	if (memory->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	TRY(ask_number(device, "memory", &mib));
	TRY(ask_number(device, "reserved", &reserved));
	unsigned long long used = used_memory(device), taken = (reserved << 20) + used;
	*memory = (nvmlMemory_v2_t){
		.version = nvmlMemory_v2, .total = mib << 20, .reserved = reserved << 20, .used = used};
	memory->free = taken < memory->total ? memory->total - taken : 0;
	return NVML_SUCCESS;
}

// The older call has what is reserved in what is used.
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	unsigned long long mib, reserved;
	CHECK(memory);
	TRY(ask_number(device, "memory", &mib));
	if (ask_number(device, "reserved", &reserved) != NVML_SUCCESS)
		reserved = 0;
	*memory = (nvmlMemory_t){.total = mib << 20, .used = (reserved << 20) + used_memory(device)};
	memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
	return NVML_SUCCESS;
}

static unsigned long long microseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000ULL + now.tv_nsec / 1000;
}

// Each process that computes has one sample, of now.
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *utilization,
					     unsigned int *processSamplesCount, unsigned long long lastSeenTimeStamp)
{
	struct processes list;
	unsigned int count = 0;
	unsigned long long ignored, now = microseconds();
	CHECK(processSamplesCount);
	TRY(ask_number(device, "utilization", &ignored));
	TRY(ask_processes(device, &list));
	for (unsigned int i = 0; i < list.count && lastSeenTimeStamp < now; i++)
		if (list.all[i].sm >= 0)
			list.all[count++] = list.all[i];
	unsigned int room = utilization ? *processSamplesCount : 0;
	*processSamplesCount = count;
	if (count == 0)
		return NVML_ERROR_NOT_FOUND;
	if (count > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < count; i++)
		utilization[i] = (nvmlProcessUtilizationSample_t){
			.pid = list.all[i].pid, .timeStamp = now, .smUtil = list.all[i].sm};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	struct processes list;
	unsigned long long ignored;
	CHECK(utilization);
	TRY(ask_number(device, "utilization", &ignored));
	TRY(all_processes(device, &list));
	*utilization = (nvmlUtilization_t){0};
	for (unsigned int i = 0; i < list.count; i++)
		if (list.all[i].sm > 0)
			utilization->gpu += list.all[i].sm;
	if (utilization->gpu > 100)
		utilization->gpu = 100;
	return NVML_SUCCESS;
}

// Fields are properties "field.ID". Each has an error of its own.
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t *values)
{
	CHECK(values && valuesCount > 0);
	TRY(device_error(device));
	for (int i = 0; i < valuesCount; i++) {
		char property[32];
		unsigned long long number = 0;
		snprintf(property, sizeof property, "field.%u", values[i].fieldId);
		values[i].nvmlReturn = ask_number(device, property, &number);
		values[i].timestamp = microseconds();
		values[i].latencyUsec = 0;
		values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
		values[i].value.ullVal = number;
	}
	return NVML_SUCCESS;
}

// Errors are the same since the driver was loaded and ever.
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t errorType,
					 nvmlEccCounterType_t counterType, unsigned long long *eccCounts)
{
	CHECK(eccCounts && counterType < NVML_ECC_COUNTER_TYPE_COUNT);
	return ask_number(device, errorType == NVML_MEMORY_ERROR_TYPE_CORRECTED ? "ecc.corrected" : "ecc.uncorrected",
			  eccCounts);
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
	unsigned long long ignored;
	CHECK(current && pending);
	TRY(ask_number(device, "ecc.corrected", &ignored));
	*current = *pending = NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrRows, unsigned int *uncRows,
				       unsigned int *isPending, unsigned int *failureOccurred)
{
	char value[MAX_VALUE];
	CHECK(corrRows && uncRows && isPending && failureOccurred);
	TRY(ask(device, "remappedRows", value));
	int n = sscanf(value, "%u %u %u %u", corrRows, uncRows, isPending, failureOccurred);
	return n == 4 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}
