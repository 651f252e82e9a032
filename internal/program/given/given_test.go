// SPDX-License-Identifier: Apache-2.0

package given

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestPrint(t *testing.T) {
	environ := []string{"PATH=/usr/bin", "NVIDIA_VISIBLE_DEVICES=void", "ALIYUN_COM_GPU_MEM_CONTAINER=3",
		"KUBERNETES_PORT=tcp://10.0.0.1", "CUDA_MPS_PIPE_DIRECTORY=/run/mps"}
	dev := fstest.MapFS{"null": {}, "nvidia-uvm": {}, "nvidia1": {}, "nvidiactl": {}, "nvidia-caps/nvidia-cap1": {}}
	var out strings.Builder
	if err := Print(&out, environ, dev); err != nil {
		t.Fatal(err)
	}
	const want = `ALIYUN_COM_GPU_MEM_CONTAINER=3
CUDA_MPS_PIPE_DIRECTORY=/run/mps
NVIDIA_VISIBLE_DEVICES=void
/dev/nvidia-caps
/dev/nvidia-uvm
/dev/nvidia1
/dev/nvidiactl
`
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", &out, want)
	}
}

// What there is, is printed all the same: it tells what went wrong.
func TestNoGPU(t *testing.T) {
	for name, dev := range map[string]fstest.MapFS{"nothing": {}, "a driver without GPUs": {"nvidiactl": {}}} {
		var out strings.Builder
		err := Print(&out, []string{"NVIDIA_VISIBLE_DEVICES=void"}, dev)
		if err == nil || !strings.Contains(err.Error(), "given no GPU") {
			t.Errorf("%s: error %v", name, err)
		}
		if !strings.Contains(out.String(), "NVIDIA_VISIBLE_DEVICES=void\n") {
			t.Errorf("%s: printed %q", name, &out)
		}
	}
}
