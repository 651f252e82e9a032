// SPDX-License-Identifier: Apache-2.0

// Package stranded finds the free GPUs of a cluster for which their nodes have too little CPU or memory left.
package stranded

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement/score"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling/offer"
)

// Cluster is what is known of a cluster: all of its nodes, pods and claims.
type Cluster struct {
	Slices []*resourceapi.ResourceSlice
	Claims []*resourceapi.ResourceClaim
	Nodes  []*corev1.Node
	Pods   []*corev1.Pod
}

// Find is what the pods that hold GPUs now, if more of them came, could not have of the free GPUs.
func Find(c Cluster) score.Lost {
	index, pools, claims := score.New(), devices.Pools(c.Slices), offer.ByNode(c.Claims)
	var placed []offer.Placed
	// Pods that have ended request nothing.
	live := slices.DeleteFunc(slices.Clone(c.Pods), gpuclaim.Ended)
	byNode := map[string][]*corev1.Pod{}
	for _, pod := range live {
		byNode[pod.Spec.NodeName] = append(byNode[pod.Spec.NodeName], pod)
	}
	resources := scheduling.ResourcesOf(c.Nodes, live)
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		of, known := resources[name]
		if !known {
			continue
		}
		gpus := offer.Of(pools[name])
		placed = append(placed, gpus.Placed(byNode[name], claims[name])...)
		cpu, memory := of.Allocatable.Cpu().DeepCopy(), of.Allocatable.Memory().DeepCopy()
		cpu.Sub(*of.Requested.Cpu())
		memory.Sub(*of.Requested.Memory())
		index.Set(name, score.Node{CPU: cpu.MilliValue(), Memory: memory.Value(), GPUs: gpus.Left(claims[name])})
	}
	for _, ask := range offer.Asks(placed) {
		index.Learn(ask)
	}
	return index.Lost()
}

// nearly is how much of the mean is as good as it: nodes of one kind differ a little in what is allocatable.
const nearly = 0.95

// FewCPUs are the nodes with fewer CPUs per GPU than the cluster, and how many the cluster has. Where pods without GPUs
// prefer other nodes, fewer GPUs are stranded.
func FewCPUs(c Cluster) (few []string, mean float64) {
	pools, perGPU := devices.Pools(c.Slices), map[string]float64{}
	cpus, gpus := 0.0, 0
	for _, node := range c.Nodes {
		published, own := offer.Of(pools[node.Name]), node.Status.Allocatable.Cpu().AsApproximateFloat64()
		cpus, gpus = cpus+own, gpus+published.Number()
		if published.Number() > 0 {
			perGPU[node.Name] = own / float64(published.Number())
		}
	}
	mean = cpus / float64(max(gpus, 1))
	for _, node := range slices.Sorted(maps.Keys(perGPU)) {
		if perGPU[node] < nearly*mean {
			few = append(few, node)
		}
	}
	return few, mean
}
