// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Reasons of the Events that the driver writes: on nodes, except where it is said
// otherwise. They are an API: scripts and alerts select by them, so none is renamed.
// The comments are the table of docs/troubleshooting.md: `make docs` writes it.
const (
	// ReasonAmountsNotOurs (on: node (controller)): Somebody else wrote the node's `aliyun.com/*` amounts.
	//
	// To do: Remove the device plugin from the node: docs/legacy-tools.md.
	ReasonAmountsNotOurs = "GPUAmountsNotOurs"
	// ReasonAmountsNotShown (on: node (controller)): The node shows no amounts because unconverted pods wait
	// for a node.
	//
	// To do: Delete and recreate the named pods: docs/legacy-tools.md.
	ReasonAmountsNotShown = "GPUAmountsNotShown"
	// ReasonCPUsNotGiven (on: pod (controller)): The pod asks for CPUs of its own, and was given none.
	//
	// To do: The message says why: dra-driver-cpu (docs/legacy.md#cpus-of-a-containers-own) is not installed,
	// or a CPU limit is no whole number.
	ReasonCPUsNotGiven = "GPUCPUsNotGiven"
	// ReasonCardTaken (on: pod): Others hold the GPU that the pod was allocated.
	//
	// To do: Recreate the pod if the controller does not: docs/troubleshooting.md#a-gpu-that-others-hold.
	ReasonCardTaken = "GPUCardTaken"
	// ReasonCardsOfPodsUnknown (on: node): It is unknown which GPUs a pod of a device plugin has; its limits
	// count on every GPU.
	//
	// To do: End the named pods, or see docs/troubleshooting.md#nodes-that-move-from-a-device-plugin.
	ReasonCardsOfPodsUnknown = "GPUCardsOfPodsUnknown"
	// ReasonClaimTemplateNotMade (on: pod): The controller could not create the claim template of a legacy pod
	// (docs/legacy.md).
	//
	// To do: Follow the message.
	ReasonClaimTemplateNotMade = "GPUClaimTemplateNotMade"
	// ReasonClaimTemplateNotOurs (on: pod): Somebody else created a template of that name, for something else.
	//
	// To do: Delete the template, then the pod.
	ReasonClaimTemplateNotOurs = "GPUClaimTemplateNotOurs"
	// ReasonClaimTemplateUnknown (on: pod): This version cannot read the template's name.
	//
	// To do: Recreate the pod; then bring policies and controller to one version.
	ReasonClaimTemplateUnknown = "GPUClaimTemplateUnknown"
	// ReasonClaimWaiting (on: pod): No device serves the claim at the moment, and why.
	//
	// To do: See docs/troubleshooting.md#a-pod-stays-pending.
	ReasonClaimWaiting = "GPUClaimWaiting"
	// ReasonDeviceClassNotOurs (on: DeviceClass (controller)): A class has a name of the catalogue and selects
	// something else.
	//
	// To do: Rename it: docs/gpu-models.md#the-catalogue.
	ReasonDeviceClassNotOurs = "GPUDeviceClassNotOurs"
	// ReasonDirectoryLost (on: node): A directory or socket shared with the kubelet or the runtime is gone; the
	// plugin restarts.
	//
	// To do: Nothing; see docs/troubleshooting.md#directories-of-the-host.
	ReasonDirectoryLost = "GPUDirectoryLost"
	// ReasonDirectoryWrong (on: node): A configured directory is not the host's, or is not writable; claims
	// fail.
	//
	// To do: Correct the setting: docs/troubleshooting.md#directories-of-the-host.
	ReasonDirectoryWrong = "GPUDirectoryWrong"
	// ReasonDriverReplaced (on: node): The NVIDIA driver was upgraded, removed or reinstalled; the plugin
	// restarts.
	//
	// To do: Nothing; see docs/install.md#an-upgrade-of-the-nvidia-driver.
	ReasonDriverReplaced = "GPUDriverReplaced"
	// ReasonDriverUnavailable (on: node): NVML cannot be opened, or the GPUs cannot be read in time. Retried
	// every 10 s.
	//
	// To do: Check the paths and the setting that the message names.
	ReasonDriverUnavailable = "GPUDriverUnavailable"
	// ReasonEvicted (on: pod (plugin)): The pod was evicted for its use of GPUs, as the setting `AUDIT_EVICT`
	// says.
	//
	// To do: See its other Events: docs/audit.md#evicting-pods.
	ReasonEvicted = "GPUEvicted"
	// ReasonFeatureDisabled (on: node): The API server drops fields that the mode needs.
	//
	// To do: Enable the feature gate that the message names.
	ReasonFeatureDisabled = "GPUFeatureDisabled"
	// ReasonGangNotHeld (on: pod (controller)): The pod names a gang, and is not scheduled together with it.
	//
	// To do: The message says why: PodGroups (docs/legacy.md#gangs) are not enabled, or a label has a wrong
	// value.
	ReasonGangNotHeld = "GPUGangNotHeld"
	// ReasonHealthy (on: node): All GPUs that were unhealthy are healthy again.
	//
	// To do: Nothing.
	ReasonHealthy = "GPUHealthy"
	// ReasonHeldByGoneClaim (on: node): GPUs are in use although their claims are gone.
	//
	// To do: Wait, or see docs/troubleshooting.md#what-is-in-use-stays-allocated.
	ReasonHeldByGoneClaim = "GPUHeldByGoneClaim"
	// ReasonHeldWithoutClaim (on: node): Pods of a device plugin hold these parts of GPUs.
	//
	// To do: Nothing; it ends with the pods: docs/migrate.md.
	ReasonHeldWithoutClaim = "GPUHeldWithoutClaim"
	// ReasonInvalidLabel (on: node): A node label has an unknown value.
	//
	// To do: Correct it; the message says what applies instead.
	ReasonInvalidLabel = "GPUInvalidLabel"
	// ReasonIsolationDisabled (on: pod (plugin), node): The limits of these requests, or of the node, are
	// lifted.
	//
	// To do: Nothing, if intended: docs/isolation.md#lifting-the-limits.
	ReasonIsolationDisabled = "GPUIsolationDisabled"
	// ReasonIsolationKept (on: pod (plugin)): The limits apply although the pod or its claim would lift them.
	//
	// To do: Nothing: docs/isolation.md#lifting-the-limits.
	ReasonIsolationKept = "GPUIsolationKept"
	// ReasonIsolationUnavailable (on: node): Shares cannot be limited on these GPUs now; they take no new
	// claims.
	//
	// To do: Follow the message: docs/isolation.md.
	ReasonIsolationUnavailable = "GPUIsolationUnavailable"
	// ReasonLabelsNotOurs (on: node (controller)): Somebody else wrote an `aliyun.accelerator/*` label.
	//
	// To do: Run the named command: docs/gpu-models.md#node-labels.
	ReasonLabelsNotOurs = "GPULabelsNotOurs"
	// ReasonLeftOut (on: node): These GPUs are not offered: MIG mode, lost, unreadable, or no answer.
	//
	// To do: See docs/troubleshooting.md#gpus-that-are-left-out.
	ReasonLeftOut = "GPULeftOut"
	// ReasonLinksInconsistent (on: node): Two GPUs contradict each other about their NVLink lanes; the smaller
	// number counts.
	//
	// To do: Check with `nvidia-smi nvlink --status`.
	ReasonLinksInconsistent = "GPULinksInconsistent"
	// ReasonMPSSupervisorFailed (on: node (supervisor)): `gpu-mps-supervisor` cannot run here; modes that need
	// it offer nothing.
	//
	// To do: Follow the message.
	ReasonMPSSupervisorFailed = "GPUMPSSupervisorFailed"
	// ReasonModeNotServed (on: node): The node does not serve the mode of its label.
	//
	// To do: See docs/troubleshooting.md#a-mode-that-is-not-served.
	ReasonModeNotServed = "GPUModeNotServed"
	// ReasonModeServed (on: node): The GPUs are published in this mode.
	//
	// To do: Nothing.
	ReasonModeServed = "GPUModeServed"
	// ReasonModeSwitchWaiting (on: node): The node changes its mode, or its isolation, when the named pods have
	// ended.
	//
	// To do: Wait, or end the pods: docs/troubleshooting.md#a-node-that-waits-to-change-its-mode.
	ReasonModeSwitchWaiting = "GPUModeSwitchWaiting"
	// ReasonModelNameTaken (on: DeviceClass (controller)): Two models differ in upper and lower case only; the
	// first has the class.
	//
	// To do: Select the other by attribute: docs/gpu-models.md#names.
	ReasonModelNameTaken = "GPUModelNameTaken"
	// ReasonModelsDiffer (on: node (controller)): The node has GPUs of several models or sizes; its labels name
	// the first GPU.
	//
	// To do: Choose by class: docs/gpu-models.md#node-labels.
	ReasonModelsDiffer = "GPUModelsDiffer"
	// ReasonNVLinkDegraded (on: node): GPUs have fewer NVLink lanes than others of their model; mode `topology`
	// uses them last.
	//
	// To do: Check with `nvidia-smi nvlink --status`.
	ReasonNVLinkDegraded = "GPUNVLinkDegraded"
	// ReasonNotEvicted (on: pod (plugin)): The pod is to be evicted for its use of GPUs, and cannot be.
	// Retried.
	//
	// To do: Follow the message: docs/audit.md#evicting-pods.
	ReasonNotEvicted = "GPUNotEvicted"
	// ReasonNotPreempted (on: pod (controller)): Pods of lower priority cannot be evicted for this pod, or that
	// did not help it.
	//
	// To do: Follow the message; retried: docs/preemption.md.
	ReasonNotPreempted = "GPUNotPreempted"
	// ReasonOtherDriver (on: node): Another DRA driver publishes these GPUs, too, or pods have them from it:
	// they take no new claims.
	//
	// To do: See docs/install.md#beside-another-dra-driver.
	ReasonOtherDriver = "GPUOtherDriver"
	// ReasonPodsUnread (on: node): The plugin cannot read the node's pods, so it publishes nothing, or nothing
	// more than before.
	//
	// To do: Apply the manifests: the ClusterRole is missing or old.
	ReasonPodsUnread = "GPUPodsUnread"
	// ReasonPreempted (on: pod (controller)): The pod was evicted to free GPUs for one of higher priority.
	//
	// To do: Nothing, or give it a higher priority: docs/preemption.md.
	ReasonPreempted = "GPUPreempted"
	// ReasonPreempting (on: pod (controller)): Pods of lower priority are evicted for this pod.
	//
	// To do: Nothing: docs/preemption.md.
	ReasonPreempting = "GPUPreempting"
	// ReasonPublishFailed (on: node): The API server refused the ResourceSlice, or could not be reached.
	//
	// To do: Follow the message.
	ReasonPublishFailed = "GPUPublishFailed"
	// ReasonQuotaExceeded (on: pod (controller)): A ResourceQuota of the namespace keeps the pod's claim from
	// being created.
	//
	// To do: Wait: the pod goes on when others end. Or raise the quota (docs/legacy.md#quota).
	ReasonQuotaExceeded = "GPUQuotaExceeded"
	// ReasonShareExceeded (on: pod (plugin)): A container holds more of a GPU's memory than it was granted.
	//
	// To do: Have it hold less, or request more: docs/audit.md.
	ReasonShareExceeded = "GPUShareExceeded"
	// ReasonStateDamaged (on: node): The plugin could not read a state file and set it aside.
	//
	// To do: See docs/troubleshooting.md#state-files-of-the-plugin.
	ReasonStateDamaged = "GPUStateDamaged"
	// ReasonStateNotRecovered (on: node): CDI specs of claims could not be reconciled with the node's GPUs and
	// driver files.
	//
	// To do: Follow the message.
	ReasonStateNotRecovered = "GPUStateNotRecovered"
	// ReasonStateNotRepaired (on: node): Removed or damaged state files or CDI specs could not all be restored.
	// Retried every 10 s.
	//
	// To do: See docs/troubleshooting.md#state-files-of-the-plugin.
	ReasonStateNotRepaired = "GPUStateNotRepaired"
	// ReasonUnhealthy (on: node): These GPUs are unhealthy; they take no new claims.
	//
	// To do: Follow the message: docs/health.md.
	ReasonUnhealthy = "GPUUnhealthy"
	// ReasonUsedBesideMPS (on: pod (plugin)): A process is on a GPU beside MPS, where nothing limits it.
	//
	// To do: Start it again as it was meant: docs/audit.md.
	ReasonUsedBesideMPS = "GPUUsedBesideMPS"
	// ReasonUsedByGonePod (on: node): Processes of pods that are gone have been on GPUs for a minute.
	//
	// To do: Wait, or have the kubelet end them: docs/audit.md#pods-that-are-gone.
	ReasonUsedByGonePod = "GPUUsedByGonePod"
	// ReasonUsedByNoPod (on: node): Processes that belong to no pod are on GPUs of the node.
	//
	// To do: See who starts them: docs/audit.md.
	ReasonUsedByNoPod = "GPUUsedByNoPod"
	// ReasonUsedWithoutGrant (on: pod (plugin)): A container is on a GPU of which no claim grants it anything.
	//
	// To do: Give it a claim, or exempt it: docs/audit.md#what-is-not-a-finding.
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
		ReasonOtherDriver,
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
		ReasonUsedByGonePod,
		ReasonUsedByNoPod,
		ReasonUsedWithoutGrant,
	}
}
