// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
)

// Environment variables that do not depend on the back end.
const (
	// envVisibleDevices tells NVIDIA's own runtime hook, where a node still has
	// it, to add no GPUs: they come by CDI.
	envVisibleDevices = "NVIDIA_VISIBLE_DEVICES=void"
	envDisabled       = ack.EnvDisable + "=true"
	envEnabled        = ack.EnvDisable + "=false"
	// envCUDADevices lists GPUs by UUID; CUDA numbers them in that order.
	envCUDADevices = "CUDA_VISIBLE_DEVICES"
)

// Env returns the environment of a container that uses the request,
// independently of the back end. In the shared modes that is what ACK's device
// plugin sets (source: legacy env of the gpushare plugin), so that programs
// which size themselves by it keep working:
//
//	ALIYUN_COM_GPU_MEM_CONTAINER  the request's units per GPU
//	ALIYUN_COM_GPU_MEM_DEV        the GPU's units
//	ALIYUN_COM_GPU_MEM_UNIT       GiB
//	ALIYUN_COM_GPU_MEM_IDX        the GPUs' indices, in order, comma-separated
//	ALIYUN_COM_GPU_MEM_POD        the claim's units, over all requests and GPUs
//	ALIYUN_COM_GPU_SCHD_WEIGHT    the compute percentage / 5, where compute was granted
//
// Where the GPUs have an order (Request.Order), CUDA_VISIBLE_DEVICES sets it. In all modes
// there is a v1alpha1.EnvUUID for each GPU: a privileged container sees all of the node, and
// has to be told which are its own. One variable for all of them would be that of the last
// request that a container uses; NVIDIA_VISIBLE_DEVICES would have NVIDIA's runtime add GPUs, and
// programs that take CUDA_VISIBLE_DEVICES for numbers fail on UUIDs.
//
// A request that spans unlike GPUs states the first GPU's units.
func Env(r Group) []string {
	env := []string{envVisibleDevices}
	first := r.Grants[0]
	if len(r.Order) > 0 {
		env = append(env, envCUDADevices+"="+strings.Join(r.Order, ","))
	}
	if !first.Admin && first.Config.LegacyEnv() {
		env = append(env, uuidEnv(r)...)
	}
	if !first.Mode.Shared() || first.Admin {
		return env
	}
	if first.Config.IsolationDisabled() {
		env = append(env, envDisabled)
	}
	if !first.Config.LegacyEnv() {
		return env
	}
	env = append(env, memoryEnv(r)...)
	env = append(env,
		ack.EnvMemoryUnit+"=GiB",
		ack.EnvMemoryIndex+"="+strings.Join(indices(r), ","),
		fmt.Sprintf("%s=%d", ack.EnvMemoryPod, r.ClaimUnits),
	)
	return append(env, weightEnv(r)...)
}

// uuidEnv names each GPU by its index and, of a MIG instance, by where it begins.
func uuidEnv(r Group) []string {
	var env []string
	for _, g := range r.Grants {
		name := v1alpha1.EnvUUID + strconv.Itoa(g.GPU.Index)
		if g.GPU.MIG != nil {
			name += "_" + strconv.Itoa(g.GPU.MIG.Start)
		}
		env = append(env, name+"="+g.GPU.UUID)
	}
	return env
}

func memoryEnv(r Group) []string {
	first := r.Grants[0]
	return []string{
		fmt.Sprintf("%s=%d", ack.EnvMemoryContainer, first.Units),
		fmt.Sprintf("%s=%d", ack.EnvMemoryGPU, first.GPU.Units()),
	}
}

// coresPerWeight: cGPU's scheduling weight counts in steps of 5 percent.
const coresPerWeight = 5

func weightEnv(r Group) []string {
	cores := r.Grants[0].CoresPercent
	if cores == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s=%d", ack.EnvWeight, cores/coresPerWeight)}
}

// indices are in ascending order, whatever that of the grants is.
func indices(r Group) []string {
	sorted := slices.SortedFunc(slices.Values(r.Grants), func(a, b claim.Grant) int {
		return cmp.Compare(a.GPU.Index, b.GPU.Index)
	})
	out := make([]string, 0, len(sorted))
	for _, g := range sorted {
		out = append(out, strconv.Itoa(g.GPU.Index))
	}
	return out
}
