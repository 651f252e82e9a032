// SPDX-License-Identifier: Apache-2.0

package legacy

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// offered are GPUs of these sizes in MiB, each in each of the modes.
func offered(sizes []int64, modes ...mode.Mode) []view.GPU {
	var out []view.GPU
	for i, size := range sizes {
		for _, m := range modes {
			out = append(out, view.GPU{Index: int64(i), MemoryMiB: size, Mode: m})
		}
	}
	return out
}

func TestAmountsOfTheModes(t *testing.T) {
	v100s := []int64{16130, 16130, 16130, 16130}
	for name, test := range map[string]struct {
		offered                    []view.GPU
		memory, count, cores, gpus int64
	}{
		"no GPUs":   {nil, 0, 0, 0, 0},
		"share":     {offered(v100s, mode.Share), 60, 4, 0, 0},
		"cgpu":      {offered(v100s, mode.CGPU), 60, 4, 0, 0},
		"mps":       {offered(v100s, mode.MPS), 60, 4, 0, 0},
		"core_mem":  {offered(v100s, mode.CoreMem), 60, 4, 400, 0},
		"exclusive": {offered(v100s, mode.Exclusive), 0, 0, 0, 0},
		"topology":  {offered([]int64{32510, 32510}, mode.Topology), 0, 0, 0, 2},
		"dynamic":   {offered(v100s, mode.Dynamic.ServedModes()...), 60, 4, 400, 0},
		"mixed":     {offered([]int64{23028, 23028, 15360, 15360}, mode.Share), 22 + 22 + 15 + 15, 4, 0, 0},
		// Rounded down GPU by GPU: together they have 3 GiB and more.
		"rounding": {offered([]int64{1600, 1600}, mode.Share), 2, 2, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			want := corev1.ResourceList{ack.ResourceMemory: quantity(test.memory), ack.ResourceCount: quantity(test.count),
				ack.ResourceCores: quantity(test.cores), ack.ResourceGPUs: quantity(test.gpus)}
			expect.Equal(t, want, Of(test.offered), "amounts")
		})
	}
}

// wrote says that a manager wrote resources in the parts of the status.
func wrote(manager string, parts []string, names ...corev1.ResourceName) metav1.ManagedFieldsEntry {
	status := ""
	for i, part := range parts {
		if i > 0 {
			status += ","
		}
		status += fmt.Sprintf(`"f:%s":{".":{}`, part)
		for _, name := range names {
			status += fmt.Sprintf(`,"f:%s":{}`, name)
		}
		status += "}"
	}
	return metav1.ManagedFieldsEntry{Manager: manager, FieldsV1: metav1.NewFieldsV1(`{"f:status":{` + status + `}}`)}
}

func list(amounts map[corev1.ResourceName]string) corev1.ResourceList {
	out := corev1.ResourceList{"cpu": resource.MustParse("2")}
	for name, amount := range amounts {
		out[name] = resource.MustParse(amount)
	}
	return out
}

func TestWhoWroteTheAmounts(t *testing.T) {
	both := []string{"capacity", "allocatable"}
	memory := func(capacity, allocatable string) corev1.NodeStatus {
		return corev1.NodeStatus{
			Capacity:    list(map[corev1.ResourceName]string{ack.ResourceMemory: capacity}),
			Allocatable: list(map[corev1.ResourceName]string{ack.ResourceMemory: allocatable}),
		}
	}
	for name, test := range map[string]struct {
		fields   []metav1.ManagedFieldsEntry
		status   corev1.NodeStatus
		foreign  []string
		offered  []corev1.ResourceName
		ours     []corev1.ResourceName
		anyOther bool
	}{
		"nothing there": {status: corev1.NodeStatus{}},
		"ours": {
			[]metav1.ManagedFieldsEntry{wrote("kubelet", both, "cpu"), wrote(v1alpha1.ControllerName, both, ack.ResourceMemory)},
			memory("60", "60"),
			nil, nil, []corev1.ResourceName{ack.ResourceMemory}, false,
		},
		"a device plugin's": {
			[]metav1.ManagedFieldsEntry{wrote("kubelet", both, "cpu", ack.ResourceMemory)}, memory("60", "60"),
			[]string{"aliyun.com/gpu-mem is 60, written by kubelet"}, []corev1.ResourceName{ack.ResourceMemory}, nil, true,
		},
		"the same from both": {
			[]metav1.ManagedFieldsEntry{wrote(v1alpha1.ControllerName, both, ack.ResourceMemory),
				wrote("kubelet", both, ack.ResourceMemory)}, memory("60", "60"),
			[]string{"aliyun.com/gpu-mem is 60, written by kubelet"}, []corev1.ResourceName{ack.ResourceMemory}, nil, true,
		},
		"ours, zeroed by a kubelet": {
			[]metav1.ManagedFieldsEntry{wrote("kubelet", both, ack.ResourceMemory)}, memory("0", "0"), nil, nil, nil, true,
		},
		"a device plugin that is dead, but not forgotten": {
			[]metav1.ManagedFieldsEntry{wrote("kubelet", both, ack.ResourceMemory)}, memory("60", "0"),
			[]string{"aliyun.com/gpu-mem is 60, written by kubelet"}, nil, nil, true,
		},
		"nobody is known": {
			nil, memory("60", "60"), []string{"aliyun.com/gpu-mem is 60, written by an unknown writer"},
			[]corev1.ResourceName{ack.ResourceMemory}, nil, false,
		},
		"unreadable": {
			[]metav1.ManagedFieldsEntry{wrote(v1alpha1.ControllerName, both, ack.ResourceMemory),
				{Manager: "odd", FieldsV1: metav1.NewFieldsV1("[")}}, memory("60", "60"),
			[]string{"aliyun.com/gpu-mem is 60, written by an unknown writer"}, []corev1.ResourceName{ack.ResourceMemory}, nil,
			false,
		},
		// Left behind by ACK's device plugin, which the kubelet does not clear away.
		"the number of GPUs": {
			[]metav1.ManagedFieldsEntry{wrote("gpushare-device-plugin", both, ack.ResourceCount)},
			corev1.NodeStatus{Capacity: list(map[corev1.ResourceName]string{ack.ResourceCount: "4"}),
				Allocatable: list(map[corev1.ResourceName]string{ack.ResourceCount: "4"})},
			nil, nil, nil, true,
		},
		"whole GPUs": {
			[]metav1.ManagedFieldsEntry{wrote("kubelet", both, ack.ResourceGPUs),
				wrote(v1alpha1.ControllerName, both, ack.ResourceMemory, ack.ResourceCount)},
			corev1.NodeStatus{Allocatable: list(map[corev1.ResourceName]string{ack.ResourceGPUs: "8", ack.ResourceMemory: "60",
				ack.ResourceCount: "4"})},
			[]string{"aliyun.com/gpu is 8, written by kubelet"}, []corev1.ResourceName{ack.ResourceGPUs},
			[]corev1.ResourceName{ack.ResourceMemory, ack.ResourceCount}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			owners := ReadOwners(test.fields)
			var foreign []string
			for _, f := range owners.Foreign(test.status) {
				foreign = append(foreign, f.String())
			}
			expect.Equal(t, test.foreign, foreign, "foreign")
			expect.Equal(t, test.offered, owners.Offered(test.status.Allocatable), "offered by others")
			inCapacity, inAllocatable := owners.OursAlone()
			expect.Equal(t, test.ours, inCapacity, "ours in capacity")
			expect.Equal(t, test.ours, inAllocatable, "ours in allocatable")
			expect.Equal(t, test.anyOther, owners.Others(), "others")
		})
	}
}
