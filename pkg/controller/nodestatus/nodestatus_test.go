// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/reporttest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/cache"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const nodeName = "n1"

// fixed is a policy that does not change.
type fixed struct {
	is   bool
	pods []string
}

func (f fixed) enforced() bool    { return f.is }
func (f fixed) pending() []string { return f.pods }

// pool is all of a node's pool with so many V100 in a mode.
func pool(n int, m mode.Mode) *view.Slice {
	slice := &view.Slice{Node: nodeName, Pool: resourceapi.ResourcePool{Name: v1alpha1.PoolName(nodeName),
		ResourceSliceCount: 1}}
	for i := range n {
		slice.GPUs = append(slice.GPUs, view.GPU{Index: int64(i), MemoryMiB: 16130, Mode: m})
	}
	return slice
}

// site is a node at an API server, and the controller's work on it.
type site struct {
	t          *testing.T
	client     kubernetes.Interface
	recorder   *record.FakeRecorder
	reconciler *reconciler
}

func newSite(t *testing.T) *site {
	t.Helper()
	recorder := record.NewFakeRecorder(10)
	client := fake.NewClientset()
	cpu := corev1.ResourceList{"cpu": resource.MustParse("2")}
	_, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "u1"}, Status: corev1.NodeStatus{Capacity: cpu, Allocatable: cpu},
	}, metav1.CreateOptions{FieldManager: "kubelet"})
	expect.NoError(t, err)
	return &site{t, client, recorder,
		&reconciler{Config: Config{Client: client.CoreV1().Nodes(), Events: report.New(recorder, clock.RealClock{})},
			policy: fixed{is: true}}}
}

// reconcile lets the controller see what is there now.
func (s *site) reconcile(published ...*view.Slice) {
	s.t.Helper()
	_, ctx := ktesting.NewTestContext(s.t)
	again, err := s.reconciler.reconcile(ctx, cache.KeepNode(s.node(), false), published)
	if err != nil || again != 0 {
		s.t.Fatalf("again after %s, error %v", again, err)
	}
}

func (s *site) node() *corev1.Node {
	s.t.Helper()
	node, err := s.client.CoreV1().Nodes().Get(s.t.Context(), nodeName, metav1.GetOptions{})
	expect.NoError(s.t, err)
	return node
}

// kubelet writes an amount as a kubelet does for its device plugins.
func (s *site) kubelet(name corev1.ResourceName, amount string) {
	s.t.Helper()
	patch := fmt.Sprintf(`{"status":{"capacity":{%q:%q},"allocatable":{%q:%q}}}`, name, amount, name, amount)
	_, err := s.client.CoreV1().Nodes().Patch(s.t.Context(), nodeName, types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: "kubelet"}, "status")
	expect.NoError(s.t, err)
}

// shows checks what the node shows: gpu-mem, gpu-count, gpu-core.percentage, gpu, or
// nothing but what it had. cpu is never touched.
func (s *site) shows(want ...string) {
	s.t.Helper()
	list := map[corev1.ResourceName]string{"cpu": "2"}
	for i, amount := range want {
		list[legacy.Names()[i]] = amount
	}
	for part, got := range map[string]corev1.ResourceList{"capacity": s.node().Status.Capacity,
		"allocatable": s.node().Status.Allocatable} {
		texts := map[corev1.ResourceName]string{}
		for name, amount := range got {
			texts[name] = amount.String()
		}
		expect.Equal(s.t, list, texts, "%s", part)
	}
}

// told checks that there is one Event with all the texts, or, without any, none.
func (s *site) told(texts ...string) {
	s.t.Helper()
	reporttest.Told(s.t, s.recorder, texts...)
}

func TestAmountsFollowTheGPUs(t *testing.T) {
	s := newSite(t)
	s.reconcile()
	s.shows()
	s.reconcile(pool(4, mode.Share))
	s.shows("60", "4", "0", "0")
	s.reconcile(pool(4, mode.CoreMem))
	s.shows("60", "4", "400", "0")
	// In the midst of a change nothing is known.
	half := pool(2, mode.Topology)
	half.Pool.ResourceSliceCount = 2
	s.reconcile(half)
	s.shows("60", "4", "400", "0")
	s.reconcile(pool(4, mode.Topology))
	s.shows("0", "0", "0", "4")
	s.reconcile(pool(4, mode.Exclusive))
	s.shows("0", "0", "0", "0")
	s.reconcile(pool(0, mode.Share))
	s.shows("0", "0", "0", "0")
	// The driver is gone.
	s.reconcile()
	s.shows()
	s.told()
}

func TestNothingIsShownUnlessPodsWithoutClaimsAreRefused(t *testing.T) {
	s := newSite(t)
	s.reconciler.policy = fixed{}
	s.reconcile(pool(4, mode.Share))
	s.shows()
	s.reconciler.policy = fixed{is: true}
	s.reconcile(pool(4, mode.Share))
	s.shows("60", "4", "0", "0")
	s.reconciler.policy = fixed{}
	s.reconcile(pool(4, mode.Share))
	s.shows()
	s.told()
}

func TestNothingIsShownWhilePodsWithoutClaimsWait(t *testing.T) {
	s := newSite(t)
	s.reconciler.policy = fixed{is: true, pods: []string{"a/1", "a/2", "a/3", "a/4", "a/5", "a/6"}}
	s.reconcile(pool(4, mode.Share))
	s.shows()
	s.told("Warning "+v1alpha1.ReasonAmountsNotShown, "run without a GPU: a/1, a/2, a/3, a/4, a/5 and 1 more.",
		"delete them and create them again")
	s.reconciler.policy = fixed{is: true}
	s.reconcile(pool(4, mode.Share))
	s.shows("60", "4", "0", "0")
	s.told()
}

func TestAmountsAreWrittenAgainAfterTheKubeletZeroedThem(t *testing.T) {
	s := newSite(t)
	s.reconcile(pool(4, mode.Share))
	s.kubelet(ack.ResourceMemory, "0")
	s.kubelet(ack.ResourceCount, "0")
	s.shows("0", "0", "0", "0")
	s.reconcile(pool(4, mode.Share))
	s.shows("60", "4", "0", "0")
	s.told()
}

func TestWhatADevicePluginServesIsLeftAlone(t *testing.T) {
	s := newSite(t)
	s.kubelet(ack.ResourceMemory, "60")
	s.reconcile(pool(4, mode.Share))
	s.shows("60")
	s.told("Warning "+v1alpha1.ReasonAmountsNotOurs, "aliyun.com/gpu-mem is 60, written by kubelet",
		"Remove the device plugin from this node")
	s.reconcile(pool(4, mode.Share))
	s.told()

	// It is gone, and ACK's number of GPUs is left over from it.
	s.kubelet(ack.ResourceMemory, "0")
	s.kubelet(ack.ResourceCount, "2")
	s.reconcile(pool(4, mode.Share))
	s.shows("60", "4", "0", "0")

	// It comes back while the amounts are ours, and the driver goes.
	s.kubelet(ack.ResourceMemory, "30")
	s.reconcile(pool(4, mode.Share))
	s.shows("30", "4", "0", "0")
	s.told("aliyun.com/gpu-mem is 30")
	s.reconcile()
	s.shows("30")
}

func TestHeartbeatsAreNoChange(t *testing.T) {
	s := newSite(t)
	before := cache.KeepNode(s.node(), false)
	after := *before
	after.ResourceVersion = "another"
	expect.Equal(t, true, same(before, &after), "a node that differs in its version alone is the same")
	s.kubelet(ack.ResourceMemory, "1")
	expect.Equal(t, false, same(before, cache.KeepNode(s.node(), false)), "a node with another amount is the same")
}
