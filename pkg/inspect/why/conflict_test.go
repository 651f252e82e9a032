// SPDX-License-Identifier: Apache-2.0

package why_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/published"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// Two claims have one GPU: nobody is told to ask for less, before and after the node has closed it.
func TestGPUThatTwoClaimsHave(t *testing.T) {
	for name, tc := range map[string]struct {
		known     map[string]bool
		gpus      int
		want, not []string
	}{
		"not known to the node yet": {nil, 3, []string{
			"gpu-0, gpu-0-share exclude each other, but claims have them: the scheduler allocates no GPU of the node",
			"- gpu-0 or gpu-0-share of node n1 given back; held by pod team-a/one (7Gi), pod team-a/two"},
			[]string{"asking for less", "each request would fit"}},
		"closed, and no other GPU is there": {map[string]bool{"gpu-0": true, "gpu-0-share": true}, 1, []string{
			"claims were allocated more of it than it has", "kubectl describe node n1"}, []string{"asking for less"}},
		"closed, and others are free": {map[string]bool{"gpu-0": true, "gpu-0-share": true}, 3, []string{
			"those it asks for are free on node n1 (gpu-1)"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := dynamicStage(t, tc.gpus, tc.known)
			hold(&in, "team-a", "one", "n1", "gpu-0-share", "7Gi")
			hold(&in, "team-a", "two", "n1", "gpu-0", "")
			waiting(&in, asking("team-a", "train-gpu", "exclusive.gpu.aliyun.com", ""))
			checkSays(t, printed(t, in), tc.want, tc.not)
		})
	}
}

// dynamicStage is one dynamic node.
func dynamicStage(t *testing.T, gpus int, allocated map[string]bool) why.Input {
	t.Helper()
	classes, err := deviceclasses.Modes()
	expect.NoError(t, err)
	in := why.Input{Now: time.Unix(0, 0), Snapshot: scheduling.Snapshot{Classes: classes}}
	m := &gpu.Machine{}
	for i := range gpus {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), Model: "Tesla-T4", MemoryMiB: 15360})
	}
	var options []devices.Options
	for _, served := range mode.Dynamic.ServedModes() {
		options = append(options, devices.Options{Pool: v1alpha1.PoolName("n1"), Mode: served, Slots: 6, Isolation: "none",
			Allocated: allocated})
	}
	in.Slices = published.Slices("n1", devices.BuildDynamic(m, options))
	in.Nodes = []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1",
		Labels: map[string]string{corev1.LabelHostname: "n1"}}}}
	return in
}
