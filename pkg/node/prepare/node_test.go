// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/ptr"
	upstream "tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/preparetest"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

const pool = "n1/gpu"

// node is the state that outlives a plugin, and a plugin's Preparer over it.
type node struct {
	*Preparer
	stateDir, cdiDir string
	// damaged are the claims whose records were, released those whose devices were taken back.
	damaged, released []types.UID
	published         mode.Mode
	// isolated is what the published devices say by what they are isolated.
	isolated map[mode.Mode]string
	// running are the pods that have processes; unknown says why that is not known.
	running map[types.UID]bool
	unknown error
	noting  sync.Mutex
	// contended are the claims that somebody wants released, limitsOff and limitsKept the requests
	// whose limits were told to be off and to be kept.
	contended             []types.UID
	limitsOff, limitsKept []string
	// api is what the API server knows.
	api api
	// reserved is what pods without a claim have, nothing where it is nil; draining, that
	// the node changes its mode; users, who uses a claim by its name.
	reserved func(context.Context, *gpu.Machine) (held.Reserved, error)
	draining bool
	users    map[string][]types.UID
}

// fakeNode is the node as its Preparer sees it.
type fakeNode struct{ *node }

// nodeStore is a node's records, and what it publishes.
type nodeStore struct {
	*state.Store
	node *node
}

func (s nodeStore) Node() (state.Node, bool, error) {
	return state.Node{Published: s.node.published, Isolation: s.node.isolated, Closed: s.node.draining}, true, nil
}

func (f fakeNode) Reserved(ctx context.Context, m *gpu.Machine) (held.Reserved, error) {
	if f.reserved == nil {
		return held.Reserved{}, nil
	}
	return f.reserved(ctx, m)
}

func (f fakeNode) Running(pod types.UID) (bool, error) { return f.running[pod], f.unknown }

func (f fakeNode) UsersOf(_, name string) []types.UID { return f.users[name] }

// listener notes what it is told.
type listener struct{ *node }

func (l listener) Released(uid types.UID) {
	l.noting.Lock()
	defer l.noting.Unlock()
	l.released = append(l.released, uid)
}

func (l listener) RecordDamaged(_ context.Context, d state.Damaged) {
	l.damaged = append(l.damaged, d.UID)
}

// Prepare notes what the Preparer's Prepare tells beside the devices.
func (n *node) Prepare(ctx context.Context, c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	result, err := n.Preparer.Prepare(ctx, c)
	n.noting.Lock()
	defer n.noting.Unlock()
	n.contended = append(n.contended, HeldBy(err)...)
	n.limitsOff, n.limitsKept = result.LimitsOff, result.LimitsKept
	return result.Devices, err
}

// Unprepare notes whose release is wanted.
func (n *node) Unprepare(ctx context.Context, uid types.UID) error {
	err := n.Preparer.Unprepare(ctx, uid)
	n.noting.Lock()
	defer n.noting.Unlock()
	n.contended = append(n.contended, HeldBy(err)...)
	return err
}

// api are the claims and pods of a cluster, or why they cannot be read.
type api struct {
	preparetest.Cluster
	pods  []*corev1.Pod
	err   error
	lists int
	// shown is by what the node's GPUs are isolated, as its ResourceSlices show it.
	shown map[mode.Mode]string
	// user is a pod that uses every claim.
	user *corev1.Pod
}

func (a *api) PublishedIsolation(context.Context) (map[mode.Mode]string, error) {
	return a.shown, a.err
}

func (a *api) AllocatedClaims(context.Context) ([]*resourceapi.ResourceClaim, error) {
	a.lists++
	return a.Claims, a.err
}

// Pods are the pods that are named like the claim.
func (a *api) Pods(_ context.Context, c *resourceapi.ResourceClaim) ([]*corev1.Pod, error) {
	var pods []*corev1.Pod
	for _, pod := range a.pods {
		if pod.Name == c.Name {
			pods = append(pods, pod)
		}
	}
	if a.user != nil {
		pods = append(pods, a.user)
	}
	return pods, a.err
}

// fakeBase has all GPUs and instances, or those of a machine. Their device nodes are named like them, unless paths has
// them.
type fakeBase struct {
	missing map[string]error
	of      *gpu.Machine
	paths   map[string]string
}

func (b fakeBase) Common() specs.ContainerEdits {
	return specs.ContainerEdits{Env: []string{"COMMON=1"}}
}

func (b fakeBase) GPU(uuid string) (specs.ContainerEdits, error) {
	if b.of != nil && !slices.ContainsFunc(b.of.GPUs, func(g gpu.GPU) bool { return g.UUID == uuid }) {
		if _, _, there := b.of.Instance(uuid); !there {
			return specs.ContainerEdits{}, fmt.Errorf("GPU %s is unknown", uuid)
		}
	}
	return specs.ContainerEdits{DeviceNodes: []*specs.DeviceNode{{Path: cmp.Or(b.paths[uuid], "/dev/"+uuid)}}}, nil
}

func (b fakeBase) Check(uuid string) error { return b.missing[uuid] }

func machine() *gpu.Machine {
	m := &gpu.Machine{}
	for i := range 4 {
		m.GPUs = append(m.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), MemoryMiB: 16130})
	}
	return m
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{stateDir: filepath.Join(t.TempDir(), "claims"), cdiDir: t.TempDir(), published: mode.Dynamic}
	n.restart(t)
	expect.NoError(t, n.options.Store.SetComplete())
	return n
}

// restart replaces the Preparer, as a new process would.
func (n *node) restart(t testing.TB) {
	t.Helper()
	store, err := state.Open(filepath.Dir(n.stateDir), "n1")
	expect.NoError(t, err)
	n.Preparer = New(Options{
		Pool: pool, Store: nodeStore{store, n}, Specs: cdi.Dir(n.cdiDir), BootID: "boot-1",
		Isolation: isolation.NewRegistry(isolation.Config{}),
		Cluster:   &n.api, Node: fakeNode{n}, Listener: listener{n},
	})
	n.SetInventory(&Inventory{Machine: machine(), Base: fakeBase{}})
}

// files lists what lies in the state and CDI directories, but for the lock.
func (n *node) files(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, dir := range []string{n.stateDir, n.cdiDir} {
		entries, err := os.ReadDir(dir)
		expect.NoError(t, err)
		for _, e := range entries {
			if !slices.Contains([]string{"lock", "incomplete"}, e.Name()) && !e.IsDir() {
				out = append(out, e.Name())
			}
		}
	}
	return out
}

// takes prepares the claims, and returns the devices of the last one.
func (n *node) takes(t testing.TB, claims ...*resourceapi.ResourceClaim) (devices []kubeletplugin.Device) {
	t.Helper()
	for _, c := range claims {
		got, err := n.Prepare(t.Context(), c)
		expect.NoError(t, err)
		devices = got
	}
	return devices
}

// refuses checks that the node refuses the claim with an error that has these texts. Without texts it checks that the
// node prepares the claim.
func (n *node) refuses(t *testing.T, c *resourceapi.ResourceClaim, texts ...string) error {
	t.Helper()
	_, err := n.Prepare(t.Context(), c)
	expect.Error(t, err, texts...)
	return err
}

// givesBack unprepares the claims.
func (n *node) givesBack(t testing.TB, uids ...types.UID) {
	t.Helper()
	for _, uid := range uids {
		expect.NoError(t, n.Unprepare(t.Context(), uid))
	}
}

// leavesNothing checks that nothing is left of any claim.
func (n *node) leavesNothing(t *testing.T) {
	t.Helper()
	if left := n.files(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// edits are what the runtime would do to a container for a CDI device.
func (n *node) edits(t *testing.T, id string) specs.ContainerEdits {
	t.Helper()
	cache, err := upstream.NewCache(upstream.WithSpecDirs(n.cdiDir), upstream.WithAutoRefresh(false))
	expect.NoError(t, err)
	d := cache.GetDevice(id)
	if d == nil {
		t.Fatalf("CDI device %s does not exist; there are %v", id, cache.ListDevices())
	}
	return d.ContainerEdits
}

func (n *node) env(t *testing.T, id string) []string {
	t.Helper()
	return n.edits(t, id).Env
}

// claimOf returns a claim whose request is allocated these devices.
func claimOf(uid, request string, devices ...string) *resourceapi.ResourceClaim {
	c := emptyClaim(uid)
	for _, device := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{
				Request: request, Driver: "gpu.aliyun.com", Pool: pool, Device: device,
			})
	}
	return c
}

func wholeGPUs(uid string, indices ...int) *resourceapi.ResourceClaim {
	var devices []string
	for _, i := range indices {
		devices = append(devices, fmt.Sprintf("gpu-%d", i))
	}
	return claimOf(uid, "gpu", devices...)
}

func sharesOf(uid string, index int, gib ...int64) *resourceapi.ResourceClaim {
	c := emptyClaim(uid)
	for i, units := range gib {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourceapi.DeviceRequestAllocationResult{
				Request: fmt.Sprintf("r%d", i), Driver: "gpu.aliyun.com", Pool: pool, Device: fmt.Sprintf("gpu-%d-share", index),
				ShareID: ptr.To(types.UID(fmt.Sprintf("%s-share-%d", uid, i))),
				ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
					"memory": *resource.NewQuantity(units<<30, resource.BinarySI), "slots": resource.MustParse("1"),
					"cores": resource.MustParse("0"),
				},
			})
	}
	return c
}

// forAdmin has the claim's first device be seen only, by an administrator.
func forAdmin(c *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	c.Status.Allocation.Devices.Results[0].AdminAccess = ptr.To(true)
	return c
}

func emptyClaim(uid string) *resourceapi.ResourceClaim {
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "claim-" + uid, UID: types.UID(uid)},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
	}
}
