// SPDX-License-Identifier: Apache-2.0

// Events. In the machine file they are lines "event = NUMBER GPU TYPE DATA GI CI", with numbers
// that grow. A set has those that came after it was made.

#include "machine.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

struct nvmlEventSet_st {
	unsigned long long seen; // the number of the last event
	unsigned long long types[MAX_GPUS];
	int watch;
};

struct event {
	unsigned long long number, type, data;
	unsigned int gpu;
	int gi, ci; // -1 for none
};

static bool parse_event(const char *value, struct event *event)
{
	return sscanf(value, "%llu %u %llx %llu %d %d", &event->number, &event->gpu, &event->type, &event->data,
		      &event->gi, &event->ci) == 6 &&
	       event->gpu < MAX_GPUS;
}

static bool last_number(const char *value, void *context)
{
	unsigned long long *last = context;
	struct event event;
	if (parse_event(value, &event) && event.number > *last)
		*last = event.number;
	return true;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	CHECK(set);
	TRY(initialised());
	struct nvmlEventSet_st *made = calloc(1, sizeof *made);
	if (!made)
		return NVML_ERROR_MEMORY;
	// Where nothing can be watched, the file is looked at now and then.
	made->watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (made->watch >= 0 && machine_dir())
		inotify_add_watch(made->watch, machine_dir(), IN_MOVED_TO);
	for_each("event", last_number, &made->seen);
	set->handle = made;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	CHECK(set.handle);
	TRY(initialised());
	if (set.handle->watch >= 0)
		close(set.handle->watch);
	free(set.handle);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *eventTypes)
{
	CHECK(eventTypes);
	return ask_number(device, "events", eventTypes);
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long eventTypes, nvmlEventSet_t set)
{
	unsigned long long supported;
	CHECK(set.handle);
	if (is_mig_device(device))
		return NVML_ERROR_NOT_SUPPORTED;
	TRY(ask_number(device, "events", &supported));
	if (eventTypes & ~supported)
		return NVML_ERROR_NOT_SUPPORTED;
	set.handle->types[device.handle->index] |= eventTypes;
	return NVML_SUCCESS;
}

struct next {
	struct nvmlEventSet_st *set;
	struct event event;
	bool found;
};

static bool is_next(const char *value, void *context)
{
	struct next *next = context;
	struct event event;
	if (!parse_event(value, &event) || event.number <= next->set->seen ||
	    !(next->set->types[event.gpu] & event.type))
		return true;
	next->event = event;
	next->found = true;
	return false;
}

static long long milliseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

// Waits until the directory of the machine file changes; for a second at most where that is not watched.
static void wait_for_change(struct nvmlEventSet_st *set, long long limit)
{
	char ignored[4096];
	struct pollfd watch = {.fd = set->watch, .events = POLLIN};
	if (set->watch < 0 && limit > 1000)
		limit = 1000;
	if (poll(&watch, 1, (int)limit) > 0)
		while (read(set->watch, ignored, sizeof ignored) > 0)
			;
}

// One of the set's GPUs that is lost ends the waiting, as NVIDIA documents it.
static nvmlReturn_t lost(struct nvmlEventSet_st *set)
{
	for (int i = 0; i < MAX_GPUS; i++)
		if (set->types[i] && device_error(device_at(i)) == NVML_ERROR_GPU_IS_LOST)
			return NVML_ERROR_GPU_IS_LOST;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
	CHECK(set.handle && data);
	TRY(initialised());
	for (long long deadline = milliseconds() + timeoutms;;) {
		struct next next = {.set = set.handle};
		for_each("event", is_next, &next);
		if (next.found) {
			set.handle->seen = next.event.number;
			*data = (nvmlEventData_t){device_at(next.event.gpu), next.event.type, next.event.data,
						  next.event.gi, next.event.ci};
			return NVML_SUCCESS;
		}
		TRY(lost(set.handle));
		long long left = deadline - milliseconds();
		if (left <= 0)
			return NVML_ERROR_TIMEOUT;
		wait_for_change(set.handle, left);
	}
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
	return nvmlEventSetWait_v2(set, data, timeoutms);
}
