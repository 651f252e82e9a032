// SPDX-License-Identifier: Apache-2.0

package why

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/explain"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// Device is what a claim has.
type Device struct {
	// Claim and Request are by what it is had, Node where.
	Claim   string `json:"claim"`
	Request string `json:"request"`
	Node    string `json:"node"`
	// GPUs are its GPUs, Amount how much of each: all, where nothing is said.
	GPUs   []string `json:"gpus"`
	Amount string   `json:"amount,omitempty"`
	// Mode is the mode that it was allocated in, Isolation what keeps its users apart.
	Mode      string `json:"mode,omitempty"`
	Isolation string `json:"isolation,omitempty"`
	// Uses is what its processes use, of each GPU; empty where that is not known, or is counted together with another
	// device's, which says so.
	Uses []string `json:"uses,omitempty"`
	// Wrong says what is not well.
	Wrong []string `json:"wrong,omitempty"`

	// indices are those of its GPUs, as far as the driver has said them.
	indices []int
}

// onNode answers for a pod that is on a node.
func (a *Answer) onNode(in Input, what string) {
	pod := in.Pod
	a.has(in, in.PodClaims)
	for i := range a.Has {
		if d := &a.Has[i]; unused(pod, d) {
			d.Wrong = append(d.Wrong, "no container sees it: name the claim in resources.claims of those that are to use it")
		}
	}
	state := "runs"
	switch {
	case pod.DeletionTimestamp != nil:
		state = "is being deleted"
	case slices.ContainsFunc(in.PodClaims, unallocated):
		a.Headline = fmt.Sprintf("%s cannot start on node %s: its claims are not allocated. The scheduler allocates them, "+
			"and does not look at a pod whose nodeName is set", what, pod.Spec.NodeName)
		a.Help = append(a.Help, "the nodeSelector kubernetes.io/hostname: "+pod.Spec.NodeName+" instead of nodeName")
		return
	case pod.Status.Phase == corev1.PodPending:
		state = "is about to start" + notStarted(pod)
		if in.NotPrepared != "" {
			state = "does not start yet" + notStarted(pod)
		}
	}
	a.Headline = fmt.Sprintf("%s %s on node %s", what, state, pod.Spec.NodeName)
	if len(a.Has) == 0 {
		a.Headline += ", and has no GPUs of this driver by a claim"
	}
	if in.NotPrepared != "" {
		a.Said = append(a.Said, "The kubelet says: "+text.Bound(in.NotPrepared, messageMost))
	}
	for _, missing := range in.Missing {
		a.Notes = append(a.Notes, "Of its claims, "+missing+".")
	}
}

func unallocated(claim *resourceapi.ResourceClaim) bool { return claim.Status.Allocation == nil }

// notStarted says why containers have not started.
func notStarted(pod *corev1.Pod) string {
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if waiting := status.State.Waiting; waiting != nil {
			why := " (container " + status.Name + ": " + waiting.Reason
			if waiting.Message != "" {
				why += ": " + text.Bound(waiting.Message, messageMost)
			}
			return why + ")"
		}
	}
	return ""
}

// has lists what claims have.
func (a *Answer) has(in Input, claims []*resourceapi.ResourceClaim) {
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.Driver == v1alpha1.DriverName {
				a.Has = append(a.Has, deviceOf(in, claim, result))
			}
		}
	}
	if in.Used != nil {
		whose := "the pod"
		if in.Claim != nil {
			whose = "its pods"
		}
		a.fillUses(in.Used, whose)
	}
}

// fillUses says what is used of each device's GPUs. It is known by claim and GPU alone: the first of several devices
// that a claim has on a GPU, as one for each container, says it of all, as does that of several claims by which a
// container has the GPU. whose are the pods of which it is known.
func (a *Answer) fillUses(used map[ClaimGPU]Use, whose string) {
	told := map[ClaimGPU]bool{}
	for i := range a.Has {
		d := &a.Has[i]
		for _, gpu := range d.indices {
			if unknown(used, d.Claim, gpu) {
				continue
			}
			var sum Use
			var with []string
			again := false
			for of, use := range used {
				if use == (Use{}) || of.GPU != gpu || !of.names(d.Claim) {
					continue
				}
				if told[of] {
					again = true
					continue
				}
				told[of] = true
				sum.MemoryBytes, sum.Processes = sum.MemoryBytes+use.MemoryBytes, sum.Processes+use.Processes
				with = append(with, d.countedWith(slices.Concat(a.Has[:i], a.Has[i+1:]), of)...)
				with = append(with, a.notAsked(of)...)
			}
			if again && sum == (Use{}) {
				continue
			}
			slices.Sort(with)
			d.Uses = append(d.Uses, sum.text(whose, gpu, len(d.indices), slices.Compact(with)))
		}
	}
}

// unknown says that it is not known how much the claim's pods use of the GPU.
func unknown(used map[ClaimGPU]Use, claim string, gpu int) bool {
	for of, use := range used {
		if use.Unknown && of.GPU == gpu && of.names(claim) {
			return true
		}
	}
	return false
}

// names reports whether the claim is that by which the GPU is used, or one of several.
func (c ClaimGPU) names(claim string) bool {
	return slices.Contains(strings.Split(c.Claim, ","), claim)
}

// countedWith are the others of which what is used is counted together with that of the device.
func (d *Device) countedWith(others []Device, of ClaimGPU) []string {
	var with []string
	for _, o := range others {
		switch {
		case !of.names(o.Claim) || !slices.Contains(o.indices, of.GPU):
		case o.Claim == d.Claim:
			with = append(with, "request "+o.Request)
		default:
			with = append(with, "claim "+o.Claim+", request "+o.Request)
		}
	}
	return with
}

// notAsked are the other claims by which the GPU is used, of which the answer has no device there.
func (a *Answer) notAsked(of ClaimGPU) []string {
	var with []string
	for _, claim := range strings.Split(of.Claim, ",") {
		if !slices.ContainsFunc(a.Has, func(d Device) bool {
			return d.Claim == claim && slices.Contains(d.indices, of.GPU)
		}) {
			with = append(with, "claim "+claim)
		}
	}
	return with
}

// deviceOf is what a claim has by one result: as the driver says it in the claim's status, or,
// before it has, as it was allocated.
func deviceOf(in Input, claim *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult) Device {
	node, _ := strings.CutSuffix(result.Pool, v1alpha1.PoolName(""))
	d := Device{Claim: claim.Name, Request: result.Request, Node: node}
	if memory, ok := result.ConsumedCapacity[v1alpha1.CapMemory]; ok {
		d.Amount = explain.Written(v1alpha1.CapMemory, memory) + " of memory"
	}
	if cores, ok := result.ConsumedCapacity[v1alpha1.CapCores]; ok && !cores.IsZero() {
		d.Amount += ", " + cores.String() + " % of compute"
	}
	if ptr.Deref(result.AdminAccess, false) {
		d.Amount = "access for an administrator, and nothing of it"
	}
	if d.readStatus(claim, result) {
		return d
	}
	// With CLAIM_STATUS=false it never says so; but no container runs before it has prepared it.
	if in.Pod != nil && in.Pod.Status.Phase != corev1.PodRunning {
		d.Wrong = append(d.Wrong, "the driver has not said in the claim's status that it prepared it")
	}
	_, m, err := devices.ParseDeviceName(result.Device)
	if err == nil {
		d.Mode = string(m)
	}
	d.GPUs = []string{result.Device}
	for _, slice := range in.Slices {
		for _, offered := range slice.Spec.Devices {
			if slice.Spec.Driver == result.Driver && slice.Spec.Pool.Name == result.Pool && offered.Name == result.Device {
				d.Isolation = isolation(ptr.Deref(offered.Attributes[v1alpha1.AttrIsolation].StringValue, ""),
					ptr.Deref(offered.Attributes[v1alpha1.AttrIsolationLevel].StringValue, ""))
			}
		}
	}
	return d
}

// readStatus reads what the driver says of the device; false where it says nothing.
func (d *Device) readStatus(claim *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult) bool {
	for _, status := range claim.Status.Devices {
		if status.Driver != result.Driver || status.Pool != result.Pool || status.Device != result.Device ||
			ptr.Deref(status.ShareID, "") != string(ptr.Deref(result.ShareID, "")) || status.Data == nil {
			continue
		}
		var data v1alpha1.DeviceStatus
		if err := json.Unmarshal(status.Data.Raw, &data); err != nil {
			return false
		}
		d.Mode, d.Isolation = data.Mode, isolation(data.Isolation, data.IsolationLevel)
		for _, gpu := range data.GPUs {
			name := fmt.Sprintf("gpu-%d (%s, %s)", gpu.Index, gpu.Model, gpu.UUID)
			if gpu.MIG != nil {
				name = fmt.Sprintf("MIG instance %s of gpu-%d (%s, %s)", gpu.MIG.Profile, gpu.Index, gpu.Model, gpu.UUID)
			}
			d.GPUs, d.indices = append(d.GPUs, name), append(d.indices, gpu.Index)
		}
		for _, condition := range status.Conditions {
			if condition.Status == metav1.ConditionFalse {
				d.Wrong = append(d.Wrong, fmt.Sprintf("not %s: %s", strings.ToLower(condition.Type),
					text.Bound(condition.Message, messageMost)))
			}
		}
		return true
	}
	return false
}

// text is the use of a GPU in words, of so many that the device has, counted together with others.
func (u Use) text(whose string, index, of int, with []string) string {
	text := "nothing at the moment: no process of " + whose + " is on the GPU"
	if u.Processes > 0 || u.MemoryBytes > 0 {
		text = fmt.Sprintf("%d MiB of memory, by %s", u.MemoryBytes>>20, number(u.Processes, "process"))
	}
	if len(with) > 0 {
		text += ", counted together with " + strings.Join(with, "; ")
	}
	if of > 1 {
		text = fmt.Sprintf("gpu-%d: %s", index, text)
	}
	return text
}

func isolation(by, level string) string {
	switch said := mode.Level(level).Meaning(); {
	case by == "":
		return ""
	case said != "":
		return by + " (level " + level + ": " + said + ")"
	default:
		return by
	}
}
