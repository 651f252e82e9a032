/*
 * A stand-in for nvidia-smi -L, to try the bundle without a GPU: a line for each GPU
 * whose device node is there. It is linked statically, and asks no driver.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char node[32];
	int shown = 0;

	if (argc != 2 || strcmp(argv[1], "-L") != 0) {
		fprintf(stderr, "usage: nvidia-smi -L (this node's NVIDIA driver is simulated)\n");
		return 1;
	}
	for (int minor = 0; minor < 64; minor++) {
		snprintf(node, sizeof node, "/dev/nvidia%d", minor);
		if (access(node, F_OK) == 0)
			printf("GPU %d: NVIDIA H200 (simulated, %s)\n", shown++, node);
	}
	return 0;
}
