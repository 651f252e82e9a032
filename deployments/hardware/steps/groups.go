// SPDX-License-Identifier: Apache-2.0

package steps

import "time"

// Most of a step is a container's start and a CUDA context; seconds. The limits leave
// room for a machine that is busy.
const (
	short  = 60 * time.Second
	medium = 90 * time.Second
	long   = 150 * time.Second
)

// Groups are all that a run tries, in order: what matters most comes first, should the
// time not be enough.
func Groups() []Group {
	return []Group{
		{Name: "exclusive", Label: "default", Steps: []Step{
			{Name: "a pod has a whole GPU", Limit: short, Run: wholeGPU},
			{Name: "nvidia-smi in a container", Limit: short, Needs: []Need{needsSMI}, Run: smiInContainer},
			{Name: "the GPU's health in the pod's status", Limit: short, Run: healthShown},
			{Name: "a container of another user", Limit: short, Run: otherUser},
			{Name: "a pod that asks for nvidia.com/gpu", Limit: short, Run: extendedResource},
			{Name: "a pod waits for a GPU", Limit: medium, Run: waitsForGPU},
		}},
		{Name: "share", Label: "share", Steps: []Step{
			{Name: "two shares of one GPU", Limit: medium, Run: twoShares},
			{Name: "a pod over its share is told", Limit: short, Needs: []Need{needsGPU}, Run: overItsShare},
			{Name: "a pod that asks for aliyun.com/gpu-mem", Limit: short, Run: legacyMemory},
			{Name: "a pod that asks for more than a GPU has", Limit: short, Run: legacyTooMuch},
			{Name: "gpu-kubelet-plugin is killed", Limit: medium, Run: pluginKilled},
		}},
		{Name: "mps", Label: "mps", Needs: []Need{needsMPS}, Steps: []Step{
			{Name: "a share is limited", Limit: short, Run: limited("mps", "")},
			{Name: "programs of two users", Limit: short, Run: twoUsers},
			{Name: "a container cannot end the daemon", Limit: short, Run: cannotQuit},
			{Name: "a pod that asks for aliyun.com/gpu-mem is limited", Limit: short, Run: legacyLimited},
			{Name: "the MPS control daemon is killed", Limit: long, Run: daemonKilled},
		}},
		{Name: memoryLimits, Label: "share", Needs: []Need{needsLimits}, Steps: []Step{
			{Name: "the questions about memory limits by control group", Limit: 3 * long, Run: askAll},
			{Name: "a soft limit of a container that is gone", Limit: medium, Run: softLimitLeft},
		}},
		{Name: memoryLimits + ", under MPS", Label: "mps", Needs: []Need{needsLimits, needsMPS}, Steps: []Step{
			{Name: "whose control group pays", Limit: medium, Run: whoPays},
		}},
		{Name: "core_mem", Label: "core_mem", Needs: []Need{needsMPS}, Steps: []Step{
			{Name: "a share is limited", Limit: short, Run: limited("core-mem", "50")},
			{Name: "compute is shared as granted", Limit: medium, Run: computeShared},
			{Name: "a pod that asks for aliyun.com/gpu-core.percentage", Limit: short, Run: legacyCores},
		}},
		{Name: "cgpu", Label: "cgpu", Needs: []Need{needsMPS}, Steps: []Step{
			{Name: "a share is limited", Limit: short, Run: limited("cgpu", "")},
		}},
		{Name: "dynamic", Label: "dynamic", Needs: []Need{needsMPS}, Steps: []Step{
			{Name: "a GPU changes its mode from claim to claim", Limit: long, Run: modeByClaim},
			{Name: "a pod that asks for aliyun.com/gpu-mem", Limit: short, Run: legacyMemory},
		}},
		{Name: "mode switch", Label: "share", Needs: []Need{needsMPS}, Steps: []Step{
			{Name: "from share to mps, under load", Limit: long, Run: switchUnderLoad},
		}},
		{Name: "topology", Label: "topology", Needs: []Need{needsTwoGPUs}, Steps: []Step{
			{Name: "a pod has two linked GPUs", Limit: short, Run: linkedGPUs},
		}},
	}
}
