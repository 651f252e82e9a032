// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Reasons of the Events that the driver writes: on nodes, except where it is said
// otherwise. They are an API: scripts and alerts select by them, so none is renamed.
// The comments are the table of docs/troubleshooting.md: `make docs` writes it.
const (
	// ReasonAmountsNotOurs (on: node): Somebody else wrote the node's `aliyun.com/*` amounts.
	//
	// To do: Remove the device plugin: docs/migrate.md#tools-made-for-ack.
	ReasonAmountsNotOurs = "GPUAmountsNotOurs"
	// ReasonAmountsNotShown (on: node): The node shows no amounts while unconverted pods wait.
	//
	// To do: Recreate the named pods: docs/migrate.md#tools-made-for-ack.
	ReasonAmountsNotShown = "GPUAmountsNotShown"
	// ReasonCPUsNotGiven (on: pod): The pod asks for exclusive CPUs and got none.
	//
	// To do: Follow the message: docs/legacy.md#cpus-of-a-containers-own.
	ReasonCPUsNotGiven = "GPUCPUsNotGiven"
	// ReasonGPUsOfPodsUnknown (on: node): A device plugin's pod counts on every GPU: which it has is unknown.
	//
	// To do: End the named pods: docs/migrate.md#pods-of-a-device-plugin.
	ReasonGPUsOfPodsUnknown = "GPUCardsOfPodsUnknown"
	// ReasonClaimTemplateNotMade (on: pod): The claim template of a legacy pod could not be created.
	//
	// To do: Follow the message.
	ReasonClaimTemplateNotMade = "GPUClaimTemplateNotMade"
	// ReasonClaimTemplateNotOurs (on: pod): Somebody else created a template of that name.
	//
	// To do: Delete the template, then the pod.
	ReasonClaimTemplateNotOurs = "GPUClaimTemplateNotOurs"
	// ReasonClaimTemplateUnknown (on: pod): The template's name is unknown to this version.
	//
	// To do: Update policies and controller; recreate the pod.
	ReasonClaimTemplateUnknown = "GPUClaimTemplateUnknown"
	// ReasonClaimWaiting (on: pod): No device serves the claim now.
	//
	// To do: See docs/troubleshooting.md#a-pod-stays-pending.
	ReasonClaimWaiting = "GPUClaimWaiting"
	// ReasonClientSlots (on: pod): A container has too many of a GPU's 48 MPS clients.
	//
	// To do: Start fewer: docs/audit.md.
	ReasonClientSlots = "GPUClientSlotsExceeded"
	// ReasonContainerWaiting (on: pod): A container's start waits for MPS.
	//
	// To do: Wait: docs/isolation.md#daemon-failure.
	ReasonContainerWaiting = "GPUContainerWaiting"
	// ReasonDeviceClassNotOurs (on: DeviceClass): Your class has a name of the catalogue.
	//
	// To do: Rename it: docs/gpu-models.md#the-catalogue.
	ReasonDeviceClassNotOurs = "GPUDeviceClassNotOurs"
	// ReasonDirectoryLost (on: node): A shared directory or socket is gone; the plugin restarts.
	//
	// To do: Mostly nothing: docs/troubleshooting.md#directories-of-the-host.
	ReasonDirectoryLost = "GPUDirectoryLost"
	// ReasonDirectoryWrong (on: node): A configured directory is not the host's, or not writable.
	//
	// To do: Correct the setting.
	ReasonDirectoryWrong = "GPUDirectoryWrong"
	// ReasonDriverReplaced (on: node): The NVIDIA driver was replaced; the plugin restarts.
	//
	// To do: Nothing; see docs/install.md#an-upgrade-of-the-nvidia-driver.
	ReasonDriverReplaced = "GPUDriverReplaced"
	// ReasonDriverUnavailable (on: node): NVML or the GPUs cannot be read. Retried every 10 s.
	//
	// To do: Follow the message.
	ReasonDriverUnavailable = "GPUDriverUnavailable"
	// ReasonEvicted (on: pod): The plugin evicted the pod, as `AUDIT_EVICT` says.
	//
	// To do: See its other Events.
	ReasonEvicted = "GPUEvicted"
	// ReasonFabricNotReady (on: node): NVIDIA's fabric manager has not connected these GPUs.
	//
	// To do: Check `systemctl status nvidia-fabricmanager`.
	ReasonFabricNotReady = "GPUFabricNotReady"
	// ReasonFeatureDisabled (on: node): The API server drops fields that the mode needs.
	//
	// To do: Enable the named feature gate.
	ReasonFeatureDisabled = "GPUFeatureDisabled"
	// ReasonGangNotHeld (on: pod): The pod names a gang, and waits or is scheduled without it.
	//
	// To do: Follow the message: docs/gangs.md.
	ReasonGangNotHeld = "GPUGangNotHeld"
	// ReasonHealthy (on: node): All unhealthy GPUs are healthy again.
	//
	// To do: Nothing.
	ReasonHealthy = "GPUHealthy"
	// ReasonHeldByGoneClaim (on: node): GPUs are in use, and their claims are gone.
	//
	// To do: See docs/troubleshooting.md#gpus-still-in-use.
	ReasonHeldByGoneClaim = "GPUHeldByGoneClaim"
	// ReasonHeldWithoutClaim (on: node): Pods of a device plugin hold these parts of GPUs.
	//
	// To do: Nothing; it ends with the pods.
	ReasonHeldWithoutClaim = "GPUHeldWithoutClaim"
	// ReasonInstanceGone (on: node, claim): Claims hold MIG instances that are gone.
	//
	// To do: Delete their pods: docs/mig.md#changed-instances.
	ReasonInstanceGone = "GPUInstanceGone"
	// ReasonInstancesLeftOut (on: node): MIG instances cannot be offered, or a GPU in MIG mode has none.
	//
	// To do: Nothing, if intended: docs/mig.md#offered-instances.
	ReasonInstancesLeftOut = "GPUInstancesLeftOut"
	// ReasonInvalidLabel (on: node): A node label has an unknown value.
	//
	// To do: Correct it; the message shows what applies instead.
	ReasonInvalidLabel = "GPUInvalidLabel"
	// ReasonIsolationDisabled (on: pod, node): Limits of these requests, or of the node, are off.
	//
	// To do: Nothing, if intended: docs/isolation.md#lifting-the-limits.
	ReasonIsolationDisabled = "GPUIsolationDisabled"
	// ReasonIsolationKept (on: pod): Limits apply although the pod would lift them.
	//
	// To do: Nothing: docs/isolation.md#lifting-the-limits.
	ReasonIsolationKept = "GPUIsolationKept"
	// ReasonIsolationUnavailable (on: node): Shares cannot be limited on these GPUs, which take no new claims.
	//
	// To do: Follow the message: docs/isolation.md.
	ReasonIsolationUnavailable = "GPUIsolationUnavailable"
	// ReasonLabelsNotOurs (on: node): Somebody else wrote an `aliyun.accelerator/*` label.
	//
	// To do: Run the named command: docs/gpu-models.md#node-labels.
	ReasonLabelsNotOurs = "GPULabelsNotOurs"
	// ReasonLeftOut (on: node): The node does not offer these GPUs: lost, or unreadable.
	//
	// To do: See docs/troubleshooting.md#gpus-that-are-left-out.
	ReasonLeftOut = "GPULeftOut"
	// ReasonLinksInconsistent (on: node): Two GPUs contradict each other about NVLink lanes.
	//
	// To do: Check `nvidia-smi nvlink --status`.
	ReasonLinksInconsistent = "GPULinksInconsistent"
	// ReasonMPSFault (on: pod, node): One program's fault ended all programs under MPS on a GPU.
	//
	// To do: Restart them: docs/isolation.md#fault-propagation.
	ReasonMPSFault = "GPUMPSFault"
	// ReasonMPSSupervisorFailed (on: node): `gpu-mps-supervisor` cannot run; modes that need it
	// offer nothing.
	//
	// To do: Follow the message.
	ReasonMPSSupervisorFailed = "GPUMPSSupervisorFailed"
	// ReasonMemoryLimitMissing (on: node): Containers were without their limits of GPU memory.
	//
	// To do: Nothing, if they were set again: docs/kernel-limits.md.
	ReasonMemoryLimitMissing = "GPUMemoryLimitMissing"
	// ReasonMemoryPastLimit (on: pod): A container holds GPU memory that its limit does not count.
	//
	// To do: See docs/kernel-limits.md#unlimited-memory.
	ReasonMemoryPastLimit = "GPUMemoryPastLimit"
	// ReasonModeNotServed (on: node): The node does not serve the mode of its label.
	//
	// To do: See docs/troubleshooting.md#a-mode-that-is-not-served.
	ReasonModeNotServed = "GPUModeNotServed"
	// ReasonModeServed (on: node): The GPUs are published in this mode.
	//
	// To do: Nothing.
	ReasonModeServed = "GPUModeServed"
	// ReasonModeSwitchWaiting (on: node): The node waits for the named pods to change its mode or isolation.
	//
	// To do: Wait, or end the pods: docs/modes.md#mode-change.
	ReasonModeSwitchWaiting = "GPUModeSwitchWaiting"
	// ReasonModelNameTaken (on: DeviceClass): Two models differ in case only; the first has the
	// class.
	//
	// To do: Select the other by attribute: docs/gpu-models.md#names.
	ReasonModelNameTaken = "GPUModelNameTaken"
	// ReasonModelsDiffer (on: node): The node's labels name the first of its GPU models.
	//
	// To do: Choose by class: docs/gpu-models.md#node-labels.
	ReasonModelsDiffer = "GPUModelsDiffer"
	// ReasonMoved (on: pod (controller)): The controller evicted the pod so that it moves to another node.
	//
	// To do: Nothing, or protect it: docs/packing.md#defragmentation.
	ReasonMoved = "GPUMoved"
	// ReasonNVLinkDegraded (on: node): GPUs have fewer NVLink lanes than others of the model.
	//
	// To do: Check `nvidia-smi nvlink --status`.
	ReasonNVLinkDegraded = "GPUNVLinkDegraded"
	// ReasonNotEvicted (on: pod): The plugin cannot evict the pod. Retried.
	//
	// To do: Follow the message: docs/audit.md#evicting-pods.
	ReasonNotEvicted = "GPUNotEvicted"
	// ReasonNotPreempted (on: pod): No pods can be evicted for this one, or that did not help. Retried.
	//
	// To do: Follow the message: docs/preemption.md.
	ReasonNotPreempted = "GPUNotPreempted"
	// ReasonOtherDriver (on: node): Another DRA driver has these GPUs, which take no new claims here.
	//
	// To do: See docs/install.md#beside-another-dra-driver.
	ReasonOtherDriver = "GPUOtherDriver"
	// ReasonPodsUnread (on: node): The node's pods cannot be read: nothing new is published.
	//
	// To do: Apply the manifests: the ClusterRole is old.
	ReasonPodsUnread = "GPUPodsUnread"
	// ReasonPreempted (on: pod): The pod was evicted for one of higher priority.
	//
	// To do: Nothing, or raise its priority: docs/preemption.md.
	ReasonPreempted = "GPUPreempted"
	// ReasonPreempting (on: pod): Pods of lower priority are evicted for this one.
	//
	// To do: Nothing: docs/preemption.md.
	ReasonPreempting = "GPUPreempting"
	// ReasonPublishFailed (on: node): The API server refused the ResourceSlice, or did not answer.
	//
	// To do: Follow the message.
	ReasonPublishFailed = "GPUPublishFailed"
	// ReasonQuotaExceeded (on: pod): A ResourceQuota keeps the pod's claim from being created.
	//
	// To do: Wait, or raise the quota: docs/quota.md.
	ReasonQuotaExceeded = "GPUQuotaExceeded"
	// ReasonSettingsRefused (on: node, pod): New settings are refused; the program keeps the old.
	//
	// To do: Correct the named setting.
	ReasonSettingsRefused = "GPUSettingsRefused"
	// ReasonSeveralInstances (on: pod): A container has several MIG instances; a program may see one.
	//
	// To do: See docs/mig.md#several-instances.
	ReasonSeveralInstances = "GPUSeveralInstances"
	// ReasonShareExceeded (on: pod): A container holds more GPU memory than its grant.
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
	// ReasonTooManyModels (on: node): The node publishes models or MIG profiles without a class.
	//
	// To do: Check whether it has them: docs/gpu-models.md#the-catalogue.
	ReasonTooManyModels = "GPUTooManyModels"
	// ReasonUnhealthy (on: node): These GPUs are unhealthy, and take no new claims.
	//
	// To do: Follow the message: docs/health.md.
	ReasonUnhealthy = "GPUUnhealthy"
	// ReasonUnprepareFailed (on: pod, claim): A claim cannot be unprepared; its pods stay Terminating.
	//
	// To do: Follow the message.
	ReasonUnprepareFailed = "GPUUnprepareFailed"
	// ReasonUsedBesideMPS (on: pod): A process uses a GPU beside MPS, without limits.
	//
	// To do: Restart it as intended: docs/audit.md.
	ReasonUsedBesideMPS = "GPUUsedBesideMPS"
	// ReasonUsedByGonePod (on: node): Processes of deleted pods are still on GPUs.
	//
	// To do: Wait, or restart the kubelet: docs/audit.md#pods-that-are-gone.
	ReasonUsedByGonePod = "GPUUsedByGonePod"
	// ReasonUsedByNoPod (on: node): Processes of no known pod are on GPUs.
	//
	// To do: See who starts them: docs/audit.md.
	ReasonUsedByNoPod = "GPUUsedByNoPod"
	// ReasonUsedWithoutGrant (on: pod): A container uses a GPU without a grant.
	//
	// To do: Give it a claim, or exempt it: docs/audit.md#exceptions.
	ReasonUsedWithoutGrant = "GPUUsedWithoutGrant"
	// ReasonWouldMove (on: pod (controller)): With the setting `DEFRAGMENT=evict`, the controller would evict the pod.
	//
	// To do: Nothing, or protect it: docs/packing.md#defragmentation.
	ReasonWouldMove = "GPUWouldMove"
)
