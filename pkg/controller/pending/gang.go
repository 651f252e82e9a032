// SPDX-License-Identifier: Apache-2.0

package pending

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/podstate"
)

// speakers are, by gang, the pod that is told what its gang waits for: the others would be told
// the same.
type speakers map[toolscache.ObjectName]string

// speaks says whether a pod is told for its gang: another that was waits no more.
func (w *watcher) speaks(pod *corev1.Pod) bool {
	gang, key := gangOf(pod), cache.Key(pod)
	if told := w.speakers[gang]; told != key && w.inGang(told, gang) {
		return false
	}
	w.speakers[gang] = key
	return true
}

// inGang says whether there is such a pod, which waits with a gang.
func (w *watcher) inGang(key string, gang toolscache.ObjectName) bool {
	pod, exists := w.pods.Get(key)
	if !exists || gangOf(pod) != gang {
		return false
	}
	_, waits := podstate.Unschedulable(pod)
	return waits
}

// forgetGangs forgets those whose speakers wait no more.
func (w *watcher) forgetGangs() {
	maps.DeleteFunc(w.speakers, func(gang toolscache.ObjectName, told string) bool { return !w.inGang(told, gang) })
}

// gangOf is the gang of a pod, without a name where it has none.
func gangOf(pod *corev1.Pod) toolscache.ObjectName {
	gang, _ := podstate.Gang(pod)
	return gang
}
