/*
 * A stand-in for libcuda.so.1, as far as cudaprobe.c uses it, to try the tests
 * without a card. It shows nothing about CUDA or MPS.
 *
 * It keeps to the limits of its environment, and of the daemon where it has none,
 * as a client of MPS does, if it can reach a daemon (tests/standins/mps). If not, it
 * runs unlimited, as a client whose daemon is dead does, where the compute mode of
 * the simulated card allows it: SIMULATED_STATE has the path of the card's files in
 * the driver's state, without their suffixes (tests/standins/sim/contexts). Figures are those
 * of an H200.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, DEVICE_UNAVAILABLE = 46, ILLEGAL_ADDRESS = 700, MPS_SERVER_NOT_READY = 807, SMS = 132 };

enum { CARD_MIB = 143771, CONTEXT_MIB = 514 };

static size_t limit_mib = CARD_MIB, used_mib = CONTEXT_MIB;
static int percent = 100;

/* The connection to the daemon, -1 without one. */
static int daemon_fd = -1;

static void reach_daemon(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const char *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	if (pipes == NULL)
		return;
	snprintf(address.sun_path, sizeof address.sun_path, "%s/control", pipes);
	if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
		daemon_fd = fd;
}

/* What the daemon answers to a command; empty without an answer. */
static void ask_daemon(const char *command, char *answer, size_t size)
{
	size_t n = 0;

	if (write(daemon_fd, command, strlen(command)) > 0)
		while (n < size - 1 && read(daemon_fd, answer + n, 1) == 1 && answer[n] != 4)
			n++;
	answer[n] = '\0';
}

/* Whether the daemon has an error for this client: that of any client's fault. */
static int has_error(const char *what)
{
	char answer[256] = "";

	if (daemon_fd >= 0)
		ask_daemon(what, answer, sizeof answer);
	return *answer != '\0';
}

/* Makes a context beside MPS, which lasts as long as the process. */
static int make_context(void)
{
	const char *state = getenv("SIMULATED_STATE");
	char path[4096];
	int mode = '0', fd;
	FILE *file;

	if (state == NULL)
		return SUCCESS;
	snprintf(path, sizeof path, "%s.compute-mode", state);
	if ((file = fopen(path, "r")) != NULL) {
		mode = fgetc(file);
		fclose(file);
	}
	if (mode == '2')
		return DEVICE_UNAVAILABLE;
	snprintf(path, sizeof path, "%s.contexts", state);
	fd = open(path, O_RDONLY | O_CREAT, 0644);
	if (fd < 0 || flock(fd, (mode == '3' ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0)
		return DEVICE_UNAVAILABLE;
	return SUCCESS;
}

int cuInit(unsigned flags)
{
	const char *memory = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), *threads = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	char answer[256];
	size_t mib;
	char unit;
	int most;

	(void)flags;
	reach_daemon();
	if (daemon_fd < 0)
		return SUCCESS;
	ask_daemon("get_device_pinned_mem_limit\n", answer, sizeof answer);
	if (sscanf(answer, "%*d 0 %zu%c", &mib, &unit) == 2 && unit == 'M')
		limit_mib = mib;
	ask_daemon("get_active_thread_percentage\n", answer, sizeof answer);
	if (sscanf(answer, "%*d %d", &most) == 1)
		percent = most;
	if (memory != NULL && sscanf(memory, "0=%zu%c", &mib, &unit) == 2 && unit == 'M' && mib < limit_mib)
		limit_mib = mib;
	if (threads != NULL && atoi(threads) < percent)
		percent = atoi(threads);
	return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = ordinal;
	return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
	*count = 1;
	return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	(void)attribute, (void)device;
	*value = SMS * percent / 100;
	return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	(void)device;
	*context = &used_mib;
	if (daemon_fd < 0)
		return make_context();
	return has_error("client\n") ? MPS_SERVER_NOT_READY : SUCCESS;
}

int cuCtxSetCurrent(void *context)
{
	(void)context;
	return SUCCESS;
}

int cuCtxSynchronize(void)
{
	return has_error("synchronize\n") ? ILLEGAL_ADDRESS : SUCCESS;
}

int cuMemGetInfo_v2(size_t *available, size_t *total)
{
	*available = (limit_mib - used_mib) << 20;
	*total = (size_t)CARD_MIB << 20;
	return SUCCESS;
}

int cuMemAlloc_v2(unsigned long long *p, size_t bytes)
{
	size_t mib = bytes >> 20;

	if (has_error("synchronize\n"))
		return ILLEGAL_ADDRESS;
	if (mib > limit_mib - used_mib)
		return OUT_OF_MEMORY;
	used_mib += mib;
	*p = 1;
	return SUCCESS;
}

/* Managed memory is the system's: nothing counts it. */
int cuMemAllocManaged(unsigned long long *p, size_t bytes, unsigned flags)
{
	(void)bytes, (void)flags;
	*p = 1;
	return SUCCESS;
}

struct handle {
	unsigned char bytes[64];
};

int cuIpcGetMemHandle(struct handle *handle, unsigned long long p)
{
	memset(handle, (int)p, sizeof *handle);
	return SUCCESS;
}

int cuIpcOpenMemHandle_v2(unsigned long long *p, struct handle handle, unsigned flags)
{
	(void)flags;
	*p = handle.bytes[0];
	return SUCCESS;
}

int cuMemsetD8_v2(unsigned long long p, unsigned char value, size_t bytes)
{
	(void)p, (void)value, (void)bytes;
	return SUCCESS;
}

/* Memory has no contents. */
int cuMemcpyDtoH_v2(void *host, unsigned long long p, size_t bytes)
{
	(void)p;
	memset(host, 0, bytes);
	return SUCCESS;
}

int cuModuleLoadData(void **module, const void *image)
{
	(void)image;
	*module = &used_mib;
	return SUCCESS;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
	(void)module;
	*function = strcmp(name, "wild") == 0 ? &daemon_fd : (void *)&used_mib;
	return SUCCESS;
}

/* Takes as long as its part of the card makes it. */
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
		   unsigned shared_bytes, void *stream, void **params, void **extra)
{
	struct timespec t = { .tv_nsec = 2400000L * 100 / percent };

	if (function == &daemon_fd) {
		has_error("fault\n");
		return SUCCESS;
	}
	(void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
	(void)shared_bytes, (void)stream, (void)params, (void)extra;
	nanosleep(&t, NULL);
	return SUCCESS;
}

int cuGetErrorName(int error, const char **name)
{
	*name = error == SUCCESS ? "CUDA_SUCCESS" : error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" :
		error == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" :
		error == MPS_SERVER_NOT_READY ? "CUDA_ERROR_MPS_SERVER_NOT_READY" : error == DEVICE_UNAVAILABLE ? "CUDA_ERROR_DEVICE_UNAVAILABLE" : "CUDA_ERROR_UNKNOWN";
	return SUCCESS;
}
