// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

// groups are all that is tried on a node, but for MIG.
func groups() []group {
	return []group{
		{name: "GPUs", trials: []trial{
			{name: "the machine", run: facts},
			{name: "the GPUs, as nvidia-smi tells of them", run: sameAsSMI, needs: []need{needsGPU, needsSMI}},
			{name: "the links, as nvidia-smi tells of them", run: linksRead, needs: []need{needsGPU, needsSMI, needsTwoGPUs}},
			{name: "the GPUs, read again", run: readAgain},
		}},
		{name: "exclusive", label: "default", trials: []trial{
			{name: "a pod has a whole GPU", run: wholeGPU},
			{name: "nvidia-smi in a container", run: smiInContainer, needs: []need{needsSMI}},
			{name: "the GPU's health in the pod's status", run: healthShown},
			{name: "a container of another user", run: otherUser},
			{name: "a pod that asks for nvidia.com/gpu", run: extendedResource},
		}},
		{name: "share", label: "share", trials: []trial{
			{name: "two shares of one GPU", run: twoShares},
			{name: "a pod over its share is told", run: overItsShare, needs: []need{needsGPU}},
			{name: "who is on the GPU, without MPS", run: onTheGPU("share"), needs: []need{needsGPU}},
			{name: "a pod that asks for aliyun.com/gpu-mem", run: legacyMemory},
			{name: "gpu-kubelet-plugin is killed", run: pluginKilled},
		}},
		{name: "mps", label: "mps", needs: []need{needsMPS}, trials: []trial{
			{name: "a share is limited", run: limited("mps", 0)},
			{name: "what the limit does not count", run: notCounted},
			{name: "programs of two users", run: twoUsers},
			{name: "a container cannot end the daemon", run: cannotQuit},
			{name: "a pod that asks for aliyun.com/gpu-mem is limited", run: legacyLimited},
			{name: "who is on the GPU, under MPS", run: onTheGPU("mps"), needs: []need{needsGPU}},
			{name: "the MPS control daemon is killed", run: daemonKilled},
			{name: "the socket is removed", run: socketRemoved},
			{name: "a program writes where no memory is", run: fault},
			{name: "the server is there before its clients", run: serverFirst, needs: []need{needsEnforced}},
			{name: "no program is beside MPS", run: nobodyBeside, needs: []need{needsEnforced}},
			{name: "no program has more than the largest share", run: largestShare},
			{name: "no program starts without daemon and server", run: nothingWithoutServer, needs: []need{needsEnforced}},
			{name: "the compute mode is put back", run: computeModePutBack, needs: []need{needsEnforced}},
		}},
		{name: memoryLimits, label: "share", needs: []need{needsLimits}, trials: []trial{
			{name: "questions that only a driver with memory limits answers", run: askAll},
		}},
		{name: memoryLimits + ", under MPS", label: "mps", needs: []need{needsLimits, needsMPS}, trials: []trial{
			{name: "a client of MPS v2 holds 1000 MiB: who is charged", run: whoPays},
		}},
		{name: "core_mem", label: "core_mem", needs: []need{needsMPS}, trials: []trial{
			{name: "a share is limited", run: limited("core-mem", 50)},
			{name: "compute is shared as granted", run: computeShared},
			{name: "a pod that asks for aliyun.com/gpu-core.percentage", run: legacyCores},
		}},
		{name: "cgpu", label: "cgpu", needs: []need{needsMPS}, trials: []trial{
			{name: "a share is limited", run: limited("cgpu", 0)},
		}},
		{name: "dynamic", label: "dynamic", needs: []need{needsMPS}, trials: []trial{
			{name: "a GPU changes its mode from claim to claim", run: modeByClaim},
			{name: "a pod that asks for aliyun.com/gpu-mem", run: legacyMemory},
		}},
		{name: "mode switch", label: "share", needs: []need{needsMPS}, trials: []trial{
			{name: "from share to mps, under load", run: switchUnderLoad},
		}},
		{name: "topology", label: "topology", needs: []need{needsTwoGPUs}, trials: []trial{
			{name: "a pod has two linked GPUs", run: linkedGPUs},
		}},
	}
}
