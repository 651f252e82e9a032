package isolation

import (
	"fmt"
	"strconv"
	"strings"
)

// Environment variables that do not depend on the back end.
const (
	// envVisibleDevices tells NVIDIA's own runtime hook, where a node still has
	// it, to add no cards: they come by CDI.
	envVisibleDevices = "NVIDIA_VISIBLE_DEVICES=void"
	envDisabled       = "CGPU_DISABLE=true"
	envEnabled        = "CGPU_DISABLE=false"
	// envCUDADevices lists cards by UUID; CUDA numbers them in that order.
	envCUDADevices = "CUDA_VISIBLE_DEVICES"
)

// Env returns the environment of a container that uses the request,
// independently of the back end. In the shared modes that is what ACK's device
// plugin sets (source: legacy env of the gpushare plugin), so that programs
// which size themselves by it keep working:
//
//	ALIYUN_COM_GPU_MEM_CONTAINER  the request's units per card
//	ALIYUN_COM_GPU_MEM_DEV        the card's units
//	ALIYUN_COM_GPU_MEM_UNIT       GiB
//	ALIYUN_COM_GPU_MEM_IDX        the cards' indices, comma-separated
//	ALIYUN_COM_GPU_MEM_POD        the claim's units, over all requests and cards
//	ALIYUN_COM_GPU_SCHD_WEIGHT    the compute percentage / 5, where compute was granted
//
// Where the cards have an order (Request.Order), CUDA_VISIBLE_DEVICES sets it.
//
// A request that spans unlike cards states the first card's units.
func Env(r Request) []string {
	env := []string{envVisibleDevices}
	first := r.Grants[0]
	if len(r.Order) > 0 {
		env = append(env, envCUDADevices+"="+strings.Join(r.Order, ","))
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
		"ALIYUN_COM_GPU_MEM_UNIT=GiB",
		"ALIYUN_COM_GPU_MEM_IDX="+strings.Join(indices(r), ","),
		fmt.Sprintf("ALIYUN_COM_GPU_MEM_POD=%d", r.ClaimUnits),
	)
	return append(env, weightEnv(r)...)
}

func memoryEnv(r Request) []string {
	first := r.Grants[0]
	return []string{
		fmt.Sprintf("ALIYUN_COM_GPU_MEM_CONTAINER=%d", first.Units),
		fmt.Sprintf("ALIYUN_COM_GPU_MEM_DEV=%d", first.Card.Units()),
	}
}

// coresPerWeight: cGPU's scheduling weight counts in steps of 5 percent.
const coresPerWeight = 5

func weightEnv(r Request) []string {
	cores := r.Grants[0].CoresPercent
	if cores == 0 {
		return nil
	}
	return []string{fmt.Sprintf("ALIYUN_COM_GPU_SCHD_WEIGHT=%d", cores/coresPerWeight)}
}

func indices(r Request) []string {
	out := make([]string, 0, len(r.Grants))
	for _, g := range r.Grants {
		out = append(out, strconv.Itoa(g.Card.Index))
	}
	return out
}
