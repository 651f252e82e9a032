// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"fmt"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// instance is a MIG instance of a GPU that begins at a memory slice.
func instance(index, start int) claim.Grant {
	g := grant(mode.MIG, index, 0, 0)
	g.GPU.UUID, g.GPU.MIG = fmt.Sprint("MIG-", start), &claim.Instance{Start: start}
	return g
}

func TestEnv(t *testing.T) {
	withoutLegacy := grant(mode.Share, 0, 3, 0)
	withoutLegacy.Config.Env = ptr.To(v1alpha1.EnvNone)
	admin := grant(mode.Share, 0, 0, 0)
	admin.Admin = true
	ordered := request(grant(mode.Topology, 0, 0, 0), grant(mode.Topology, 1, 0, 0))
	ordered.Order = []string{"GPU-b", "GPU-a"}
	const void, own = "NVIDIA_VISIBLE_DEVICES=void", "GPU_ALIYUN_COM_UUID_0=GPU-a"
	// onGPU0 is what a share of 3 GiB of GPU 0 is told beside.
	onGPU0 := func(beside ...string) []string {
		return append(append([]string{void, own}, beside...), "ALIYUN_COM_GPU_MEM_CONTAINER=3",
			"ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_UNIT=GiB", "ALIYUN_COM_GPU_MEM_IDX=0", "ALIYUN_COM_GPU_MEM_POD=3")
	}
	for name, tc := range map[string]struct {
		request Group
		want    []string
	}{
		"whole GPU": {request(grant(mode.Exclusive, 2, 0, 0)), []string{void, "GPU_ALIYUN_COM_UUID_2=GPU-c"}},
		"MIG instances": {request(instance(1, 0), instance(1, 4)), []string{void, "GPU_ALIYUN_COM_UUID_1_0=MIG-0",
			"GPU_ALIYUN_COM_UUID_1_4=MIG-4"}},
		"share": {request(grant(mode.Share, 0, 3, 0)), onGPU0()},
		"two GPUs": {request(grant(mode.Share, 3, 2, 0), grant(mode.Share, 1, 2, 0)), []string{void,
			"GPU_ALIYUN_COM_UUID_3=GPU-d", "GPU_ALIYUN_COM_UUID_1=GPU-b",
			"ALIYUN_COM_GPU_MEM_CONTAINER=2", "ALIYUN_COM_GPU_MEM_DEV=15", "ALIYUN_COM_GPU_MEM_UNIT=GiB",
			"ALIYUN_COM_GPU_MEM_IDX=1,3", "ALIYUN_COM_GPU_MEM_POD=4"}},
		"compute":       {request(grant(mode.CoreMem, 0, 3, 20)), append(onGPU0(), "ALIYUN_COM_GPU_SCHD_WEIGHT=4")},
		"env None":      {request(withoutLegacy), []string{void}},
		"limits lifted": {request(lifted(grant(mode.CGPU, 0, 3, 0))), onGPU0("CGPU_DISABLE=true")},
		"admin":         {request(admin), []string{void}},
		"linked GPUs": {ordered, []string{void, "CUDA_VISIBLE_DEVICES=GPU-b,GPU-a",
			own, "GPU_ALIYUN_COM_UUID_1=GPU-b"}},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, tc.want, Env(tc.request), "environment")
		})
	}
}
