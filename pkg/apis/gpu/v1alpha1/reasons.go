// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Reasons of the Events that the driver writes: on nodes, except where it is said
// otherwise. They are an API: scripts and alerts select by them, so none is renamed.
// docs/troubleshooting.md says of each what to do.
const (
	// ReasonAmountsNotOurs (on: node (controller)): Somebody else wrote the node's
	// aliyun.com/* amounts.
	ReasonAmountsNotOurs = "GPUAmountsNotOurs"
	// ReasonAmountsNotShown (on: node (controller)): The node shows no amounts because
	// unconverted pods wait for a node.
	ReasonAmountsNotShown = "GPUAmountsNotShown"
	// ReasonCPUsNotGiven (on: pod (controller)): The pod asks for CPUs of its own, and was
	// given none.
	ReasonCPUsNotGiven = "GPUCPUsNotGiven"
	// ReasonCardTaken (on: pod): Others hold the GPU that the pod was allocated.
	ReasonCardTaken = "GPUCardTaken"
	// ReasonCardsOfPodsUnknown (on: node): It is unknown which GPUs a pod of a device
	// plugin has; its limits count on every GPU.
	ReasonCardsOfPodsUnknown = "GPUCardsOfPodsUnknown"
	// ReasonClaimTemplateNotMade (on: pod): The controller could not create the claim
	// template of a legacy pod.
	ReasonClaimTemplateNotMade = "GPUClaimTemplateNotMade"
	// ReasonClaimTemplateNotOurs (on: pod): Somebody else created a template of that
	// name, for something else.
	ReasonClaimTemplateNotOurs = "GPUClaimTemplateNotOurs"
	// ReasonClaimTemplateUnknown (on: pod): This version cannot read the template's
	// name.
	ReasonClaimTemplateUnknown = "GPUClaimTemplateUnknown"
	// ReasonClaimWaiting (on: pod): No device serves the claim at the moment, and why.
	ReasonClaimWaiting = "GPUClaimWaiting"
	// ReasonDeviceClassNotOurs (on: DeviceClass (controller)): A class has a name of the
	// catalogue and selects something else.
	ReasonDeviceClassNotOurs = "GPUDeviceClassNotOurs"
	// ReasonDirectoryLost (on: node): A directory or socket shared with the kubelet or
	// the runtime is gone; the plugin restarts.
	ReasonDirectoryLost = "GPUDirectoryLost"
	// ReasonDirectoryWrong (on: node): A configured directory is not the host's, or is
	// not writable; claims fail.
	ReasonDirectoryWrong = "GPUDirectoryWrong"
	// ReasonDriverReplaced (on: node): The NVIDIA driver was upgraded, removed or
	// reinstalled; the plugin restarts.
	ReasonDriverReplaced = "GPUDriverReplaced"
	// ReasonDriverUnavailable (on: node): NVML cannot be opened, or the GPUs cannot be
	// read in time. Retried every 10 s.
	ReasonDriverUnavailable = "GPUDriverUnavailable"
	// ReasonEvicted (on: pod (plugin)): The pod was evicted for its use of GPUs, as the
	// setting AUDIT_EVICT says.
	ReasonEvicted = "GPUEvicted"
	// ReasonFeatureDisabled (on: node): The API server drops fields that the mode needs.
	ReasonFeatureDisabled = "GPUFeatureDisabled"
	// ReasonGangNotHeld (on: pod (controller)): The pod names a gang, and is not scheduled
	// together with it.
	ReasonGangNotHeld = "GPUGangNotHeld"
	// ReasonHealthy (on: node): All GPUs that were unhealthy are healthy again.
	ReasonHealthy = "GPUHealthy"
	// ReasonHeldByGoneClaim (on: node): GPUs are in use although their claims are gone.
	ReasonHeldByGoneClaim = "GPUHeldByGoneClaim"
	// ReasonHeldWithoutClaim (on: node): Pods of a device plugin hold these parts of
	// GPUs.
	ReasonHeldWithoutClaim = "GPUHeldWithoutClaim"
	// ReasonInvalidLabel (on: node): A node label has an unknown value.
	ReasonInvalidLabel = "GPUInvalidLabel"
	// ReasonIsolationDisabled (on: pod (plugin), node): The limits of these requests, or
	// of the node, are lifted.
	ReasonIsolationDisabled = "GPUIsolationDisabled"
	// ReasonIsolationKept (on: pod (plugin)): The limits apply although the pod or its
	// claim would lift them.
	ReasonIsolationKept = "GPUIsolationKept"
	// ReasonIsolationUnavailable (on: node): Shares cannot be limited on these GPUs now;
	// they take no new claims.
	ReasonIsolationUnavailable = "GPUIsolationUnavailable"
	// ReasonLabelsNotOurs (on: node (controller)): Somebody else wrote an
	// aliyun.accelerator/* label.
	ReasonLabelsNotOurs = "GPULabelsNotOurs"
	// ReasonLeftOut (on: node): These GPUs are not offered: MIG mode, lost, unreadable,
	// or no answer.
	ReasonLeftOut = "GPULeftOut"
	// ReasonLinksInconsistent (on: node): Two GPUs contradict each other about their
	// NVLink lanes; the smaller number counts.
	ReasonLinksInconsistent = "GPULinksInconsistent"
	// ReasonMPSSupervisorFailed (on: node (supervisor)): gpu-mps-supervisor cannot run
	// here; modes that need it offer nothing.
	ReasonMPSSupervisorFailed = "GPUMPSSupervisorFailed"
	// ReasonModeNotServed (on: node): The node does not serve the mode of its label.
	ReasonModeNotServed = "GPUModeNotServed"
	// ReasonModeServed (on: node): The GPUs are published in this mode.
	ReasonModeServed = "GPUModeServed"
	// ReasonModeSwitchWaiting (on: node): The node changes its mode, or its isolation,
	// when the named pods have ended.
	ReasonModeSwitchWaiting = "GPUModeSwitchWaiting"
	// ReasonModelNameTaken (on: DeviceClass (controller)): Two models differ in upper
	// and lower case only; the first has the class.
	ReasonModelNameTaken = "GPUModelNameTaken"
	// ReasonModelsDiffer (on: node (controller)): The node has GPUs of several models or
	// sizes; its labels name the first GPU.
	ReasonModelsDiffer = "GPUModelsDiffer"
	// ReasonNVLinkDegraded (on: node): GPUs have fewer NVLink lanes than others of their
	// model; mode topology uses them last.
	ReasonNVLinkDegraded = "GPUNVLinkDegraded"
	// ReasonNotEvicted (on: pod (plugin)): The pod is to be evicted for its use of GPUs, and
	// cannot be. Retried.
	ReasonNotEvicted = "GPUNotEvicted"
	// ReasonNotPreempted (on: pod (controller)): Pods of lower priority cannot be evicted for
	// this pod, or that did not help it.
	ReasonNotPreempted = "GPUNotPreempted"
	// ReasonPodsUnread (on: node): The plugin cannot read the node's pods, so it
	// publishes nothing, or nothing more than before.
	ReasonPodsUnread = "GPUPodsUnread"
	// ReasonPreempted (on: pod (controller)): The pod was evicted to free GPUs for one of
	// higher priority.
	ReasonPreempted = "GPUPreempted"
	// ReasonPreempting (on: pod (controller)): Pods of lower priority are evicted for this
	// pod.
	ReasonPreempting = "GPUPreempting"
	// ReasonPublishFailed (on: node): The API server refused the ResourceSlice, or could
	// not be reached.
	ReasonPublishFailed = "GPUPublishFailed"
	// ReasonQuotaExceeded (on: pod (controller)): A ResourceQuota of the namespace keeps the
	// pod's claim from being created.
	ReasonQuotaExceeded = "GPUQuotaExceeded"
	// ReasonShareExceeded (on: pod (plugin)): A container holds more of a GPU's memory than
	// it was granted.
	ReasonShareExceeded = "GPUShareExceeded"
	// ReasonStateDamaged (on: node): The plugin could not read a state file and set it
	// aside.
	ReasonStateDamaged = "GPUStateDamaged"
	// ReasonStateNotRecovered (on: node): CDI specs of claims could not be reconciled
	// with the node's GPUs and driver files.
	ReasonStateNotRecovered = "GPUStateNotRecovered"
	// ReasonStateNotRepaired (on: node): Removed or damaged state files or CDI specs
	// could not all be restored. Retried every 10 s.
	ReasonStateNotRepaired = "GPUStateNotRepaired"
	// ReasonUnhealthy (on: node): These GPUs are unhealthy; they take no new claims.
	ReasonUnhealthy = "GPUUnhealthy"
	// ReasonUsedBesideMPS (on: pod (plugin)): A process is on a GPU beside MPS, where nothing
	// limits it.
	ReasonUsedBesideMPS = "GPUUsedBesideMPS"
	// ReasonUsedByNoPod (on: node): Processes that belong to no pod are on GPUs of the node.
	ReasonUsedByNoPod = "GPUUsedByNoPod"
	// ReasonUsedWithoutGrant (on: pod (plugin)): A container is on a GPU of which no claim
	// grants it anything.
	ReasonUsedWithoutGrant = "GPUUsedWithoutGrant"
)

// Reasons lists all of them, in order.
func Reasons() []string {
	return []string{
		ReasonAmountsNotOurs,
		ReasonAmountsNotShown,
		ReasonCPUsNotGiven,
		ReasonCardTaken,
		ReasonCardsOfPodsUnknown,
		ReasonClaimTemplateNotMade,
		ReasonClaimTemplateNotOurs,
		ReasonClaimTemplateUnknown,
		ReasonClaimWaiting,
		ReasonDeviceClassNotOurs,
		ReasonDirectoryLost,
		ReasonDirectoryWrong,
		ReasonDriverReplaced,
		ReasonDriverUnavailable,
		ReasonEvicted,
		ReasonFeatureDisabled,
		ReasonGangNotHeld,
		ReasonHealthy,
		ReasonHeldByGoneClaim,
		ReasonHeldWithoutClaim,
		ReasonInvalidLabel,
		ReasonIsolationDisabled,
		ReasonIsolationKept,
		ReasonIsolationUnavailable,
		ReasonLabelsNotOurs,
		ReasonLeftOut,
		ReasonLinksInconsistent,
		ReasonMPSSupervisorFailed,
		ReasonModeNotServed,
		ReasonModeServed,
		ReasonModeSwitchWaiting,
		ReasonModelNameTaken,
		ReasonModelsDiffer,
		ReasonNVLinkDegraded,
		ReasonNotEvicted,
		ReasonNotPreempted,
		ReasonPodsUnread,
		ReasonPreempted,
		ReasonPreempting,
		ReasonPublishFailed,
		ReasonQuotaExceeded,
		ReasonShareExceeded,
		ReasonStateDamaged,
		ReasonStateNotRecovered,
		ReasonStateNotRepaired,
		ReasonUnhealthy,
		ReasonUsedBesideMPS,
		ReasonUsedByNoPod,
		ReasonUsedWithoutGrant,
	}
}
