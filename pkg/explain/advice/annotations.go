// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// Annotations by which pods ask KAI's scheduler, and Run:ai's, for a part of a GPU: a fraction, or MiB; each of so many
// GPUs.
const (
	kaiFraction = "gpu-fraction"
	kaiMemory   = "gpu-memory"
	kaiDevices  = "gpu-fraction-num-devices"
)

// Annotations are those that Of and Concerns read.
func Annotations() []string { return []string{kaiFraction, kaiMemory, kaiDevices} }

// ofAnnotations returns what to write instead of such annotations. It is empty for pods without them, and for those of
// which the scheduler that they name has said something: it runs, and may read them.
func ofAnnotations(pod *corev1.Pod) string {
	name := kaiFraction
	amount, asks := pod.Annotations[name]
	if !asks {
		name = kaiMemory
		amount, asks = pod.Annotations[name]
	}
	named := pod.Spec.SchedulerName != "" && pod.Spec.SchedulerName != corev1.DefaultSchedulerName
	if !asks || named && SilentScheduler(pod) == "" {
		return ""
	}
	a := ask{shares: true}
	if mib, err := strconv.ParseInt(amount, 10, 64); err == nil && name == kaiMemory {
		mebibytes(&a, mib, nil)
	}
	a.gpus, _ = strconv.ParseInt(pod.Annotations[kaiDevices], 10, 64) // 0 stands for one
	return "the annotation " + name + " asks KAI's scheduler for a part of a GPU, and no other reads it. Write these " +
		"limits instead: " + a.written()
}
