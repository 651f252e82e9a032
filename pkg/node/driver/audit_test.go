// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/preparetest"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	auditwatch "github.com/gpushare/dra-driver-gpushare/pkg/node/audit/watch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/podresources"
	podswatch "github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/watch"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/pods"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/publish"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

// agentWithClaims is an agent with so many prepared claims, "c0", "c1" …, of pods "p0", "p1" …
func agentWithClaims(tb testing.TB, count int) (*agent, *state.Store) {
	tb.Helper()
	store, err := state.Open(tb.TempDir(), "n1")
	expect.NoError(tb, err)
	for i := range count {
		err := store.Put(state.Record{Phase: state.Prepared, UID: types.UID(fmt.Sprint("uid", i)), Namespace: "team",
			Name: fmt.Sprint("c", i), CDISpec: "spec", Pods: []types.UID{types.UID(fmt.Sprint("p", i))},
			Grants: []claim.Grant{{Request: "gpu", Device: fmt.Sprintf("gpu-%d-share", i%8),
				ShareID: types.UID(fmt.Sprint(i)), Mode: mode.Share, Units: 1,
				GPU: claim.GPU{Index: i % 8, UUID: fmt.Sprint("GPU-", i%8), MemoryMiB: 16130}}}})
		expect.NoError(tb, err)
	}
	a := &agent{pods: pods.New(nil), preparer: prepare.New(prepare.Options{Store: store}),
		publisher: publish.New(publish.Options{Clock: clock.RealClock{}})}
	a.publisher.SetMachine(&gpu.Machine{})
	return a, store
}

// Nothing is judged by records that are not all there.
func TestGranted(t *testing.T) {
	a, store := agentWithClaims(t, 2)
	if _, err := a.granted(t.Context()); err == nil {
		t.Error("claims are taken for all there are, although the directory is new")
	}
	expect.NoError(t, store.SetComplete())
	// A pod that joined a claim later is in no record.
	joined := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "joined", UID: "joined"},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("c1")}}}}
	a.pods.Handler().OnAdd(joined, false)
	granted, err := a.granted(t.Context())
	if err != nil || len(granted.Claims) != 2 {
		t.Fatalf("granted is %+v, %v", granted, err)
	}
	if c := granted.Claims[1]; c.Name != "c1" || !slices.Equal(c.Pods, []types.UID{"joined", "p1"}) ||
		c.Grants[0].GPU.UUID != "GPU-1" {
		t.Errorf("claim %+v", c)
	}
	expect.Equal(t, map[int]bool{0: true, 1: true}, granted.Offered, "GPUs offered that claims have")
}

// running are the pods that have processes.
type running struct {
	preparetest.Node
	pods map[types.UID]bool
}

func (r running) Running(pod types.UID) (bool, error) { return r.pods[pod], nil }

// Where pods are not watched, a pod that joins a prepared claim is known to use it once it is on a GPU: the claim is
// not unprepared while its processes run, though it was deleted by force.
func TestPodThatJoinsAClaimIsNoted(t *testing.T) {
	a, store := agentWithClaims(t, 2)
	expect.NoError(t, store.SetComplete())
	now := running{pods: map[types.UID]bool{"p1": true, "joined": true}}
	a.preparer = prepare.New(prepare.Options{Store: store, Node: now, Specs: cdi.Dir(t.TempDir()),
		Listener: preparetest.Listener{}})
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c1", UID: "uid1"}}
	for _, pod := range []string{"p1", "joined"} {
		c.Status.ReservedFor = append(c.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID(pod)})
	}
	a.Audit.Client = fake.NewClientset(c)
	granted, err := a.granted(t.Context())
	expect.NoError(t, err)
	a.auditedPods().Of(t.Context(), map[types.UID]bool{"joined": true}, granted.Claims)
	now.pods["p1"] = false
	expect.Error(t, a.preparer.Unprepare(t.Context(), "uid1"), "processes still run of the pod with UID joined")
}

// The audit knows the supervisor by the lock that it has.
func TestSupervisorIsFound(t *testing.T) {
	dir := mps.Dir(t.TempDir())
	is := func(want int) {
		t.Helper()
		if pid, err := supervisorOf("/proc", dir); pid != want || err != nil {
			t.Errorf("the supervisor is process %d, %v, want %d", pid, err, want)
		}
	}
	is(0)
	release, err := dir.Hold()
	expect.NoError(t, err)
	is(os.Getpid())
	expect.NoError(t, release())
	is(0)
}

// followed are pods that are watched, on a node that the last device plugin has left.
type followed struct {
	podswatch.Pods
	pods    []*corev1.Pod
	kubelet deviceplugin.Kubelet
}

func (f followed) Reserved(context.Context, *gpu.Machine) (held.Reserved, error) {
	return deviceplugin.Of(f.pods, deviceplugin.Node{Instances: map[string]int{"MIG-1": 0}, Kubelet: f.kubelet,
		Left: time.Unix(1000, 0)}), nil
}

// kubeletWith is a kubelet that gave the pods devices of the resource.
type kubeletWith struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	pods map[string]corev1.ResourceName
}

func (k kubeletWith) List(
	context.Context, *podresourcesv1.ListPodResourcesRequest,
) (*podresourcesv1.ListPodResourcesResponse, error) {
	out := &podresourcesv1.ListPodResourcesResponse{}
	for name, served := range k.pods {
		out.PodResources = append(out.PodResources, &podresourcesv1.PodResources{Namespace: "team", Name: name,
			Containers: []*podresourcesv1.ContainerResources{{Name: "main", Devices: []*podresourcesv1.ContainerDevices{
				{ResourceName: string(served), DeviceIds: []string{"MIG-1"}}}}}})
	}
	return out, nil
}

// Limits alone are no evidence: the kubelet ignores those that no device plugin serves.
func TestPodsOfDevicePluginsByTheKubelet(t *testing.T) {
	const mig = "nvidia.com/mig-1g.5gb"
	container := func(pod string) deviceplugin.Container {
		return deviceplugin.Container{Namespace: "team", Pod: pod, Name: "main"}
	}
	podOf := func(name string, taken int64) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)},
			Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "main", Resources: corev1.
				ResourceRequirements{Limits: corev1.ResourceList{mig: resource.MustParse("1")}}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: ptr.To(metav1.Unix(taken, 0))}}
	}
	answer := deviceplugin.Kubelet{Containers: map[deviceplugin.Container]deviceplugin.Devices{
		container("given"):  {Resources: []corev1.ResourceName{mig}, IDs: []string{"MIG-1"}},
		container("feigns"): {}}}
	for name, tc := range map[string]struct {
		kubelet deviceplugin.Kubelet
		unread  bool
		want    map[string]bool
		err     bool
	}{
		"the kubelet answers": {answer, false, map[string]bool{"given": true, "feigns": false, "old": true}, false},
		"it is silent": {deviceplugin.Kubelet{Err: errors.New("no socket")}, false,
			map[string]bool{"feigns": false, "old": true}, false},
		"the node is not known yet": {answer, true, map[string]bool{"given": false}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := agentWithClaims(t, 0)
			a.WatchPods = true
			a.taken = followed{pods: []*corev1.Pod{podOf("given", 2000), podOf("feigns", 2000), podOf("old", 500)},
				kubelet: tc.kubelet}
			if !tc.unread {
				a.preparer.SetInventory(&prepare.Inventory{Machine: &gpu.Machine{}})
			}
			for name, want := range tc.want {
				pod := audit.Pod{Namespace: "team", Name: name, UID: types.UID("uid-" + name)}
				if is, err := a.ofPlugin(t.Context(), pod); is != want || (err != nil) != tc.err {
					t.Errorf("pod %s is of a device plugin: %v, %v, want %v", name, is, err, want)
				}
			}
		})
	}
	t.Run("pods are not watched", func(t *testing.T) {
		a, _ := agentWithClaims(t, 0)
		// A socket's path has 107 bytes at most; that of a temporary directory may have more.
		dir, err := os.Open(t.TempDir())
		expect.NoError(t, err)
		defer dir.Close()
		socket := fmt.Sprintf("/proc/self/fd/%d/kubelet.sock", dir.Fd())
		listener, err := net.Listen("unix", socket)
		expect.NoError(t, err)
		server := grpc.NewServer()
		podresourcesv1.RegisterPodResourcesListerServer(server, kubeletWith{pods: map[string]corev1.ResourceName{
			"given": mig, "feigns": "example.com/nic"}})
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		a.PodResources = podresources.Client{Socket: socket}
		for name, want := range map[string]bool{"given": true, "feigns": false, "other": false} {
			if is, err := a.ofPlugin(t.Context(), audit.Pod{Namespace: "team", Name: name}); is != want || err != nil {
				t.Errorf("pod %s is of a device plugin: %v, %v, want %v", name, is, err, want)
			}
		}
		server.Stop()
		expect.Error(t, <-served)
		if is, err := a.ofPlugin(t.Context(), audit.Pod{Namespace: "team", Name: "given"}); is || err == nil {
			t.Errorf("%v, although the kubelet does not answer", is)
		}
	})
}

// usesOf are the same at each reading.
type usesOf []gpu.Use

func (u usesOf) Read(context.Context) ([]gpu.Use, error) { return slices.Clone(u), nil }

// placed are processes of which the kernel is asked, and which are then taken for those of
// pods.
type placed struct {
	podcgroup.Processes
	pods map[int]types.UID
}

func (p placed) Places(pid int) ([]podcgroup.Place, error) {
	if _, err := p.Processes.Places(pid); err != nil {
		return nil, err
	}
	return []podcgroup.Place{{Pod: p.pods[pid], Container: string(p.pods[pid])}}, nil
}

// What one reading costs beside NVML: 8 GPUs, 64 processes of 64 pods with a share each,
// among 110 pods of the node.
func BenchmarkAudit(b *testing.B) {
	a, store := agentWithClaims(b, 64)
	expect.NoError(b, store.SetComplete())
	picture := pods.New(nil)
	processes := placed{"/proc", map[int]types.UID{}}
	uses := make(usesOf, 8)
	for i := range uses {
		uses[i] = gpu.Use{Index: i, UUID: fmt.Sprint("GPU-", i), TotalMiB: 16130, TellsMPS: true}
	}
	for i := range 110 {
		uid := types.UID(fmt.Sprint("p", i))
		picture.Handler().OnAdd(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: string(uid), UID: uid},
			Spec: corev1.PodSpec{NodeName: "n",
				ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To(fmt.Sprint("c", i))}},
				Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
					Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "main",
				ContainerID: "containerd://" + string(uid)}}}}, true)
		if i >= 64 {
			continue
		}
		// It ends when its input does.
		process := exec.Command("cat")
		input, err := process.StdinPipe()
		expect.NoError(b, err)
		expect.NoError(b, process.Start())
		b.Cleanup(func() {
			expect.Error(b, errors.Join(input.Close(), process.Wait()))
		})
		processes.pods[process.Process.Pid] = uid
		uses[i%8].Processes = append(uses[i%8].Processes, gpu.Process{PID: process.Process.Pid, MemoryMiB: 1000})
	}
	w := auditwatch.New(auditwatch.Options{GPUs: uses, Processes: processes,
		Pods: &auditwatch.Pods{Watched: picture}, Client: fake.NewClientset(),
		Granted: a.granted, Events: report.New(&record.FakeRecorder{}, clock.RealClock{}), Clock: clock.RealClock{}})
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		w.Look(b.Context())
	}
	took := cpuTime(b) - before
	s, _ := w.Snapshot()
	if len(s.Claims) != 64 || s.Holding[audit.OverShare]+s.Holding[audit.NoGrant] > 0 {
		b.Fatalf("snapshot %+v, want the use of 64 claims and no finding", s)
	}
	// Of the processor, also where others use it at the time.
	b.ReportMetric(float64(took.Microseconds())/float64(b.N), "cpu-µs/op")
	b.ReportMetric(100*took.Seconds()/float64(b.N)/auditwatch.DefaultInterval.Seconds(), "%core")
}

// cpuTime is what this process has used of processors.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var usage unix.Rusage
	expect.NoError(tb, unix.Getrusage(unix.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
