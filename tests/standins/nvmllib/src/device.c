// SPDX-License-Identifier: Apache-2.0

// What a GPU is and what it is linked to.

#include "machine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nvmlReturn_t text(nvmlDevice_t device, const char *property, char *to, unsigned int size)
{
	char value[MAX_VALUE];
	TRY(ask(device, property, value));
	return put(value, to, size);
}

static nvmlReturn_t number(nvmlDevice_t device, const char *property, unsigned int *to)
{
	unsigned long long n;
	CHECK(to);
	TRY(ask_number(device, property, &n));
	*to = n;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	return text(device, "name", name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	return text(device, "uuid", uuid, length);
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minorNumber)
{
	return number(device, "minor", minorNumber);
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *numCores)
{
	return number(device, "cores", numCores);
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *arch)
{
	return number(device, "architecture", arch);
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *type)
{
	unsigned int n;
	CHECK(type);
	TRY(number(device, "brand", &n));
	*type = n;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	CHECK(index);
	TRY(device_error(device));
	*index = device.handle->index;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	char value[MAX_VALUE];
	CHECK(major && minor);
	TRY(ask(device, "computeCapability", value));
	return sscanf(value, "%d.%d", major, minor) == 2 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

// An address of sysfs' form, as in the machine file.
static nvmlReturn_t fill_pci(const char *address, unsigned int id, nvmlPciInfo_t *pci)
{
	*pci = (nvmlPciInfo_t){.pciDeviceId = id};
	if (sscanf(address, "%x:%x:%x.0", &pci->domain, &pci->bus, &pci->device) != 3)
		return NVML_ERROR_UNKNOWN;
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
	snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
		 pci->device & 0x1f);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	char address[MAX_VALUE];
	unsigned int id = 0;
	CHECK(pci);
	TRY(ask(device, "pci", address));
	TRY(number(device, "pciDeviceID", &id));
	return fill_pci(address, id, pci);
}

// Older callers have a shorter structure: it ends before busId.
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	nvmlPciInfo_t whole;
	CHECK(pci);
	TRY(nvmlDeviceGetPciInfo_v3(device, &whole));
	memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v2(device, pci);
}

// What a lane leads to, as the machine file says: "switch", "down" or an address. A GPU
// without NVLink answers NOT_SUPPORTED, a lane beyond the last one INVALID_ARGUMENT.
static nvmlReturn_t ask_lane(nvmlDevice_t device, unsigned int lane, char peer[MAX_VALUE])
{
	char lanes[MAX_VALUE], *rest = lanes, *word;
	TRY(ask(device, "nvlink", lanes));
	while ((word = strsep(&rest, " ")))
		if (lane-- == 0)
			return put(word, peer, MAX_VALUE);
	return NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *isActive)
{
	char peer[MAX_VALUE];
	CHECK(isActive);
	TRY(ask_lane(device, link, peer));
	*isActive = strcmp(peer, "down") == 0 ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
	char peer[MAX_VALUE];
	TRY(ask_lane(device, link, peer));
	return number(device, "nvlinkVersion", version);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
						 nvmlIntNvLinkDeviceType_t *type)
{
	char peer[MAX_VALUE];
	CHECK(type);
	TRY(ask_lane(device, link, peer));
	if (strcmp(peer, "down") == 0)
		*type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
	else if (strcmp(peer, "switch") == 0)
		*type = NVML_NVLINK_DEVICE_TYPE_SWITCH;
	else
		*type = NVML_NVLINK_DEVICE_TYPE_GPU;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
	char peer[MAX_VALUE];
	CHECK(pci);
	TRY(ask_lane(device, link, peer));
	if (strcmp(peer, "down") == 0)
		return NVML_ERROR_NOT_SUPPORTED;
	return fill_pci(strcmp(peer, "switch") == 0 ? "0000:fe:00.0" : peer, 0, pci);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
	nvmlPciInfo_t whole;
	CHECK(pci);
	TRY(nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, &whole));
	memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
	return NVML_SUCCESS;
}

// The machine file has the levels to all GPUs, in their order.
nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device1, nvmlDevice_t device2,
						 nvmlGpuTopologyLevel_t *pathInfo)
{
	char levels[MAX_VALUE], *rest = levels, *word;
	CHECK(pathInfo);
	TRY(device_error(device2));
	TRY(ask(device1, "topology", levels));
	for (int i = 0; (word = strsep(&rest, " ")); i++) {
		if (i != device2.handle->index)
			continue;
		*pathInfo = atoi(word);
		return NVML_SUCCESS;
	}
	return NVML_ERROR_INVALID_ARGUMENT;
}

// What machines that were measured do not support.
#define NOT_SUPPORTED(name, ...)                   \
	nvmlReturn_t name(nvmlDevice_t device, __VA_ARGS__) \
	{                                          \
		(void)to;                          \
		TRY(device_error(device));         \
		return NVML_ERROR_NOT_SUPPORTED;   \
	}

NOT_SUPPORTED(nvmlDeviceGetNumaNodeId, unsigned int *to)
NOT_SUPPORTED(nvmlDeviceGetGpuFabricInfo, nvmlGpuFabricInfo_t *to)
NOT_SUPPORTED(nvmlDeviceGetGpuFabricInfoV, nvmlGpuFabricInfoV_t *to)
