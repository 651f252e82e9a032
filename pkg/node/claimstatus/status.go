// SPDX-License-Identifier: Apache-2.0

// Package claimstatus writes into the status of prepared claims which GPUs they have, how
// much of them, and whether they are well: status.devices, of which each driver has its own
// entries. Nothing waits for it: it is written after the claim is prepared, at a rate of its
// own, and nothing of the driver reads it.
package claimstatus

import (
	"encoding/json"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// messageMost is how long the message of a condition is at most, in bytes.
const messageMost = 1024

// Facts are what is to be known of a prepared claim beside its grants.
type Facts struct {
	// Machine is the node's, nil while it has not been read: it says which indices the GPUs have now.
	Machine *gpu.Machine
	// NotReady says why a container that starts now would lack something; empty if none
	// would.
	NotReady string
	// Unhealthy says, by device, what is wrong with it; nothing is with the others.
	Unhealthy map[string]string
	// TimeSlices are those of GPUs with another one than the driver's default, by UUID.
	TimeSlices map[string]v1alpha1.TimeSlice
	// Level is the isolation level of each grant; empty where it is not known.
	Level func(claim.Grant) string
}

// Of are the entries for the grants of a claim: one for each allocation result, in order.
// Their conditions have no times.
func Of(grants []claim.Grant, f Facts) ([]resourceapi.AllocatedDeviceStatus, error) {
	results := claim.Results(claim.Current(grants, f.Machine))
	out := make([]resourceapi.AllocatedDeviceStatus, 0, len(results))
	for _, result := range results {
		data, err := json.Marshal(dataOf(result, f))
		if err != nil {
			return nil, fmt.Errorf("status of device %s: %w", result[0].Device, err)
		}
		g := result[0]
		entry := resourceapi.AllocatedDeviceStatus{
			Driver: v1alpha1.DriverName, Pool: g.Pool, Device: g.Device, Data: &runtime.RawExtension{Raw: data},
			Conditions: []metav1.Condition{
				condition(v1alpha1.ConditionReady, f.NotReady, v1alpha1.ConditionReasonPrepared,
					v1alpha1.ConditionReasonNotStartable),
				condition(v1alpha1.ConditionHealthy, f.Unhealthy[g.Device], v1alpha1.ConditionReasonHealthy,
					v1alpha1.ConditionReasonUnhealthy),
			},
		}
		if g.ShareID != "" {
			entry.ShareID = ptr.To(string(g.ShareID))
		}
		out = append(out, entry)
	}
	return out, nil
}

// dataOf is what was granted by one allocation result.
func dataOf(result []claim.Grant, f Facts) v1alpha1.DeviceStatus {
	g := result[0]
	data := v1alpha1.DeviceStatus{Mode: string(g.Mode), CoresPercent: g.CoresPercent, Isolation: g.Isolation,
		Admin: g.Admin, TimeSlice: f.TimeSlices[g.GPU.UUID]}
	if f.Level != nil {
		data.IsolationLevel = f.Level(g)
	}
	for _, of := range result {
		gpu := v1alpha1.DeviceStatusGPU{Index: of.GPU.Index, UUID: of.GPU.UUID, Model: of.GPU.Model}
		if i := of.GPU.MIG; i != nil {
			gpu.MIG = &v1alpha1.DeviceStatusMIG{Profile: i.Profile, ParentUUID: i.ParentUUID, PlacementStart: i.Start,
				PlacementSize: i.Size}
		}
		data.GPUs = append(data.GPUs, gpu)
		switch {
		case g.Admin:
		case g.Mode.Shared():
			data.MemoryMiB += of.CapMiB()
		default:
			data.MemoryMiB += of.GPU.MemoryMiB
		}
	}
	return data
}

func condition(kind, wrong, good, bad string) metav1.Condition {
	if wrong == "" {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: good}
	}
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: bad,
		Message: text.Bound(wrong, messageMost)}
}

// withTimes gives the conditions the time since when they are as they are: that of the same
// entry before, or now.
func withTimes(entries, before []resourceapi.AllocatedDeviceStatus,
	now metav1.Time) []resourceapi.AllocatedDeviceStatus {
	out := make([]resourceapi.AllocatedDeviceStatus, 0, len(entries))
	for _, e := range entries {
		e = *e.DeepCopy()
		for i := range e.Conditions {
			e.Conditions[i].LastTransitionTime = since(e, e.Conditions[i], before, now)
		}
		out = append(out, e)
	}
	return out
}

func since(e resourceapi.AllocatedDeviceStatus, c metav1.Condition, before []resourceapi.AllocatedDeviceStatus,
	now metav1.Time) metav1.Time {
	for _, b := range before {
		if !sameDevice(e, b) {
			continue
		}
		for _, earlier := range b.Conditions {
			if earlier.Type == c.Type && earlier.Status == c.Status && !earlier.LastTransitionTime.IsZero() {
				return earlier.LastTransitionTime
			}
		}
	}
	return now
}

func sameDevice(a, b resourceapi.AllocatedDeviceStatus) bool {
	return a.Driver == b.Driver && a.Pool == b.Pool && a.Device == b.Device && ptr.Deref(a.ShareID, "") ==
		ptr.Deref(b.ShareID, "")
}

// ours are the entries of this driver.
func ours(entries []resourceapi.AllocatedDeviceStatus) []resourceapi.AllocatedDeviceStatus {
	var out []resourceapi.AllocatedDeviceStatus
	for _, e := range entries {
		if e.Driver == v1alpha1.DriverName {
			out = append(out, e)
		}
	}
	return out
}
