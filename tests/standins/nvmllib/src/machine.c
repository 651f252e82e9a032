// SPDX-License-Identifier: Apache-2.0

// Reads the machine file: lines "key = value", of which tests/standins/sim says what they mean.
//
// The file is looked for in the directories above that of this library, nearest first:
// in a driver root it lies at the top. It is looked at before each answer, and read again
// when another one has been renamed to its place. A file that is written in place may be
// read half-written.

#define _GNU_SOURCE
#include "machine.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char file_name[] = "machine.nvml";

struct line {
	const char *key, *value;
};

// A machine is a file that was read. It stays until nobody uses it.
struct machine {
	int users;
	// The file stays open, so that no other one can have its inode number.
	int fd;
	dev_t dev;
	ino_t inode;
	char *text;
	struct line *lines;
	size_t count;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct machine *current;
static struct nvmlDevice_st devices[MAX_GPUS];
static struct nvmlDevice_st mig_devices[MAX_GPUS][MAX_GIS][MAX_CIS];
static char dir[PATH_MAX];

__attribute__((constructor)) static void start(void)
{
	for (int i = 0; i < MAX_GPUS; i++) {
		devices[i] = (struct nvmlDevice_st){i, -1, -1};
		for (int gi = 0; gi < MAX_GIS; gi++)
			for (int ci = 0; ci < MAX_CIS; ci++)
				mig_devices[i][gi][ci] = (struct nvmlDevice_st){i, gi, ci};
	}
	Dl_info self;
	if (!dladdr(file_name, &self) || !realpath(self.dli_fname, dir))
		return;
	for (char *slash; (slash = strrchr(dir, '/')); ) {
		*slash = '\0';
		char path[PATH_MAX + sizeof file_name + 1];
		snprintf(path, sizeof path, "%s/%s", dir, file_name);
		if (access(path, F_OK) == 0)
			return;
	}
}

const char *machine_dir(void) { return dir[0] ? dir : NULL; }

nvmlDevice_t device_at(int index) { return (nvmlDevice_t){&devices[index]}; }

nvmlDevice_t mig_device_at(int index, int gi, int ci) { return (nvmlDevice_t){&mig_devices[index][gi][ci]}; }

bool is_mig_device(nvmlDevice_t device)
{
	struct nvmlDevice_st *first = &mig_devices[0][0][0];
	return device.handle >= first && device.handle < first + MAX_GPUS * MAX_GIS * MAX_CIS;
}

static void drop(struct machine *m)
{
	if (!m || --m->users > 0)
		return;
	close(m->fd);
	free(m->lines);
	free(m->text);
	free(m);
}

// The whole file of so many bytes, ended by a zero byte; NULL if there is no room for it.
static char *read_all(int fd, off_t size)
{
	char *text = malloc(size + 1);
	for (off_t have = 0; text; ) {
		ssize_t n = pread(fd, text + have, size - have, have);
		if (n <= 0) {
			text[have] = '\0';
			break;
		}
		have += n;
	}
	return text;
}

// Splits the text into lines, in place.
static void parse(struct machine *m)
{
	size_t room = 1;
	for (const char *c = m->text; *c; c++)
		room += *c == '\n';
	m->lines = calloc(room, sizeof *m->lines);
	char *rest = m->text, *line;
	while (m->lines && (line = strsep(&rest, "\n"))) {
		char *equals = strstr(line, " = ");
		if (!equals)
			continue;
		*equals = '\0';
		m->lines[m->count++] = (struct line){line, equals + strlen(" = ")};
	}
}

static struct machine *load(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	struct machine *m = calloc(1, sizeof *m);
	if (!m) {
		close(fd);
		return NULL;
	}
	m->users = 1;
	m->fd = fd;
	struct stat st;
	if (fstat(fd, &st) == 0) {
		m->dev = st.st_dev;
		m->inode = st.st_ino;
		m->text = read_all(fd, st.st_size);
	}
	if (m->text)
		parse(m);
	return m;
}

static bool is_at(const struct machine *m, const char *path)
{
	struct stat there;
	return stat(path, &there) == 0 && there.st_dev == m->dev && there.st_ino == m->inode;
}

// The machine as its file says now; NULL where there is none. To be dropped.
static struct machine *acquire(void)
{
	if (!machine_dir())
		return NULL;
	char path[PATH_MAX + sizeof file_name + 1];
	snprintf(path, sizeof path, "%s/%s", dir, file_name);
	pthread_mutex_lock(&mutex);
	if (!current || !is_at(current, path)) {
		struct machine *read = load(path);
		drop(current);
		current = read;
	}
	struct machine *m = current;
	if (m)
		m->users++;
	pthread_mutex_unlock(&mutex);
	return m;
}

static void release(struct machine *m)
{
	pthread_mutex_lock(&mutex);
	drop(m);
	pthread_mutex_unlock(&mutex);
}

static const char *find(const struct machine *m, const char *key)
{
	for (size_t i = 0; i < m->count; i++)
		if (strcmp(m->lines[i].key, key) == 0)
			return m->lines[i].value;
	return NULL;
}

// The value of the first of the two keys that is there.
static nvmlReturn_t ask_either(const char *first, const char *second, char value[MAX_VALUE])
{
	for (;;) {
		struct machine *m = acquire();
		if (!m)
			return NVML_ERROR_DRIVER_NOT_LOADED;
		const char *found = find(m, first);
		if (!found)
			found = find(m, second);
		snprintf(value, MAX_VALUE, "%s", found ? found : "!3");
		release(m);
		if (strcmp(value, "!hang") != 0)
			break;
		nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
	}
	return value[0] == '!' ? (nvmlReturn_t)atoi(value + 1) : NVML_SUCCESS;
}

nvmlReturn_t ask_machine(const char *key, char value[MAX_VALUE]) { return ask_either(key, key, value); }

nvmlReturn_t ask(nvmlDevice_t device, const char *property, char value[MAX_VALUE])
{
	TRY(initialised());
	char every[64], key[64];
	if (is_mig_device(device)) {
		struct nvmlDevice_st *d = device.handle;
		char handle[MAX_VALUE];
		snprintf(every, sizeof every, "gpu.%d.every", d->index);
		snprintf(key, sizeof key, "gpu.%d.mig.%d.%d.handle", d->index, d->gi, d->ci);
		nvmlReturn_t there = ask_either(every, key, handle);
		if (there != NVML_SUCCESS)
			return there == NVML_ERROR_NOT_SUPPORTED ? NVML_ERROR_INVALID_ARGUMENT : there;
		snprintf(key, sizeof key, "gpu.%d.mig.%d.%d.%s", d->index, d->gi, d->ci, property);
		return ask_either(key, key, value);
	}
	if (device.handle < devices || device.handle >= devices + MAX_GPUS)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(every, sizeof every, "gpu.%d.%s", device.handle->index, strcmp(property, "handle") == 0 ? property : "every");
	snprintf(key, sizeof key, "gpu.%d.%s", device.handle->index, property);
	return ask_either(every, key, value);
}

nvmlReturn_t ask_number(nvmlDevice_t device, const char *property, unsigned long long *number)
{
	char value[MAX_VALUE];
	TRY(ask(device, property, value));
	*number = strtoull(value, NULL, 0);
	return NVML_SUCCESS;
}

nvmlReturn_t device_error(nvmlDevice_t device)
{
	char value[MAX_VALUE];
	nvmlReturn_t ret = ask(device, "every", value);
	return ret == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : ret;
}

void for_each(const char *key, bool (*each)(const char *value, void *context), void *context)
{
	struct machine *m = acquire();
	if (!m)
		return;
	for (size_t i = 0; i < m->count; i++)
		if (strcmp(m->lines[i].key, key) == 0 && !each(m->lines[i].value, context))
			break;
	release(m);
}

void for_each_of(nvmlDevice_t device, const char *property, bool (*each)(const char *value, void *context),
		 void *context)
{
	char key[64];
	snprintf(key, sizeof key, "gpu.%d.%s", device.handle->index, property);
	for_each(key, each, context);
}

nvmlReturn_t put(const char *text, char *to, size_t size)
{
	CHECK(to);
	if (strlen(text) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(to, text);
	return NVML_SUCCESS;
}
