// SPDX-License-Identifier: Apache-2.0

package given

import (
	"strings"
	"testing"
	"testing/fstest"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

func TestPrint(t *testing.T) {
	environ := []string{"PATH=/usr/bin", "NVIDIA_VISIBLE_DEVICES=void", "ALIYUN_COM_GPU_MEM_CONTAINER=3",
		"KUBERNETES_PORT=tcp://10.0.0.1", "CUDA_MPS_PIPE_DIRECTORY=/run/mps"}
	dev := fstest.MapFS{"null": {}, "nvidia-uvm": {}, "nvidia1": {}, "nvidiactl": {}, "nvidia-caps/nvidia-cap1": {}}
	var out strings.Builder
	expect.NoError(t, Print(&out, environ, dev))
	const want = `ALIYUN_COM_GPU_MEM_CONTAINER=3
CUDA_MPS_PIPE_DIRECTORY=/run/mps
NVIDIA_VISIBLE_DEVICES=void
/dev/nvidia-caps
/dev/nvidia-uvm
/dev/nvidia1
/dev/nvidiactl
`
	expect.Equal(t, want, out.String(), "printed %s", &out)
}

// What there is, is printed all the same: it tells what went wrong.
func TestNoGPU(t *testing.T) {
	for _, dev := range []fstest.MapFS{{}, {"nvidiactl": {}}} { // nothing, and a driver without GPUs
		var out strings.Builder
		err := Print(&out, []string{"NVIDIA_VISIBLE_DEVICES=void"}, dev)
		expect.Error(t, err, "given no GPU")
		expect.Says(t, out.String(), "NVIDIA_VISIBLE_DEVICES=void\n")
	}
}
