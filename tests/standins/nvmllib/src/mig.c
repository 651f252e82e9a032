// SPDX-License-Identifier: Apache-2.0

// MIG: what a GPU can be cut into, and what it is cut into. In the machine file these are lines of a GPU:
//
//	mig = CURRENT PENDING
//	profile = ENUM ID SLICES COUNT SMS COPY DECODE ENCODE JPEG OFA MIB CAPABILITIES NAME
//	placement = PROFILE-ID START SIZE
//	ciProfile = GI-PROFILE-ID ENUM ID SLICES COUNT SMS COPY DECODE ENCODE JPEG OFA NAME
//	gi = ID PROFILE-ID START SIZE
//	ci = GI ID PROFILE-ID START SIZE
//
// and properties "mig.GI.CI.…" of each MIG device, see machine.c.

#include "machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Handles are of places: they stay, and lead to whatever has these ids.
struct nvmlGpuInstance_st {
	int gpu, id;
};

struct nvmlComputeInstance_st {
	int gpu, gi, id;
};

static struct nvmlGpuInstance_st gpu_instances[MAX_GPUS][MAX_GIS];
static struct nvmlComputeInstance_st compute_instances[MAX_GPUS][MAX_GIS][MAX_CIS];

__attribute__((constructor)) static void start(void)
{
	for (int gpu = 0; gpu < MAX_GPUS; gpu++)
		for (int gi = 0; gi < MAX_GIS; gi++) {
			gpu_instances[gpu][gi] = (struct nvmlGpuInstance_st){gpu, gi};
			for (int ci = 0; ci < MAX_CIS; ci++)
				compute_instances[gpu][gi][ci] = (struct nvmlComputeInstance_st){gpu, gi, ci};
		}
}

// The numbers of a line, up to so many; what follows them is a name.
struct line {
	unsigned int n[12];
	char name[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
};

static bool parse(const char *value, int numbers, struct line *line)
{
	char *rest = (char *)value;
	for (int i = 0; i < numbers; i++) {
		char *end;
		line->n[i] = strtoul(rest, &end, 10);
		if (end == rest)
			return false;
		rest = end;
	}
	snprintf(line->name, sizeof line->name, "%s", *rest == ' ' ? rest + 1 : rest);
	return true;
}

// The lines of a kind of which the first numbers are these.
struct query {
	int numbers, fixed;
	unsigned int is[3];
	struct line lines[64];
	unsigned int count;
};

static bool add(const char *value, void *context)
{
	struct query *q = context;
	struct line *next = &q->lines[q->count];
	if (!parse(value, q->numbers, next))
		return true;
	for (int i = 0; i < q->fixed; i++)
		if (next->n[i] != q->is[i])
			return true;
	q->count++;
	return q->count < sizeof q->lines / sizeof q->lines[0];
}

static nvmlReturn_t modes(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	char value[MAX_VALUE];
	TRY(ask(device, "mig", value));
	return sscanf(value, "%u %u", current, pending) == 2 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *currentMode, unsigned int *pendingMode)
{
	CHECK(currentMode && pendingMode);
	return modes(device, currentMode, pendingMode);
}

static nvmlReturn_t enabled(nvmlDevice_t device)
{
	unsigned int current, pending;
	CHECK(!is_mig_device(device));
	TRY(modes(device, &current, &pending));
	return current ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t profile_of(nvmlDevice_t device, unsigned int profile, struct line *line)
{
	unsigned int current, pending;
	CHECK(profile < NVML_GPU_INSTANCE_PROFILE_COUNT && !is_mig_device(device));
	TRY(modes(device, &current, &pending));
	struct query q = {.numbers = 12, .fixed = 1, .is = {profile}};
	for_each_of(device, "profile", add, &q);
	if (q.count == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	*line = q.lines[0];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
						 nvmlGpuInstanceProfileInfo_t *info)
{
	struct line l;
	CHECK(info);
	TRY(profile_of(device, profile, &l));
	*info = (nvmlGpuInstanceProfileInfo_t){
		.id = l.n[1], .sliceCount = l.n[2], .instanceCount = l.n[3], .multiprocessorCount = l.n[4],
		.copyEngineCount = l.n[5], .decoderCount = l.n[6], .encoderCount = l.n[7], .jpegCount = l.n[8],
		.ofaCount = l.n[9], .memorySizeMB = l.n[10]};
	return NVML_SUCCESS;
}

// As NVIDIA documents it, only in MIG mode.
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
						  nvmlGpuInstanceProfileInfo_v2_t *info)
{
	struct line l;
	CHECK(info);
	TRY(profile_of(device, profile, &l));
	TRY(enabled(device));
	if (info->version == nvmlGpuInstanceProfileInfo_v2) {
		*info = (nvmlGpuInstanceProfileInfo_v2_t){
			.version = info->version, .id = l.n[1], .sliceCount = l.n[2], .instanceCount = l.n[3],
			.multiprocessorCount = l.n[4], .copyEngineCount = l.n[5], .decoderCount = l.n[6],
			.encoderCount = l.n[7], .jpegCount = l.n[8], .ofaCount = l.n[9], .memorySizeMB = l.n[10]};
		return put(l.name, info->name, sizeof info->name);
	}
	if (info->version != nvmlGpuInstanceProfileInfo_v3)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	nvmlGpuInstanceProfileInfo_v3_t *v3 = (nvmlGpuInstanceProfileInfo_v3_t *)info;
	*v3 = (nvmlGpuInstanceProfileInfo_v3_t){
		.version = v3->version, .id = l.n[1], .sliceCount = l.n[2], .instanceCount = l.n[3],
		.multiprocessorCount = l.n[4], .copyEngineCount = l.n[5], .decoderCount = l.n[6], .encoderCount = l.n[7],
		.jpegCount = l.n[8], .ofaCount = l.n[9], .memorySizeMB = l.n[10], .capabilities = l.n[11]};
	return put(l.name, v3->name, sizeof v3->name);
}

static bool has_profile(nvmlDevice_t device, unsigned int id)
{
	struct query q = {.numbers = 12};
	for_each_of(device, "profile", add, &q);
	for (unsigned int i = 0; i < q.count; i++)
		if (q.lines[i].n[1] == id)
			return true;
	return false;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profileId,
							   nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
	unsigned int current, pending;
	CHECK(count && !is_mig_device(device));
	TRY(modes(device, &current, &pending));
	struct query q = {.numbers = 3, .fixed = 1, .is = {profileId}};
	for_each_of(device, "placement", add, &q);
	if (q.count == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned int room = placements ? *count : 0;
	*count = q.count;
	if (!placements)
		return NVML_SUCCESS;
	if (room < q.count)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < q.count; i++)
		placements[i] = (nvmlGpuInstancePlacement_t){q.lines[i].n[1], q.lines[i].n[2]};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int profileId,
							nvmlGpuInstancePlacement_t *placements, unsigned int *count)
{
	return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profileId, placements, count);
}

// The caller has room for as many as the profile allows.
nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId, nvmlGpuInstance_t *gpuInstances,
				       unsigned int *count)
{
	CHECK(gpuInstances && count);
	TRY(enabled(device));
	if (!has_profile(device, profileId))
		return NVML_ERROR_NOT_SUPPORTED;
	struct query q = {.numbers = 4};
	for_each_of(device, "gi", add, &q);
	*count = 0;
	for (unsigned int i = 0; i < q.count; i++)
		if (q.lines[i].n[1] == profileId && q.lines[i].n[0] < MAX_GIS)
			gpuInstances[(*count)++].handle = &gpu_instances[device.handle->index][q.lines[i].n[0]];
	return NVML_SUCCESS;
}

static nvmlReturn_t gi_line(nvmlDevice_t device, unsigned int id, struct line *line)
{
	struct query q = {.numbers = 4, .fixed = 1, .is = {id}};
	TRY(enabled(device));
	for_each_of(device, "gi", add, &q);
	if (q.count == 0)
		return NVML_ERROR_NOT_FOUND;
	*line = q.lines[0];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gpuInstance)
{
	struct line l;
	CHECK(gpuInstance && id < MAX_GIS);
	TRY(gi_line(device, id, &l));
	gpuInstance->handle = &gpu_instances[device.handle->index][id];
	return NVML_SUCCESS;
}

// What a handle leads to; one to what is gone is invalid.
static nvmlReturn_t gi_of(nvmlGpuInstance_t instance, struct line *line)
{
	CHECK(instance.handle);
	nvmlReturn_t ret = gi_line(device_at(instance.handle->gpu), instance.handle->id, line);
	return ret == NVML_ERROR_NOT_FOUND ? NVML_ERROR_INVALID_ARGUMENT : ret;
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info)
{
	struct line l;
	CHECK(info);
	TRY(gi_of(gpuInstance, &l));
	*info = (nvmlGpuInstanceInfo_t){device_at(gpuInstance.handle->gpu), l.n[0], l.n[1], {l.n[2], l.n[3]}};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gpuInstance, unsigned int profile,
							  unsigned int engProfile,
							  nvmlComputeInstanceProfileInfo_t *info)
{
	struct line gi;
	CHECK(info && profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT && engProfile < NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT);
	TRY(gi_of(gpuInstance, &gi));
	struct query q = {.numbers = 11, .fixed = 2, .is = {gi.n[1], profile}};
	for_each_of(device_at(gpuInstance.handle->gpu), "ciProfile", add, &q);
	if (q.count == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	const unsigned int *n = q.lines[0].n;
	*info = (nvmlComputeInstanceProfileInfo_t){n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10]};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
						nvmlComputeInstance_t *computeInstances, unsigned int *count)
{
	struct line gi;
	CHECK(computeInstances && count);
	TRY(gi_of(gpuInstance, &gi));
	struct query q = {.numbers = 5, .fixed = 1, .is = {gi.n[0]}};
	for_each_of(device_at(gpuInstance.handle->gpu), "ci", add, &q);
	*count = 0;
	for (unsigned int i = 0; i < q.count; i++)
		if (q.lines[i].n[2] == profileId && q.lines[i].n[1] < MAX_CIS)
			computeInstances[(*count)++].handle =
				&compute_instances[gpuInstance.handle->gpu][gi.n[0]][q.lines[i].n[1]];
	return NVML_SUCCESS;
}

static nvmlReturn_t ci_line(nvmlGpuInstance_t instance, unsigned int id, struct line *line)
{
	struct line gi;
	TRY(gi_of(instance, &gi));
	struct query q = {.numbers = 5, .fixed = 2, .is = {gi.n[0], id}};
	for_each_of(device_at(instance.handle->gpu), "ci", add, &q);
	if (q.count == 0)
		return NVML_ERROR_NOT_FOUND;
	*line = q.lines[0];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpuInstance, unsigned int id,
						   nvmlComputeInstance_t *computeInstance)
{
	struct line l;
	CHECK(computeInstance && id < MAX_CIS);
	TRY(ci_line(gpuInstance, id, &l));
	computeInstance->handle = &compute_instances[gpuInstance.handle->gpu][gpuInstance.handle->id][id];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
	struct line l;
	CHECK(computeInstance.handle && info);
	struct nvmlComputeInstance_st *ci = computeInstance.handle;
	nvmlGpuInstance_t gi = {&gpu_instances[ci->gpu][ci->gi]};
	nvmlReturn_t ret = ci_line(gi, ci->id, &l);
	if (ret != NVML_SUCCESS)
		return ret == NVML_ERROR_NOT_FOUND ? NVML_ERROR_INVALID_ARGUMENT : ret;
	*info = (nvmlComputeInstanceInfo_t){mig_device_at(ci->gpu, ci->gi, ci->id), gi, ci->id, l.n[2], {l.n[3], l.n[4]}};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
	return nvmlComputeInstanceGetInfo_v2(computeInstance, info);
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
	CHECK(isMigDevice);
	TRY(device_error(device));
	*isMigDevice = is_mig_device(device);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	CHECK(id);
	TRY(device_error(device));
	if (!is_mig_device(device))
		return NVML_ERROR_NOT_SUPPORTED;
	*id = device.handle->gi;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	CHECK(id);
	TRY(device_error(device));
	if (!is_mig_device(device))
		return NVML_ERROR_NOT_SUPPORTED;
	*id = device.handle->ci;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device)
{
	CHECK(device);
	TRY(device_error(migDevice));
	CHECK(is_mig_device(migDevice));
	*device = device_at(migDevice.handle->index);
	return NVML_SUCCESS;
}

// Zero where it is not in MIG mode.
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	unsigned long long most;
	CHECK(count);
	TRY(device_error(device));
	*count = ask_number(device, "maxMig", &most) == NVML_SUCCESS ? most : 0;
	return NVML_SUCCESS;
}

// The walk finds compute instances only: a GPU instance without one is in none of its places.
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
	CHECK(migDevice);
	TRY(device_error(device));
	struct query q = {.numbers = 5};
	for_each_of(device, "ci", add, &q);
	if (index >= q.count)
		return NVML_ERROR_NOT_FOUND;
	*migDevice = mig_device_at(device.handle->index, q.lines[index].n[0], q.lines[index].n[1]);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	char value[MAX_VALUE];
	struct line l;
	CHECK(attributes);
	TRY(ask(device, "attributes", value));
	if (!parse(value, 9, &l))
		return NVML_ERROR_UNKNOWN;
	*attributes = (nvmlDeviceAttributes_t){l.n[0], l.n[1], l.n[2], l.n[3], l.n[4], l.n[5], l.n[6], l.n[7], l.n[8]};
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
	return nvmlDeviceGetAttributes_v2(device, attributes);
}
