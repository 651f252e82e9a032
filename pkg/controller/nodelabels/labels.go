// SPDX-License-Identifier: Apache-2.0

package nodelabels

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
)

// For returns the labels of a node with these GPUs, ordered by index; there has to
// be one. The first GPU names model and memory of all, as ACK's tools take both
// from GPU 0.
func For(nodeGPUs []view.GPU) map[string]string {
	return map[string]string{
		ack.NodeLabelModel:  deviceclasses.LabelValue(nodeGPUs[0].Model),
		ack.NodeLabelMemory: fmt.Sprintf("%dMiB", nodeGPUs[0].MemoryMiB),
		ack.NodeLabelCount:  strconv.Itoa(len(nodeGPUs)),
	}
}

// kind is what the labels can name one of.
type kind struct {
	model     string
	memoryMiB int64
}

// Mixed says in words which GPUs a node has, if the labels do not say it of all of
// them; it is empty where all GPUs are alike.
func Mixed(nodeGPUs []view.GPU) string {
	var kinds []kind
	indices := map[kind][]string{}
	for _, g := range nodeGPUs {
		k := kind{g.Model, g.MemoryMiB}
		if indices[k] == nil {
			kinds = append(kinds, k)
		}
		indices[k] = append(indices[k], strconv.FormatInt(g.Index, 10))
	}
	if len(kinds) < 2 {
		return ""
	}
	var parts []string
	for _, k := range kinds {
		parts = append(parts, fmt.Sprintf("%s with %d MiB (%s)", k.model, k.memoryMiB, strings.Join(indices[k], ", ")))
	}
	return strings.Join(parts, "; ")
}
