// SPDX-License-Identifier: Apache-2.0

// The limits of a GPU's memory by control group, as the driver keeps them. They lie in a file of
// text beside the machine file, which tests/standins/sim/memory reads and writes too: it is about
// the form, and about what the driver does when programs allocate.
#ifndef MEMORY_H
#define MEMORY_H

#include "machine.h"

#include <limits.h>
#include <stdio.h>

enum {
	// More levels than any node's tree of control groups has.
	MAX_DEPTH = 32,
};

// A control group of version 2, and those that it lies in, from the inside out. Each is known by a number
// that is the same in every mount of the tree.
struct cgroup {
	unsigned long long chain[MAX_DEPTH];
	int depth;
	bool is_root, has_dmem;
	char path[PATH_MAX];
};

// A limit of a control group.
struct limit {
	unsigned long long cgroup, soft, hard;
	char *path;
	struct limit *next;
};

// What a program holds, as the line that tells it.
struct use {
	char *line;
	struct use *next;
};

// The table of a GPU, as long as its file is locked.
struct table {
	FILE *file;
	struct limit *limits;
	struct use *uses;
};

// NVML_ERROR_OPERATING_SYSTEM where the directory cannot be opened, NVML_ERROR_UNKNOWN where it is no
// control group of version 2.
nvmlReturn_t find_cgroup(const char *path, struct cgroup *group);

// Locks and reads the table of the GPU. Every success needs a close_table.
nvmlReturn_t open_table(nvmlDevice_t device, struct table *table);

// Writes the table, unless what came before failed, and unlocks it.
nvmlReturn_t close_table(struct table *table, nvmlReturn_t before);

// The limit of that control group; NULL where it has none.
struct limit *limit_of(const struct table *table, unsigned long long cgroup, const char *path);

// The same, made where there is none: as if there were no limit.
struct limit *make_limit(struct table *table, unsigned long long cgroup, const char *path);

void drop_limit(struct table *table, const struct limit *limit);

// What is charged to that control group, in bytes.
unsigned long long charged(const struct table *table, unsigned long long cgroup);

#endif
