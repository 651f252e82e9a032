// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static bool has(int dir, const char *file) { return faccessat(dir, file, F_OK, 0) == 0; }

// The number by which a control group is known. Those of the kernel are not used again; a directory
// that stands in for one may get the inode of one that has gone, at another time.
static bool number_of(int dir, unsigned long long *number)
{
	struct statx st;
	if (statx(dir, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &st) != 0)
		return false;
	*number = st.stx_ino;
	if (st.stx_mask & STATX_BTIME)
		*number += st.stx_btime.tv_sec * 1000000000ULL + st.stx_btime.tv_nsec;
	return true;
}

nvmlReturn_t find_cgroup(const char *path, struct cgroup *group)
{
	int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0 || !realpath(path, group->path)) {
		if (dir >= 0)
			close(dir);
		return NVML_ERROR_OPERATING_SYSTEM;
	}
	group->depth = 0;
	group->is_root = !has(dir, "cgroup.type");
	// The controllers of a real tree are those of this machine's kernel, which may lack this one.
	struct statfs fs;
	group->has_dmem = has(dir, "dmem.max") ||
		(!group->is_root && fstatfs(dir, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC);
	// What lies above the tree, or above the part of it that is mounted here, has no such file.
	while (group->depth < MAX_DEPTH && has(dir, "cgroup.controllers")) {
		int above = openat(dir, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (number_of(dir, &group->chain[group->depth]))
			group->depth++;
		close(dir);
		dir = above;
		if (dir < 0)
			break;
	}
	if (dir >= 0)
		close(dir);
	return group->depth > 0 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

// A line "limit CGROUP SOFT HARD PATH", or any other.
static bool add_line(struct table *table, const char *line)
{
	unsigned long long cgroup, soft, hard;
	int path = 0;
	if (sscanf(line, "limit %llu %llu %llu %n", &cgroup, &soft, &hard, &path) == 3 && path > 0) {
		struct limit *limit = make_limit(table, cgroup, line + path);
		if (limit) {
			limit->soft = soft;
			limit->hard = hard;
		}
		return limit != NULL;
	}
	struct use *use = calloc(1, sizeof *use);
	if (!use || !(use->line = strdup(line))) {
		free(use);
		return false;
	}
	use->next = table->uses;
	table->uses = use;
	return true;
}

static void empty(struct table *table)
{
	while (table->limits)
		drop_limit(table, table->limits);
	for (struct use *use; (use = table->uses); ) {
		table->uses = use->next;
		free(use->line);
		free(use);
	}
}

nvmlReturn_t open_table(nvmlDevice_t device, struct table *table)
{
	char uuid[MAX_VALUE], path[PATH_MAX];
	TRY(ask(device, "uuid", uuid));
	*table = (struct table){0};
	if (snprintf(path, sizeof path, "%s/state/%s.memory", machine_dir(), uuid) >= (int)sizeof path)
		return NVML_ERROR_UNKNOWN;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	// Who may not write may read.
	if (fd < 0 && (errno == EACCES || errno == EROFS))
		fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
	if (flock(fd, LOCK_EX) != 0 || !(table->file = fdopen(fd, "r"))) {
		close(fd);
		return NVML_ERROR_UNKNOWN;
	}
	char *line = NULL;
	size_t room = 0;
	bool whole = true;
	for (ssize_t n; (n = getline(&line, &room, table->file)) > 0; ) {
		if (line[n - 1] == '\n')
			line[n - 1] = '\0';
		whole = add_line(table, line) && whole;
	}
	free(line);
	return whole ? NVML_SUCCESS : close_table(table, NVML_ERROR_UNKNOWN);
}

static nvmlReturn_t write_table(const struct table *table)
{
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);
	if (!out)
		return NVML_ERROR_UNKNOWN;
	for (const struct limit *l = table->limits; l; l = l->next)
		fprintf(out, "limit %llu %llu %llu %s\n", l->cgroup, l->soft, l->hard, l->path);
	for (const struct use *u = table->uses; u; u = u->next)
		fprintf(out, "%s\n", u->line);
	int fd = fileno(table->file);
	bool written = fclose(out) == 0 && ftruncate(fd, 0) == 0 && pwrite(fd, text, size, 0) == (ssize_t)size;
	free(text);
	return written ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t close_table(struct table *table, nvmlReturn_t before)
{
	if (before == NVML_SUCCESS)
		before = table->file ? write_table(table) : NVML_ERROR_UNKNOWN;
	// Closing the file unlocks it.
	if (table->file)
		fclose(table->file);
	empty(table);
	return before;
}

struct limit *limit_of(const struct table *table, unsigned long long cgroup, const char *path)
{
	for (struct limit *l = table->limits; l; l = l->next)
		if (l->cgroup == cgroup || (path && strcmp(l->path, path) == 0))
			return l;
	return NULL;
}

struct limit *make_limit(struct table *table, unsigned long long cgroup, const char *path)
{
	struct limit *limit = limit_of(table, cgroup, NULL);
	if (limit)
		return limit;
	limit = calloc(1, sizeof *limit);
	if (!limit || !(limit->path = strdup(path))) {
		free(limit);
		return NULL;
	}
	limit->cgroup = cgroup;
	limit->hard = NVML_DEVICE_MEMORY_LIMIT_MAX;
	limit->next = table->limits;
	table->limits = limit;
	return limit;
}

void drop_limit(struct table *table, const struct limit *limit)
{
	for (struct limit **l = &table->limits; *l; l = &(*l)->next)
		if (*l == limit) {
			struct limit *gone = *l;
			*l = gone->next;
			free(gone->path);
			free(gone);
			return;
		}
}

// A line "use HOLDER BYTES CGROUP …".
unsigned long long charged(const struct table *table, unsigned long long cgroup)
{
	unsigned long long sum = 0;
	for (const struct use *use = table->uses; use; use = use->next) {
		unsigned long long bytes, to;
		int next = 0;
		if (sscanf(use->line, "use %*s %llu%n", &bytes, &next) != 1 || next == 0)
			continue;
		const char *rest = use->line + next;
		for (int n = 0; sscanf(rest, "%llu%n", &to, &n) == 1 && n > 0; rest += n, n = 0)
			if (to == cgroup) {
				sum += bytes;
				break;
			}
	}
	return sum;
}
