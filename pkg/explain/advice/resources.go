// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"regexp"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// ask is what a container asks for in the words of others, in units of this driver.
type ask struct {
	// gpus is how many GPUs, or parts of one, of which the rest is said for each.
	gpus int64
	// shares says that they are parts of a GPU.
	shares bool
	// memoryGiB and cores (percent) are of each; 0 where the manifest does not say.
	memoryGiB, cores int64
}

// rule is how one project calls what it hands out.
type rule struct {
	resource *regexp.Regexp
	// read adds to an ask an amount of the resource that is greater than 0. parts are
	// those of the name that the expression has groups for.
	read func(a *ask, amount int64, parts []string)
}

// rules are tried in their order, the first that matches holds. Sources are the
// projects' documents and the manifests that people publish.
var rules = []rule{
	// Names that are nearly ACK's.
	{regexp.MustCompile(`^aliyun\.com/v?gpu.*mem`), func(a *ask, amount int64, _ []string) { memory(a, amount, 1) }},
	{regexp.MustCompile(`^aliyun\.com/v?gpu.*(?:core|compute|percent)`), percentOfCompute},
	{regexp.MustCompile(`^aliyun\.com/v?gpus?$`), whole},

	// HAMi and its forerunner; MiB and percent of each GPU.
	{regexp.MustCompile(`^nvidia\.com/gpumem$`), mebibytes},
	{regexp.MustCompile(`^nvidia\.com/gpumem-percentage$`), somePart},
	{regexp.MustCompile(`^nvidia\.com/(?:gpu)?cores$`), percentOfCompute},
	{regexp.MustCompile(`^4paradigm\.com/vgpu$`), parts},

	// NVIDIA's device plugin: MIG, time-slicing and MPS.
	{regexp.MustCompile(`^nvidia\.com/mig-[0-9]+[cg](?:\.[0-9]+g)?\.([0-9]+)gb`), partsOfGiB},
	{regexp.MustCompile(`^nvidia\.com/.*\.shared$`), somePart},
	{regexp.MustCompile(`^nvidia\.com/vgpu$`), parts},
	// vgpu-manager; MiB and percent of each GPU.
	{regexp.MustCompile(`^nvidia\.com/vgpu-number$`), parts},
	{regexp.MustCompile(`^nvidia\.com/vgpu-memory$`), mebibytes},
	{regexp.MustCompile(`^nvidia\.com/vgpu-cores?$`), percentOfCompute},
	// Slices of nos.
	{regexp.MustCompile(`^nvidia\.com/gpu-([0-9]+)gb$`), partsOfGiB},
	// Models under names of their own, and Kubernetes' first name for GPUs.
	{regexp.MustCompile(`^nvidia\.com/.*gpu|^alpha\.kubernetes\.io/nvidia-gpu$`), whole},

	// Volcano; MiB and percent of each GPU.
	{regexp.MustCompile(`^volcano\.sh/vgpu-number$`), parts},
	{regexp.MustCompile(`^volcano\.sh/gpu-number$`), whole},
	{regexp.MustCompile(`^volcano\.sh/v?gpu-memory$`), mebibytes},
	{regexp.MustCompile(`^volcano\.sh/vgpu-memory-percentage$`), somePart},
	{regexp.MustCompile(`^volcano\.sh/vgpu-cores$`), percentOfCompute},

	// Koordinator; gpu and gpu-core in percent of a GPU, 200 being two of them.
	{regexp.MustCompile(`^koordinator\.sh/gpu$`), percentOfGPU},
	{regexp.MustCompile(`^koordinator\.sh/gpu-core$`), percentOfCompute},
	{regexp.MustCompile(`^koordinator\.sh/gpu-memory$`),
		func(a *ask, amount int64, _ []string) { memory(a, amount, gibibyte) }},
	{regexp.MustCompile(`^koordinator\.sh/gpu(?:-memory-ratio|\.shared)$`), somePart},

	// Tencent's gpu-manager, of which 100 is a GPU and memory is in 256 MiB, and qGPU.
	{regexp.MustCompile(`^tencent\.com/vcuda-core$`), percentOfGPU},
	{regexp.MustCompile(`^tencent\.com/vcuda-memory$`), func(a *ask, amount int64, _ []string) { memory(a, amount, 4) }},
	{regexp.MustCompile(`^tke\.cloud\.tencent\.com/qgpu-core$`), percentOfGPU},
	{regexp.MustCompile(`^tke\.cloud\.tencent\.com/qgpu-memory$`),
		func(a *ask, amount int64, _ []string) { memory(a, amount, 1) }},

	{regexp.MustCompile(`^k8s\.amazonaws\.com/vgpu$`), parts},
	{regexp.MustCompile(`^elasticgpu\.io/gpu-(?:core|memory)$`), somePart},
}

// whole GPUs are handed out under this name by Kubernetes itself, of the DeviceClass
// that names it.
const wholeGPU corev1.ResourceName = "nvidia.com/gpu"

const (
	gibibyte = 1 << 30
	// fullCores is a GPU's compute in percent, coreStep what it is handed out in.
	fullCores, coreStep = 100, 5
)

// find returns the rule for a resource.
func find(name corev1.ResourceName) (rule, []string, bool) {
	for _, r := range rules {
		if groups := r.resource.FindStringSubmatch(string(name)); groups != nil {
			return r, groups[1:], true
		}
	}
	return rule{}, nil, false
}

func whole(a *ask, amount int64, _ []string) { a.gpus += amount }

func parts(a *ask, amount int64, _ []string) { a.gpus, a.shares = a.gpus+amount, true }

// partsOfGiB reads the size of each part from the name.
func partsOfGiB(a *ask, amount int64, parts []string) {
	a.gpus, a.shares = a.gpus+amount, true
	if n, err := strconv.ParseInt(parts[0], 10, 64); err == nil {
		a.memoryGiB = max(a.memoryGiB, n)
	}
}

func somePart(a *ask, _ int64, _ []string) { a.shares = true }

func mebibytes(a *ask, amount int64, _ []string) { memory(a, amount, 1024) }

// memory rounds up to whole GiB, of which one is so many of the amount's units.
func memory(a *ask, amount, ofGiB int64) {
	a.shares = true
	a.memoryGiB = max(a.memoryGiB, amount/ofGiB+min(1, amount%ofGiB))
}

// percentOfCompute rounds up to the steps in which compute is handed out.
func percentOfCompute(a *ask, amount int64, _ []string) {
	a.shares = true
	a.cores = min(fullCores, (amount/coreStep+min(1, amount%coreStep))*coreStep)
}

// percentOfGPU is a part of one GPU, or several of them.
func percentOfGPU(a *ask, amount int64, _ []string) {
	if amount >= fullCores {
		a.gpus += amount / fullCores
		return
	}
	percentOfCompute(a, amount, nil)
}
