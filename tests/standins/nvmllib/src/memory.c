// SPDX-License-Identifier: Apache-2.0

// Limits of a GPU's memory by control group, which the driver has since release 615. A driver
// counts in one of two ways (the property "memoryLimits"):
//
//	dmem   the kernel counts: limits nest, everything is counted, a limit goes with its control group
//	misc   the driver counts: only the nearest limit counts, nothing is counted before it, and a
//	       limit stays when its control group goes: it can be overwritten, with "no limit" too, which
//	       then is the nearest, and never taken off
//
// The driver knows a control group by its address, at which another one may come to lie. Here that
// is one at the same path.

#define _GNU_SOURCE
#include "memory.h"

#include <string.h>

// Whether the process may set limits: CAP_SYS_ADMIN, in the user namespace that all others are in.
static bool is_privileged(void)
{
	enum { SYS_ADMIN = 21 };
	unsigned long long effective = 0, inside, outside, count = 0;
	char line[256];
	FILE *status = fopen("/proc/self/status", "r");
	while (status && fgets(line, sizeof line, status))
		if (sscanf(line, "CapEff: %llx", &effective) == 1)
			break;
	if (status)
		fclose(status);
	FILE *users = fopen("/proc/self/uid_map", "r");
	if (users && fscanf(users, "%llu %llu %llu", &inside, &outside, &count) != 3)
		count = 0;
	if (users)
		fclose(users);
	return effective >> SYS_ADMIN & 1 && count == 0xFFFFFFFF;
}

// How the driver counts; not supported in MIG mode, or where it does not.
static nvmlReturn_t ask_back_end(nvmlDevice_t device, bool *is_dmem)
{
	char value[MAX_VALUE];
	unsigned long long mig;
	TRY(ask(device, "memoryLimits", value));
	if (ask_number(device, "mig", &mig) == NVML_SUCCESS && mig)
		return NVML_ERROR_NOT_SUPPORTED;
	*is_dmem = strcmp(value, "dmem") == 0;
	return NVML_SUCCESS;
}

// The path counts where limits outlive their control groups.
static struct limit *own_limit(const struct table *table, const struct cgroup *group, bool is_dmem)
{
	return limit_of(table, group->chain[0], is_dmem ? NULL : group->path);
}

static nvmlReturn_t get_dmem(const struct table *table, const struct cgroup *group, nvmlGetMemoryLimits_v1_t *limits)
{
	if (!group->has_dmem)
		return NVML_ERROR_NOT_SUPPORTED;
	const struct limit *own = own_limit(table, group, true);
	limits->softLimit = own ? own->soft : 0;
	limits->hardLimit = own ? own->hard : NVML_DEVICE_MEMORY_LIMIT_MAX;
	limits->currentUsed = charged(table, group->chain[0]);
	return NVML_SUCCESS;
}

static nvmlReturn_t get_misc(const struct table *table, const struct cgroup *group, nvmlGetMemoryLimits_v1_t *limits)
{
	const struct limit *nearest = own_limit(table, group, false);
	for (int i = 1; i < group->depth && !nearest; i++)
		nearest = limit_of(table, group->chain[i], NULL);
	if (!nearest)
		return NVML_ERROR_NOT_SUPPORTED;
	limits->softLimit = nearest->soft;
	limits->hardLimit = nearest->hard;
	limits->currentUsed = charged(table, nearest->cgroup);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
	struct cgroup group;
	struct table table;
	bool is_dmem;
	TRY(initialised());
	CHECK(limits && limits->nameSpace);
	TRY(ask_back_end(device, &is_dmem));
	TRY(find_cgroup(limits->nameSpace, &group));
	TRY(open_table(device, &table));
	nvmlReturn_t ret = (is_dmem ? get_dmem : get_misc)(&table, &group, limits);
	// Nothing is to be written.
	close_table(&table, NVML_ERROR_UNKNOWN);
	return ret;
}

// Each soft limit is added to what is promised above it.
static nvmlReturn_t set_dmem(struct table *table, const struct cgroup *group, unsigned long long soft,
			     unsigned long long hard)
{
	if (!group->has_dmem)
		return NVML_ERROR_NOT_SUPPORTED;
	struct limit *own = make_limit(table, group->chain[0], group->path);
	if (!own)
		return NVML_ERROR_UNKNOWN;
	for (int i = 1; i < group->depth; i++) {
		struct limit *above = make_limit(table, group->chain[i], "above");
		if (!above)
			return NVML_ERROR_UNKNOWN;
		above->soft += soft - own->soft;
	}
	own->soft = soft;
	own->hard = hard;
	return NVML_SUCCESS;
}

static nvmlReturn_t set_misc(struct table *table, const struct cgroup *group, unsigned long long soft,
			     unsigned long long hard)
{
	CHECK(!group->is_root);
	struct limit *own = own_limit(table, group, false);
	CHECK(charged(table, group->chain[0]) <= hard);
	// That of a control group which has gone is this one's now.
	if (own && own->cgroup != group->chain[0]) {
		drop_limit(table, own);
		own = NULL;
	}
	own = make_limit(table, group->chain[0], group->path);
	if (!own)
		return NVML_ERROR_UNKNOWN;
	own->soft = soft;
	own->hard = hard;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits)
{
	struct cgroup group;
	struct table table;
	char value[MAX_VALUE];
	unsigned long long mib;
	bool is_dmem;
	TRY(initialised());
	CHECK(limits && limits->nameSpace);
	if (!is_privileged())
		return NVML_ERROR_NO_PERMISSION;
	TRY(ask_back_end(device, &is_dmem));
	TRY(ask(device, "setMemoryLimits", value));
	TRY(ask_number(device, "memory", &mib));
	CHECK(limits->softLimit <= limits->hardLimit && limits->softLimit <= mib << 20);
	CHECK(limits->hardLimit <= mib << 20 || limits->hardLimit == NVML_DEVICE_MEMORY_LIMIT_MAX);
	TRY(find_cgroup(limits->nameSpace, &group));
	if (strcmp(value, "ignored") == 0)
		return NVML_SUCCESS;
	TRY(open_table(device, &table));
	return close_table(&table, (is_dmem ? set_dmem : set_misc)(&table, &group, limits->softLimit, limits->hardLimit));
}
