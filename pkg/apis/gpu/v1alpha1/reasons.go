// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Reasons of the Events that the driver writes: on nodes, except where it is said
// otherwise. They are an API: scripts and alerts select by them, so none is renamed.
// The comments are the table of docs/troubleshooting.md: `make docs` writes it.
const (
	// ReasonAmountsNotOurs (on: node (controller)): Somebody else wrote the node's `aliyun.com/*` amounts.
	//
	// To do: Remove the device plugin: docs/migrate.md#tools-made-for-ack.
	ReasonAmountsNotOurs = "GPUAmountsNotOurs"
	// ReasonAmountsNotShown (on: node (controller)): The node shows no amounts: unconverted pods wait for a
	// node.
	//
	// To do: Recreate the named pods: docs/migrate.md#tools-made-for-ack.
	ReasonAmountsNotShown = "GPUAmountsNotShown"
	// ReasonCPUsNotGiven (on: pod (controller)): The pod asks for exclusive CPUs and was given none.
	//
	// To do: Follow the message: docs/legacy.md#cpus-of-a-containers-own.
	ReasonCPUsNotGiven = "GPUCPUsNotGiven"
	// ReasonGPUsOfPodsUnknown (on: node): The plugin does not know which GPUs a device plugin's pod has; the pod
	// counts on every GPU.
	//
	// To do: End the named pods: docs/troubleshooting.md#nodes-that-move-from-a-device-plugin.
	ReasonGPUsOfPodsUnknown = "GPUCardsOfPodsUnknown"
	// ReasonClaimTemplateNotMade (on: pod): The claim template of a legacy pod could not be created.
	//
	// To do: Follow the message.
	ReasonClaimTemplateNotMade = "GPUClaimTemplateNotMade"
	// ReasonClaimTemplateNotOurs (on: pod): Somebody else created a template of that name.
	//
	// To do: Delete the template, then the pod.
	ReasonClaimTemplateNotOurs = "GPUClaimTemplateNotOurs"
	// ReasonClaimTemplateUnknown (on: pod): This version cannot read the template's name.
	//
	// To do: Bring policies and controller to one version; recreate the pod.
	ReasonClaimTemplateUnknown = "GPUClaimTemplateUnknown"
	// ReasonClaimWaiting (on: pod): No device serves the claim now; the message shows why.
	//
	// To do: See docs/troubleshooting.md#a-pod-stays-pending.
	ReasonClaimWaiting = "GPUClaimWaiting"
	// ReasonClientSlots (on: pod (plugin)): A container has too many of a GPU's 48 MPS clients.
	//
	// To do: Start fewer: docs/audit.md.
	ReasonClientSlots = "GPUClientSlotsExceeded"
	// ReasonContainerWaiting (on: pod (plugin)): A container's start waits for MPS.
	//
	// To do: Wait: docs/isolation.md#daemon-failure.
	ReasonContainerWaiting = "GPUContainerWaiting"
	// ReasonDeviceClassNotOurs (on: DeviceClass (controller)): A class has a name of the catalogue and selects
	// something else.
	//
	// To do: Rename it: docs/gpu-models.md#the-catalogue.
	ReasonDeviceClassNotOurs = "GPUDeviceClassNotOurs"
	// ReasonDirectoryLost (on: node): A shared directory or socket is gone; the plugin restarts.
	//
	// To do: Mostly nothing: docs/troubleshooting.md#directories-of-the-host.
	ReasonDirectoryLost = "GPUDirectoryLost"
	// ReasonDirectoryWrong (on: node): A configured directory is not the host's, or not writable.
	//
	// To do: Correct the setting: docs/troubleshooting.md#directories-of-the-host.
	ReasonDirectoryWrong = "GPUDirectoryWrong"
	// ReasonDriverReplaced (on: node): The NVIDIA driver was replaced; the plugin restarts.
	//
	// To do: Nothing; see docs/install.md#an-upgrade-of-the-nvidia-driver.
	ReasonDriverReplaced = "GPUDriverReplaced"
	// ReasonDriverUnavailable (on: node): NVML or the GPUs cannot be read. Retried every 10 s.
	//
	// To do: Check what the message names.
	ReasonDriverUnavailable = "GPUDriverUnavailable"
	// ReasonEvicted (on: pod (plugin)): The pod was evicted for its use of GPUs, as `AUDIT_EVICT` says.
	//
	// To do: See its other Events: docs/audit.md#evicting-pods.
	ReasonEvicted = "GPUEvicted"
	// ReasonFeatureDisabled (on: node): The API server drops fields that the mode needs.
	//
	// To do: Enable the feature gate that the message names.
	ReasonFeatureDisabled = "GPUFeatureDisabled"
	// ReasonGangNotHeld (on: pod (controller)): The pod names a gang, and waits or is scheduled without it.
	//
	// To do: Follow the message: docs/gangs.md.
	ReasonGangNotHeld = "GPUGangNotHeld"
	// ReasonHealthy (on: node): All unhealthy GPUs are healthy again.
	//
	// To do: Nothing.
	ReasonHealthy = "GPUHealthy"
	// ReasonHeldByGoneClaim (on: node): GPUs are in use although their claims are gone.
	//
	// To do: See docs/troubleshooting.md#gpus-still-in-use.
	ReasonHeldByGoneClaim = "GPUHeldByGoneClaim"
	// ReasonHeldWithoutClaim (on: node): Pods of a device plugin hold these parts of GPUs.
	//
	// To do: Nothing; it ends with the pods.
	ReasonHeldWithoutClaim = "GPUHeldWithoutClaim"
	// ReasonInstanceGone (on: node, claim): Claims hold MIG instances that are not there any more.
	//
	// To do: Delete the pods of the claims: docs/mig.md#changed-instances.
	ReasonInstanceGone = "GPUInstanceGone"
	// ReasonInstancesLeftOut (on: node): A GPU in MIG mode has no instances, or the driver cannot offer some of them.
	//
	// To do: Nothing, if intended: docs/mig.md#offered-instances.
	ReasonInstancesLeftOut = "GPUInstancesLeftOut"
	// ReasonInvalidLabel (on: node): A node label has an unknown value.
	//
	// To do: Correct it; the message says what applies instead.
	ReasonInvalidLabel = "GPUInvalidLabel"
	// ReasonIsolationDisabled (on: pod (plugin), node): The limits of these requests, or of the node, are switched
	// off.
	//
	// To do: Nothing, if intended: docs/isolation.md#lifting-the-limits.
	ReasonIsolationDisabled = "GPUIsolationDisabled"
	// ReasonIsolationKept (on: pod (plugin)): The limits apply although the pod would switch them off.
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
	// ReasonLeftOut (on: node): These GPUs are not offered: lost, or unreadable.
	//
	// To do: See docs/troubleshooting.md#gpus-that-are-left-out.
	ReasonLeftOut = "GPULeftOut"
	// ReasonLinksInconsistent (on: node): Two GPUs contradict each other about their NVLink lanes.
	//
	// To do: Check `nvidia-smi nvlink --status`.
	ReasonLinksInconsistent = "GPULinksInconsistent"
	// ReasonMPSFault (on: pod (plugin), node): One program's fault ended all programs under MPS on a GPU.
	//
	// To do: Restart them: docs/isolation.md#fault-propagation.
	ReasonMPSFault = "GPUMPSFault"
	// ReasonMPSSupervisorFailed (on: node (supervisor)): `gpu-mps-supervisor` cannot run; modes that need it
	// offer nothing.
	//
	// To do: Follow the message.
	ReasonMPSSupervisorFailed = "GPUMPSSupervisorFailed"
	// ReasonMemoryLimitMissing (on: node): The kernel did not hold containers to their limits of GPU memory.
	//
	// To do: Nothing, if they were set again: docs/kernel-limits.md.
	ReasonMemoryLimitMissing = "GPUMemoryLimitMissing"
	// ReasonMemoryPastLimit (on: pod (plugin)): Its processes hold GPU memory that its limit does not count.
	//
	// To do: Have the program allocate on the device: docs/kernel-limits.md#unlimited-memory.
	ReasonMemoryPastLimit = "GPUMemoryPastLimit"
	// ReasonModeNotServed (on: node): The node does not serve the mode of its label.
	//
	// To do: See docs/troubleshooting.md#a-mode-that-is-not-served.
	ReasonModeNotServed = "GPUModeNotServed"
	// ReasonModeServed (on: node): The GPUs are published in this mode.
	//
	// To do: Nothing.
	ReasonModeServed = "GPUModeServed"
	// ReasonModeSwitchWaiting (on: node): The node changes its mode or isolation when the named pods have ended.
	//
	// To do: Wait, or end the pods: docs/troubleshooting.md#a-node-that-waits-to-change-its-mode.
	ReasonModeSwitchWaiting = "GPUModeSwitchWaiting"
	// ReasonModelNameTaken (on: DeviceClass (controller)): Two models differ in case only; the first has the
	// class.
	//
	// To do: Select the other by attribute: docs/gpu-models.md#names.
	ReasonModelNameTaken = "GPUModelNameTaken"
	// ReasonModelsDiffer (on: node (controller)): The node's labels name the first of several GPU models.
	//
	// To do: Choose by class: docs/gpu-models.md#node-labels.
	ReasonModelsDiffer = "GPUModelsDiffer"
	// ReasonMoved (on: pod (controller)): The pod was evicted so that it lands on another node.
	//
	// To do: Nothing, or protect it: docs/packing.md#defragmentation.
	ReasonMoved = "GPUMoved"
	// ReasonNVLinkDegraded (on: node): GPUs have fewer NVLink lanes than others of their model.
	//
	// To do: Check `nvidia-smi nvlink --status`.
	ReasonNVLinkDegraded = "GPUNVLinkDegraded"
	// ReasonNotEvicted (on: pod (plugin)): The pod cannot be evicted for its use of GPUs. Retried.
	//
	// To do: Follow the message: docs/audit.md#evicting-pods.
	ReasonNotEvicted = "GPUNotEvicted"
	// ReasonNotPreempted (on: pod (controller)): No pods can be evicted for this one, or that did not help.
	// Retried.
	//
	// To do: Follow the message: docs/preemption.md.
	ReasonNotPreempted = "GPUNotPreempted"
	// ReasonOtherDriver (on: node): Another DRA driver has these GPUs, too; they take no new claims.
	//
	// To do: See docs/install.md#beside-another-dra-driver.
	ReasonOtherDriver = "GPUOtherDriver"
	// ReasonPodsUnread (on: node): The node's pods cannot be read, so nothing new is published.
	//
	// To do: Apply the manifests: the ClusterRole is missing or old.
	ReasonPodsUnread = "GPUPodsUnread"
	// ReasonPreempted (on: pod (controller)): The pod was evicted to free GPUs for one of higher priority.
	//
	// To do: Nothing, or raise its priority: docs/preemption.md.
	ReasonPreempted = "GPUPreempted"
	// ReasonPreempting (on: pod (controller)): Pods of lower priority are evicted for this pod.
	//
	// To do: Nothing: docs/preemption.md.
	ReasonPreempting = "GPUPreempting"
	// ReasonPublishFailed (on: node): The API server refused the ResourceSlice, or did not answer.
	//
	// To do: Follow the message.
	ReasonPublishFailed = "GPUPublishFailed"
	// ReasonQuotaExceeded (on: pod (controller)): A ResourceQuota keeps the pod's claim from being created.
	//
	// To do: Wait, or raise the quota: docs/quota.md.
	ReasonQuotaExceeded = "GPUQuotaExceeded"
	// ReasonSettingsRefused (on: node, pod (controller)): New settings are refused; the program keeps the old.
	//
	// To do: Correct the named setting.
	ReasonSettingsRefused = "GPUSettingsRefused"
	// ReasonSeveralInstances (on: pod (plugin)): A container has several MIG instances, of which a program may see
	// one.
	//
	// To do: See docs/mig.md#several-instances.
	ReasonSeveralInstances = "GPUSeveralInstances"
	// ReasonShareExceeded (on: pod (plugin)): A container holds more of a GPU's memory than it was granted.
	//
	// To do: Hold less, or request more: docs/audit.md.
	ReasonShareExceeded = "GPUShareExceeded"
	// ReasonStateDamaged (on: node): A state file could not be read and was set aside.
	//
	// To do: See docs/troubleshooting.md#state-files-of-the-plugin.
	ReasonStateDamaged = "GPUStateDamaged"
	// ReasonStateNotRecovered (on: node): CDI specs do not match the node's GPUs and driver files.
	//
	// To do: Follow the message.
	ReasonStateNotRecovered = "GPUStateNotRecovered"
	// ReasonStateNotRepaired (on: node): State files or CDI specs could not be restored. Retried every 10 s.
	//
	// To do: See docs/troubleshooting.md#state-files-of-the-plugin.
	ReasonStateNotRepaired = "GPUStateNotRepaired"
	// ReasonTooManyModels (on: node (controller)): The node publishes GPU models or MIG profiles that have no class.
	//
	// To do: See whether it has such GPUs: docs/gpu-models.md#the-catalogue.
	ReasonTooManyModels = "GPUTooManyModels"
	// ReasonUnhealthy (on: node): These GPUs are unhealthy; they take no new claims.
	//
	// To do: Follow the message: docs/health.md.
	ReasonUnhealthy = "GPUUnhealthy"
	// ReasonUnprepareFailed (on: pod (plugin), claim): The plugin cannot take a claim's devices back; its pods stay
	// Terminating.
	//
	// To do: Follow the message.
	ReasonUnprepareFailed = "GPUUnprepareFailed"
	// ReasonUsedBesideMPS (on: pod (plugin)): A process uses a GPU beside MPS, where nothing limits it.
	//
	// To do: Restart it as intended: docs/audit.md.
	ReasonUsedBesideMPS = "GPUUsedBesideMPS"
	// ReasonUsedByGonePod (on: node): Processes of deleted pods are on GPUs for a minute.
	//
	// To do: Wait, or restart the kubelet: docs/audit.md#pods-that-are-gone.
	ReasonUsedByGonePod = "GPUUsedByGonePod"
	// ReasonUsedByNoPod (on: node): Processes that belong to no known pod are on GPUs.
	//
	// To do: See who starts them: docs/audit.md.
	ReasonUsedByNoPod = "GPUUsedByNoPod"
	// ReasonUsedWithoutGrant (on: pod (plugin)): A container uses a GPU without a grant for it.
	//
	// To do: Give it a claim, or exempt it: docs/audit.md#exceptions.
	ReasonUsedWithoutGrant = "GPUUsedWithoutGrant"
	// ReasonWouldMove (on: pod (controller)): With the setting `DEFRAGMENT=evict` the pod would be evicted.
	//
	// To do: Nothing, or protect it: docs/packing.md#defragmentation.
	ReasonWouldMove = "GPUWouldMove"
)
