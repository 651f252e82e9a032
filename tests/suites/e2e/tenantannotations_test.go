// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// What a pod of a device plugin was first seen with counts, whatever its owner makes of
// its annotations afterwards, and whichever plugin of the driver looks at them.
func TestTenantsEditsOfAnnotationsChangeNothing(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, "old")
	const node = "old"
	cluster.FreshPlugin(t, node)
	old, ns := oldNamespace(t), cluster.Namespace(t)
	tenant := old.Tenant(t)
	// What is the same as at the end of another test is not said again.
	offersMemory(t, node, "15 15 15 15")
	began := time.Now()
	stop := cluster.DevicePlugin(t, node, "aliyun.com/gpu-mem", 48)
	cluster.WaitNodeEvent(t, node, began, "GPUModeNotServed", "a device plugin serves aliyun.com/gpu-mem here")
	runOld(t, old,
		harness.Bound(harness.Asking("mem 6"), "moved", node, ack.AnnotationMemory, `{"0":{"0":6}}`),
		harness.Bound(harness.Asking("mem 5"), "removed", node, ack.AnnotationV1Index, "1"),
	)
	stop()
	offersMemory(t, node, "9 10 15 15")

	for pod, annotations := range map[string]string{
		"moved":   `{"` + ack.AnnotationMemory + `":"{\"0\":{\"3\":1}}"}`,
		"removed": `{"` + ack.AnnotationV1Index + `":null}`,
	} {
		harness.Patch(t, tenant.CoreV1().Pods(old.Name), pod, types.MergePatchType,
			`{"metadata":{"annotations":`+annotations+`}}`)
	}
	// It fills the node: were anything counted otherwise, one of these would not fit, or
	// lie elsewhere.
	for i, gib := range []string{"9", "10", "15", "15"} {
		pod := harness.GoingTo(harness.Asking("mem "+gib), fmt.Sprintf("fill-%d", i), node)
		ns.Run(t, pod)
		if grants := ns.Granted(t, pod.Name); grants[0].GPU.Index != int64(i) {
			t.Errorf("pod %s of %s GiB is on GPU %d, want %d", pod.Name, gib, grants[0].GPU.Index, i)
		}
	}
	ns.Delete(t, "fill-0", "fill-1", "fill-2", "fill-3")
	cluster.KillPlugin(t, node)()
	offersMemory(t, node, "9 10 15 15")
	again, beside := harness.Asking("mem 10"), harness.Asking("mem 9")
	ns.Run(t, harness.GoingTo(again, "again", node), harness.GoingTo(beside, "beside", node))
	for pod, want := range map[string]int64{"again": 1, "beside": 0} {
		if grants := ns.Granted(t, pod); grants[0].GPU.Index != want {
			t.Errorf("after another start of the plugin pod %s is on GPU %d, want %d", pod, grants[0].GPU.Index, want)
		}
	}
	ns.Delete(t, "again", "beside")
}
