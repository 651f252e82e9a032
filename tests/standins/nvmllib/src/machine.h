// SPDX-License-Identifier: Apache-2.0

// What the parts of the library share: NVML's functions, and the machine file that says
// what they answer.
#ifndef MACHINE_H
#define MACHINE_H

#include <stdbool.h>
#include <stddef.h>

// Only what NVIDIA's header declares is seen from outside.
#pragma GCC visibility push(default)
#include <nvml.h>
#pragma GCC visibility pop

enum {
	MAX_GPUS = 64,
	// The longest value: the lanes of a GPU with NVML_NVLINK_MAX_LINKS of them.
	MAX_VALUE = 1024,
	// As many as NVIDIA's kernel module has capabilities for.
	MAX_GIS = 15,
	MAX_CIS = 8,
};

// What a handle leads to: the GPU's position in the machine file. It stays what it is when the file
// is replaced.
struct nvmlDevice_st {
	int index;
	// Of a MIG device, the ids of its GPU instance and its compute instance; -1 otherwise.
	int gi, ci;
};

// The GPU at that position, which is less than MAX_GPUS.
nvmlDevice_t device_at(int index);

// The MIG device of a GPU at that position; ids are less than MAX_GIS and MAX_CIS.
nvmlDevice_t mig_device_at(int index, int gi, int ci);

bool is_mig_device(nvmlDevice_t device);

// The answer of the machine to a key such as "version": NVML_SUCCESS and the value, the
// error that stands there instead, or NVML_ERROR_NOT_SUPPORTED where nothing does. Where
// the file says "!hang" it returns only when it says something else.
nvmlReturn_t ask_machine(const char *key, char value[MAX_VALUE]);

// The same of a GPU's property, such as "name". All properties of a GPU answer what its
// property "every" says, where it has one; its handle does not. Properties of a MIG device are those
// of its GPU that begin with "mig.GI.CI.". A handle to one that is gone is invalid.
nvmlReturn_t ask(nvmlDevice_t device, const char *property, char value[MAX_VALUE]);

// The same as a number.
nvmlReturn_t ask_number(nvmlDevice_t device, const char *property, unsigned long long *number);

// Calls each with every value of a key that may be there more than once, in the order of
// the file, until it returns false.
void for_each(const char *key, bool (*each)(const char *value, void *context), void *context);

// The same for a GPU's property.
void for_each_of(nvmlDevice_t device, const char *property, bool (*each)(const char *value, void *context),
		 void *context);

// The error that every property of the GPU answers; NVML_SUCCESS if they answer.
nvmlReturn_t device_error(nvmlDevice_t device);

// The directory of the machine file; NULL where there is no machine file.
const char *machine_dir(void);

// Copies text to a caller's buffer.
nvmlReturn_t put(const char *text, char *to, size_t size);

// NVML_ERROR_UNINITIALIZED unless the library is initialised.
nvmlReturn_t initialised(void);

#define TRY(call)                          \
	do {                               \
		nvmlReturn_t ret_ = (call); \
		if (ret_ != NVML_SUCCESS)  \
			return ret_;       \
	} while (0)

#define CHECK(condition)                                    \
	do {                                                \
		if (!(condition))                           \
			return NVML_ERROR_INVALID_ARGUMENT; \
	} while (0)

#endif
