/*
 * A CUDA program that shows what a container gets of its card.
 *
 *   cudaprobe alloc MIB      allocate and fill that much: "granted", or CUDA's error
 *   cudaprobe hold MIB SECONDS  the same, and keep it for so long before it answers
 *   cudaprobe fill device|managed MIB   allocate and fill that much, or as much as there is, in blocks of
 *                            2 MiB: "filled N total N: E", where E is CUDA's error, or that of none. Then
 *                            it waits for another line, tries one more block of 256 MiB, and says the same
 *   cudaprobe export MIB     allocate that much, answer with its handle, and keep it for another line
 *   cudaprobe import HANDLE  open it and write to it: "imported", or CUDA's error
 *   cudaprobe leftover MIB   allocate that much and do not fill it: "N bytes are not zero", or CUDA's error
 *   cudaprobe count          how many devices CUDA lists: "devices N"
 *   cudaprobe write FILE TEXT   needs no GPU: "written", or the system's error
 *   cudaprobe meminfo        memory in MiB and multiprocessors: "free N total N sms N"
 *   cudaprobe spin SECONDS   keep the card busy: what meminfo says, and "rate R", in
 *                            kernels per second
 *   cudaprobe fault          write where no memory is: CUDA's error. It is that of all clients of MPS on the card
 *
 * Before the command, -u NAME takes a variable out of its environment; it may be repeated.
 *
 * It says "ready" when it has a context on the card, waits for a line on its
 * standard input, and answers in one line. Any failure but that of the
 * allocation ends it with status 1 and a message.
 *
 * It needs a C compiler and, when it runs, the driver's libcuda.so.1: neither
 * CUDA's headers nor its compiler. What it declares is CUDA's driver API, under
 * the names that the library exports. Where the loader does not find the library and
 * CUDAPROBE_LIBRARY is its path, it is taken from there, which standard error says.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int result;
typedef unsigned long long deviceptr;

enum { CUDA_SUCCESS = 0, MULTIPROCESSOR_COUNT = 16, ATTACH_GLOBAL = 1, LAZY_PEER_ACCESS = 1 };

/* A handle by which another process finds memory. */
struct ipc_handle {
	unsigned char bytes[64];
};

static struct {
	result (*init)(unsigned flags);
	result (*device_get)(int *device, int ordinal);
	result (*device_get_count)(int *count);
	result (*device_get_attribute)(int *value, int attribute, int device);
	result (*primary_ctx_retain)(void **context, int device);
	result (*ctx_set_current)(void *context);
	result (*ctx_synchronize)(void);
	result (*mem_get_info)(size_t *free, size_t *total);
	result (*mem_alloc)(deviceptr *p, size_t bytes);
	result (*mem_alloc_managed)(deviceptr *p, size_t bytes, unsigned flags);
	result (*ipc_get_mem_handle)(struct ipc_handle *handle, deviceptr p);
	result (*ipc_open_mem_handle)(deviceptr *p, struct ipc_handle handle, unsigned flags);
	result (*memset_d8)(deviceptr p, unsigned char value, size_t bytes);
	result (*memcpy_dtoh)(void *host, deviceptr p, size_t bytes);
	result (*module_load_data)(void **module, const void *image);
	result (*module_get_function)(void **function, void *module, const char *name);
	result (*launch_kernel)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
				unsigned block_x, unsigned block_y, unsigned block_z,
				unsigned shared_bytes, void *stream, void **params, void **extra);
	result (*get_error_name)(result error, const char **name);
} cu;

/*
 * Each thread computes for so many rounds. The store, which never happens,
 * keeps the driver's compiler from leaving the loop out.
 */
static const char ptx[] =
	".version 6.0\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .entry burn(.param .u64 out, .param .u32 rounds)\n"
	"{\n"
	"	.reg .pred %p<3>;\n"
	"	.reg .b32 %r<3>;\n"
	"	.reg .f32 %f<2>;\n"
	"	.reg .b64 %rd<2>;\n"
	"	ld.param.u64 %rd1, [out];\n"
	"	ld.param.u32 %r2, [rounds];\n"
	"	mov.f32 %f1, 0f3F800000;\n"
	"	mov.u32 %r1, 0;\n"
	"again:\n"
	"	fma.rn.f32 %f1, %f1, 0f3F7FFFFF, 0f33800000;\n"
	"	add.s32 %r1, %r1, 1;\n"
	"	setp.lt.u32 %p1, %r1, %r2;\n"
	"	@%p1 bra again;\n"
	"	setp.neu.f32 %p2, %f1, 0f00000000;\n"
	"	@%p2 bra done;\n"
	"	st.global.f32 [%rd1], %f1;\n"
	"done:\n"
	"	ret;\n"
	"}\n"
	".visible .entry wild(.param .u64 at)\n"
	"{\n"
	"	.reg .f32 %f<2>;\n"
	"	.reg .b64 %rd<2>;\n"
	"	ld.param.u64 %rd1, [at];\n"
	"	mov.f32 %f1, 0f3F800000;\n"
	"	st.global.f32 [%rd1], %f1;\n"
	"	ret;\n"
	"}\n";

/*
 * One kernel is the same work on every card and under every limit: enough
 * blocks to fill the largest card several times over, so that a last, partly
 * filled round hardly counts.
 */
enum { BLOCKS = 16384, THREADS = 256, ROUNDS = 4096 };

/* Kernels between two looks at the clock: the card does not wait for the host. */
enum { BATCH = 8 };

static const char *error_name(result error)
{
	const char *name = NULL;

	if (cu.get_error_name(error, &name) != CUDA_SUCCESS || name == NULL)
		return "an error that CUDA has no name for";
	return name;
}

static void check(result error, const char *what)
{
	if (error == CUDA_SUCCESS)
		return;
	fprintf(stderr, "%s: %s (%d)\n", what, error_name(error), error);
	exit(1);
}

static void load(void *library, void *function, const char *name)
{
	void *symbol = dlsym(library, name);

	if (symbol == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	memcpy(function, &symbol, sizeof symbol);
}

static void open_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	const char *path = getenv("CUDAPROBE_LIBRARY");

	if (library == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		if (path == NULL || *path == '\0' || (library = dlopen(path, RTLD_NOW)) == NULL)
			exit(1);
		fprintf(stderr, "libcuda.so.1 found by its path %s\n", path);
	}
	load(library, &cu.init, "cuInit");
	load(library, &cu.device_get, "cuDeviceGet");
	load(library, &cu.device_get_count, "cuDeviceGetCount");
	load(library, &cu.device_get_attribute, "cuDeviceGetAttribute");
	load(library, &cu.primary_ctx_retain, "cuDevicePrimaryCtxRetain");
	load(library, &cu.ctx_set_current, "cuCtxSetCurrent");
	load(library, &cu.ctx_synchronize, "cuCtxSynchronize");
	load(library, &cu.mem_get_info, "cuMemGetInfo_v2");
	load(library, &cu.mem_alloc, "cuMemAlloc_v2");
	load(library, &cu.mem_alloc_managed, "cuMemAllocManaged");
	load(library, &cu.ipc_get_mem_handle, "cuIpcGetMemHandle");
	load(library, &cu.ipc_open_mem_handle, "cuIpcOpenMemHandle_v2");
	load(library, &cu.memset_d8, "cuMemsetD8_v2");
	load(library, &cu.memcpy_dtoh, "cuMemcpyDtoH_v2");
	load(library, &cu.module_load_data, "cuModuleLoadData");
	load(library, &cu.module_get_function, "cuModuleGetFunction");
	load(library, &cu.launch_kernel, "cuLaunchKernel");
	load(library, &cu.get_error_name, "cuGetErrorName");
}

/* Returns the card, with a context on it. */
static int open_card(void)
{
	int device;
	void *context;

	check(cu.init(0), "cuInit");
	check(cu.device_get(&device, 0), "cuDeviceGet");
	check(cu.primary_ctx_retain(&context, device), "cuDevicePrimaryCtxRetain");
	check(cu.ctx_set_current(context), "cuCtxSetCurrent");
	return device;
}

static void wait_for_line(void)
{
	int c;

	fflush(stdout);
	do
		c = getchar();
	while (c != '\n' && c != EOF);
}

/* Says that the program is ready and waits until it may go on. */
static void meet(void)
{
	printf("ready\n");
	wait_for_line();
}

static void alloc(size_t mib, unsigned seconds)
{
	size_t bytes = mib << 20;
	deviceptr p;
	result error;

	meet();
	error = cu.mem_alloc(&p, bytes);
	if (error != CUDA_SUCCESS) {
		printf("%s\n", error_name(error));
		return;
	}
	check(cu.memset_d8(p, 1, bytes), "cuMemsetD8");
	check(cu.ctx_synchronize(), "cuCtxSynchronize");
	sleep(seconds);
	printf("granted\n");
}

/* Takes a block and touches it. */
static result take(int managed, size_t bytes)
{
	deviceptr p;
	result error = managed ? cu.mem_alloc_managed(&p, bytes, ATTACH_GLOBAL) : cu.mem_alloc(&p, bytes);

	if (error == CUDA_SUCCESS)
		error = cu.memset_d8(p, 1, bytes);
	return error == CUDA_SUCCESS ? cu.ctx_synchronize() : error;
}

static void fill(int managed, size_t mib)
{
	enum { BLOCK_MIB = 2, MORE_MIB = 256 };
	size_t available, total, filled = 0;
	result error = CUDA_SUCCESS;

	meet();
	check(cu.mem_get_info(&available, &total), "cuMemGetInfo");
	while (filled < mib && (error = take(managed, (size_t)BLOCK_MIB << 20)) == CUDA_SUCCESS)
		filled += BLOCK_MIB;
	printf("filled %zu total %zu: %s\n", filled, total >> 20, error_name(error));
	wait_for_line();
	error = take(managed, (size_t)MORE_MIB << 20);
	printf("filled %zu total %zu: %s\n", error == CUDA_SUCCESS ? filled + MORE_MIB : filled, total >> 20, error_name(error));
}

/* What others may have left in memory that is allocated anew. */
static void leftover(size_t mib)
{
	static unsigned char block[1 << 20];
	size_t found = 0;
	deviceptr p;
	result error;

	meet();
	error = cu.mem_alloc(&p, mib << 20);
	if (error != CUDA_SUCCESS) {
		printf("%s\n", error_name(error));
		return;
	}
	for (size_t at = 0; at < mib; at++) {
		check(cu.memcpy_dtoh(block, p + (at << 20), sizeof block), "cuMemcpyDtoH");
		for (size_t i = 0; i < sizeof block; i++)
			found += block[i] != 0;
	}
	printf("%zu bytes are not zero\n", found);
}

static void count(void)
{
	int devices;

	meet();
	check(cu.device_get_count(&devices), "cuDeviceGetCount");
	printf("devices %d\n", devices);
}

static void export_memory(size_t mib)
{
	struct ipc_handle handle;
	deviceptr p;

	meet();
	check(cu.mem_alloc(&p, mib << 20), "cuMemAlloc");
	check(cu.ipc_get_mem_handle(&handle, p), "cuIpcGetMemHandle");
	for (size_t i = 0; i < sizeof handle.bytes; i++)
		printf("%02x", handle.bytes[i]);
	printf("\n");
	wait_for_line();
}

static void import_memory(const char *text)
{
	struct ipc_handle handle;
	deviceptr p;
	result error;

	for (size_t i = 0; i < sizeof handle.bytes; i++)
		if (sscanf(text + 2 * i, "%2hhx", &handle.bytes[i]) != 1) {
			fprintf(stderr, "%s is no handle\n", text);
			exit(1);
		}
	meet();
	error = cu.ipc_open_mem_handle(&p, handle, LAZY_PEER_ACCESS);
	if (error == CUDA_SUCCESS)
		error = cu.memset_d8(p, 1, 1 << 20);
	printf("%s\n", error == CUDA_SUCCESS ? "imported" : error_name(error));
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	meet();
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		printf("%s\n", strerror(errno));
	else
		printf("written\n");
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void print_meminfo(int device)
{
	size_t available, total;
	int sms;

	check(cu.mem_get_info(&available, &total), "cuMemGetInfo");
	check(cu.device_get_attribute(&sms, MULTIPROCESSOR_COUNT, device), "cuDeviceGetAttribute");
	printf("free %zu total %zu sms %d", available >> 20, total >> 20, sms);
}

static void spin(int device, double seconds)
{
	void *module, *function;
	deviceptr out;
	unsigned rounds = ROUNDS;
	void *params[] = { &out, &rounds };
	double start, elapsed;
	long kernels = 0;

	check(cu.module_load_data(&module, ptx), "cuModuleLoadData");
	check(cu.module_get_function(&function, module, "burn"), "cuModuleGetFunction");
	check(cu.mem_alloc(&out, sizeof(float)), "cuMemAlloc");
	meet();
	start = now();
	do {
		for (int i = 0; i < BATCH; i++)
			check(cu.launch_kernel(function, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, params, NULL), "cuLaunchKernel");
		check(cu.ctx_synchronize(), "cuCtxSynchronize");
		kernels += BATCH;
		elapsed = now() - start;
	} while (elapsed < seconds);
	print_meminfo(device);
	printf(" rate %.1f\n", (double)kernels / elapsed);
}

static void fault(void)
{
	void *module, *function;
	deviceptr nowhere = 1ULL << 46;
	void *params[] = { &nowhere };
	result error;

	check(cu.module_load_data(&module, ptx), "cuModuleLoadData");
	check(cu.module_get_function(&function, module, "wild"), "cuModuleGetFunction");
	meet();
	error = cu.launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
	if (error == CUDA_SUCCESS)
		error = cu.ctx_synchronize();
	printf("%s\n", error_name(error));
}

static void meminfo(int device)
{
	meet();
	print_meminfo(device);
	printf("\n");
}

int main(int argc, char **argv)
{
	const char *command;
	int device;

	while (argc > 2 && strcmp(argv[1], "-u") == 0) {
		unsetenv(argv[2]);
		argc -= 2;
		argv += 2;
	}
	command = argc > 1 ? argv[1] : "";

	if (strcmp(command, "write") == 0 && argc == 4) {
		write_file(argv[2], argv[3]);
		return 0;
	}
	open_driver();
	device = open_card();
	if (strcmp(command, "alloc") == 0 && argc == 3)
		alloc(strtoul(argv[2], NULL, 10), 0);
	else if (strcmp(command, "hold") == 0 && argc == 4)
		alloc(strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
	else if (strcmp(command, "fill") == 0 && argc == 4)
		fill(strcmp(argv[2], "managed") == 0, strtoul(argv[3], NULL, 10));
	else if (strcmp(command, "export") == 0 && argc == 3)
		export_memory(strtoul(argv[2], NULL, 10));
	else if (strcmp(command, "import") == 0 && argc == 3 && strlen(argv[2]) == 2 * sizeof(struct ipc_handle))
		import_memory(argv[2]);
	else if (strcmp(command, "leftover") == 0 && argc == 3)
		leftover(strtoul(argv[2], NULL, 10));
	else if (strcmp(command, "count") == 0 && argc == 2)
		count();
	else if (strcmp(command, "spin") == 0 && argc == 3)
		spin(device, strtod(argv[2], NULL));
	else if (strcmp(command, "fault") == 0 && argc == 2)
		fault();
	else if (strcmp(command, "meminfo") == 0 && argc == 2)
		meminfo(device);
	else {
		fprintf(stderr, "usage: cudaprobe [-u NAME]... alloc MIB | hold MIB SECONDS | fill device|managed MIB | export MIB | import HANDLE | "
			"leftover MIB | count | write FILE TEXT | meminfo | spin SECONDS | fault\n");
		return 1;
	}
	return 0;
}
