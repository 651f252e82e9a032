// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// decodeAmounts reads an annotation like legacy.AnnotationMemory. It has to say just
// what the containers' limits do, each on GPUs that there are: whatever else it says,
// it cannot be relied on.
func (r *reader) decodeAmounts(name, value string, limits []int64) ([]part, error) {
	var byContainer map[string]map[string]int64
	if err := json.Unmarshal([]byte(value), &byContainer); err != nil {
		return nil, fmt.Errorf("its annotation %s=%s cannot be read: %w", name, text.Quote(value), err)
	}
	var parts []part
	given := make([]int64, len(limits))
	for _, container := range slices.Sorted(maps.Keys(byContainer)) {
		i, err := number(container)
		if err != nil || i >= len(limits) {
			return nil, fmt.Errorf("its annotation %s=%s names container %s, and the pod has %d", name, text.Quote(value),
				text.Quote(container), len(limits))
		}
		for _, g := range slices.Sorted(maps.Keys(byContainer[container])) {
			amount := byContainer[container][g]
			if amount == 0 {
				continue
			}
			index, err := number(g)
			if err == nil {
				err = r.gpu(index)
			}
			if err != nil {
				return nil, fmt.Errorf("its annotation %s=%s: %w", name, text.Quote(value), err)
			}
			if amount < 0 || amount > limits[i] {
				return nil, fmt.Errorf("its annotation %s=%s gives container %d %d of GPU %d, and its limit is %d", name,
					text.Quote(value), i, amount, index, limits[i])
			}
			given[i] += amount
			parts = append(parts, part{container: i, gpu: index, amount: amount})
		}
	}
	if !slices.Equal(given, limits) {
		return nil, fmt.Errorf("its annotation %s=%s gives the containers %d, and their limits are %d", name,
			text.Quote(value), given, limits)
	}
	return parts, nil
}

// decodeIndex reads legacy.AnnotationV1Index, the GPU of all containers.
func (r *reader) decodeIndex(value string, limits []int64) ([]part, error) {
	index, err := number(value)
	if err == nil {
		err = r.gpu(index)
	}
	if err != nil {
		return nil, fmt.Errorf("its annotation %s=%s: %w", ack.AnnotationV1Index, text.Quote(value), err)
	}
	return onGPU(index, limits), nil
}

// decodeTopology reads legacy.AnnotationTopology, the GPUs of each container.
func (r *reader) decodeTopology(value string, limits []int64) ([]int, error) {
	var said struct {
		Allocated map[string][]string `json:"allocatedGPUs"`
	}
	if err := json.Unmarshal([]byte(value), &said); err != nil {
		return nil, fmt.Errorf("its annotation of whole GPUs %s cannot be read: %w", text.Quote(value), err)
	}
	var all []string
	for i, wanted := range limits {
		gpus := said.Allocated[strconv.Itoa(i)]
		if int64(len(gpus)) != wanted {
			return nil, fmt.Errorf("its annotation of whole GPUs %s gives container %d %d GPUs, and its limit is %d",
				text.Quote(value), i, len(gpus), wanted)
		}
		all = append(all, gpus...)
	}
	return r.indices(value, all)
}

// decodeGroup reads legacy.AnnotationGroup, the GPUs of the pod.
func (r *reader) decodeGroup(value string, wanted int64) ([]int, error) {
	gpus := strings.Split(value, ",")
	if int64(len(gpus)) != wanted {
		return nil, fmt.Errorf("its annotation of whole GPUs %s names %d GPUs, and its limits are %d", text.Quote(value),
			len(gpus), wanted)
	}
	return r.indices(value, gpus)
}

// indices reads different GPUs, which have to be there.
func (r *reader) indices(value string, gpus []string) ([]int, error) {
	var out []int
	for _, g := range gpus {
		index, err := number(g)
		if err == nil {
			err = r.gpu(index)
		}
		if err != nil {
			return nil, fmt.Errorf("its annotation of whole GPUs %s: %w", text.Quote(value), err)
		}
		if slices.Contains(out, index) {
			return nil, fmt.Errorf("its annotation of whole GPUs %s names GPU %d twice", text.Quote(value), index)
		}
		out = append(out, index)
	}
	return out, nil
}

// number reads an index as its writers write it.
func number(value string) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || strconv.Itoa(n) != value {
		return 0, fmt.Errorf("%s is not an index", text.Quote(value))
	}
	return n, nil
}

// gpuOfDevice finds the GPU of a device of NVIDIA's device plugin. Its ID is the
// GPU's UUID, with "::" and a number behind it where the plugin shares GPUs (facts:
// k8s-device-plugin, AnnotatedID). A MIG device counts as all of the GPU that it is part of, so that no
// other instance of that GPU is handed out beside a device plugin's; one that is not there any more
// is of none of the GPUs.
func (r *reader) gpuOfDevice(id string) (index int, offered bool, err error) {
	uuid, _, _ := strings.Cut(id, "::")
	if strings.HasPrefix(uuid, "MIG-") {
		index, offered = r.node.Instances[uuid]
		return index, offered, nil
	}
	i := slices.IndexFunc(r.node.GPUs, func(g gpu.GPU) bool { return g.UUID == uuid })
	if uuid == "" || i < 0 {
		return 0, false, fmt.Errorf("the kubelet gave it device %s, and no GPU of the node has that UUID", text.Quote(id))
	}
	return r.node.GPUs[i].Index, true, nil
}
