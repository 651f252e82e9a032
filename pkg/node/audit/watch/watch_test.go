// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/reporttest"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/pods"
	"github.com/gpushare/dra-driver-gpushare/pkg/report"
)

const uuid = "GPU-0"

// machine is a node with one GPU, and pod "p" of namespace "team" with a share of 3226 MiB.
type machine struct {
	*Watch
	t         *testing.T
	uses      []gpu.Use
	usesErr   error
	claims    []audit.Claim
	claimsErr error
	places    map[int][]podcgroup.Place
	client    *fake.Clientset
	clock     *testingclock.FakeClock
	pods      *record.FakeRecorder // Events of pods
	node      *record.FakeRecorder
}

func (m *machine) Read(context.Context) ([]gpu.Use, error) { return m.uses, m.usesErr }

func (m *machine) Places(pid int) ([]podcgroup.Place, error) {
	if places, is := m.places[pid]; is {
		return places, nil
	}
	return nil, podcgroup.ErrEnded
}

func (m *machine) Program(pid int) (string, error) { return fmt.Sprintf("program-%d", pid), nil }

func thePod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", UID: "uid-p"}, Spec: corev1.PodSpec{
		NodeName:       "n",
		ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: ptr.To("a")}},
		Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}},
	}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "main", ContainerID: "containerd://c",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}}
}

func newMachine(t *testing.T, change func(*Options), objects ...runtime.Object) *machine {
	m := &machine{t: t, clock: testingclock.NewFakeClock(time.Unix(1000, 0)), pods: record.NewFakeRecorder(100),
		node: record.NewFakeRecorder(100), client: fake.NewClientset(objects...),
		places: map[int][]podcgroup.Place{1: {{Pod: "uid-p", Container: "c"}}},
		claims: []audit.Claim{{Namespace: "team", Name: "a", Pods: []types.UID{"uid-p"}, Grants: []claim.Grant{{
			Request: "gpu", ShareID: "s", Mode: mode.Share, Units: 3, GPU: claim.GPU{UUID: uuid, MemoryMiB: 16130}}}}}}
	m.holds(1, 9000)
	o := Options{NodeName: "n", GPUs: m, Processes: m, Pods: &Pods{Watched: pods.New(nothingRuns{})}, Client: m.client,
		Clock: m.clock,
		Granted: func(context.Context) (audit.Granted, error) {
			return audit.Granted{Claims: m.claims, Offered: map[int]bool{0: true}}, m.claimsErr
		},
		Events: report.New(m.pods, m.clock), NodeEvents: report.NewNodeEvents(m.node, &corev1.Node{}, "/"),
		OfDriver: func(audit.Pod, string) bool { return false }, Interval: DefaultInterval}
	if change != nil {
		change(&o)
	}
	m.Watch = New(o)
	o.Pods.Watched.Handler().OnAdd(thePod(), true)
	return m
}

// holds has these processes hold so many MiB each: pid, MiB, pid, MiB …
func (m *machine) holds(pairs ...int) {
	use := gpu.Use{UUID: uuid, TotalMiB: 16130}
	for i := 0; i < len(pairs); i += 2 {
		use.Processes = append(use.Processes, gpu.Process{PID: pairs[i], MemoryMiB: int64(pairs[i+1])})
	}
	m.uses = []gpu.Use{use}
}

// looks has the GPUs be read so often.
func (m *machine) looks(times int) {
	m.t.Helper()
	for range times {
		m.clock.Step(m.Interval)
		m.Look(m.t.Context())
	}
}

// On GPUs without processes nothing is to be judged: the records of the claims are not read.
func TestNobodyIsAskedWhereNothingRuns(t *testing.T) {
	asked := 0
	m := newMachine(t, func(o *Options) {
		granted := o.Granted
		o.Granted = func(ctx context.Context) (audit.Granted, error) {
			asked++
			return granted(ctx)
		}
	})
	m.holds()
	m.looks(3)
	if s, known := m.Snapshot(); asked > 0 || !known || len(s.GPUs) != 1 {
		t.Errorf("asked %d times, snapshot %+v", asked, s)
	}
	m.holds(1, 9000)
	m.looks(1)
	expect.Equal(t, 1, asked, "times asked about a process")
}

// What holds is told once; when it was over for half a minute it is told again.
func TestFindingIsToldOnce(t *testing.T) {
	m := newMachine(t, nil)
	m.looks(1)
	reporttest.Told(t, m.pods)
	m.looks(1)
	reporttest.Told(t, m.pods, "Warning GPUShareExceeded", `Container "main" holds 9000 MiB of GPU 0 in 1 process`,
		"3226 MiB")
	m.holds(1, 9500)
	m.looks(20)
	reporttest.Told(t, m.pods)
	m.holds(1, 3000)
	m.looks(14)
	m.holds(1, 9000)
	m.looks(3)
	reporttest.Told(t, m.pods)
	m.holds(1, 3000)
	m.looks(20)
	m.holds(1, 9000)
	m.looks(2)
	reporttest.Told(t, m.pods, "GPUShareExceeded")
	s, ok := m.Snapshot()
	if !ok || s.Holding[audit.OverShare] != 1 || s.Found[audit.OverShare] != 2 || len(s.Claims) != 1 ||
		s.Claims[0].UsedMiB != 9000 || !s.Time.Equal(m.clock.Now()) {
		t.Errorf("snapshot %+v", s)
	}
}

func TestProcessOfNoPodIsToldOfTheNode(t *testing.T) {
	m := newMachine(t, nil)
	m.places[2] = nil
	m.holds(2, 100, 3, 100)
	m.looks(3)
	reporttest.Told(t, m.node, "Warning GPUUsedByNoPod", "Process 2 (program-2) on GPU 0 belongs to no pod")
	reporttest.Told(t, m.node)
	reporttest.Told(t, m.pods)
}

// A pod that was deleted by force, and does not end, is told of the node when it had time to.
func TestProcessOfAPodThatIsGoneIsToldOfTheNode(t *testing.T) {
	m := newMachine(t, nil)
	m.claims[0].PodNames = []string{"p"}
	m.Pods.Watched.Handler().OnDelete(thePod())
	m.looks(30)
	reporttest.Told(t, m.node)
	m.looks(2)
	reporttest.Told(t, m.node, "Warning GPUUsedByGonePod", "1 process on GPU 0 of pod team/p (UID uid-p), which is gone: "+
		"they hold 9000 MiB, and claim a grants 3226 MiB. ", "docs/audit.md#pods-that-are-gone")
	s, _ := m.Snapshot()
	if len(s.Claims) != 1 || s.Claims[0].Claim != "a" || s.Claims[0].Pod != "" || s.Holding[audit.GonePod] != 1 {
		t.Errorf("snapshot %+v, want what the pod of claim a uses", s)
	}
	m.holds()
	m.looks(16)
	s, _ = m.Snapshot()
	expect.Equal(t, 0, s.Holding[audit.GonePod], "snapshot %+v after the process has ended", s)
	reporttest.Told(t, m.pods)
}

// Without knowing what is prepared nothing is said, and what does not answer is told apart.
func TestUnknown(t *testing.T) {
	m := newMachine(t, nil)
	m.claims, m.claimsErr = nil, errors.New("being restored")
	m.looks(5)
	reporttest.Told(t, m.pods)
	if s, ok := m.Snapshot(); !ok || len(s.GPUs) != 1 || len(s.Claims) != 0 {
		t.Errorf("snapshot %+v", s)
	}
	before, _ := m.Snapshot()
	m.uses, m.usesErr = nil, errors.New("no driver")
	m.looks(2)
	if s, _ := m.Snapshot(); !s.Time.Equal(before.Time) {
		t.Errorf("the snapshot is of %s, although nothing answered", s.Time)
	}
}

// The pod of the driver itself tells which namespace is the driver's.
func TestOwnNamespaceIsExempt(t *testing.T) {
	m := newMachine(t, func(o *Options) { o.OwnPod = "own" })
	for uid, namespace := range map[types.UID]string{"own": "driver", "exporter": "driver", "miner": "tenant"} {
		m.Pods.Watched.Handler().OnAdd(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: string(uid),
			UID: uid}}, true)
	}
	m.places[2], m.places[3] = []podcgroup.Place{{Pod: "exporter"}}, []podcgroup.Place{{Pod: "miner"}}
	m.holds(2, 100, 3, 100)
	m.looks(2)
	reporttest.Told(t, m.pods, "GPUUsedWithoutGrant")
	reporttest.Told(t, m.pods)
	if f := m.tracker.Holding(); len(f) != 1 || f[0].Pod.Name != "miner" {
		t.Errorf("findings %+v, want one of the miner", f)
	}
}

// evictions has the API server answer evictions, and returns those that were asked for.
func (m *machine) evictions(answer func() error) *[]*policyv1.Eviction {
	var asked []*policyv1.Eviction
	apitest.Answer(m.client, "create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if !ok || action.GetSubresource() != "eviction" {
			return false, nil, nil
		}
		eviction, ok := create.GetObject().(*policyv1.Eviction)
		if !ok {
			return false, nil, nil
		}
		asked = append(asked, eviction)
		return true, nil, answer()
	})
	return &asked
}

func evicts(kinds ...audit.Kind) func(*Options) {
	return func(o *Options) { o.Eviction = audit.Eviction{Kinds: kinds, After: 10 * time.Second} }
}

func TestNothingIsEvictedByDefault(t *testing.T) {
	for name, change := range map[string]func(*Options){"nothing set": nil, "another kind": evicts(audit.NoGrant)} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, change)
			asked := m.evictions(func() error { return nil })
			m.looks(100)
			expect.Equal(t, 0, len(*asked), "evictions %v", *asked)
		})
	}
}

func TestEviction(t *testing.T) {
	m := newMachine(t, evicts(audit.OverShare))
	asked := m.evictions(func() error { return nil })
	m.looks(2)
	reporttest.Told(t, m.pods, "GPUShareExceeded", "The pod is evicted if this lasts for 10s")
	m.looks(4)
	expect.Equal(t, 0, len(*asked), "evictions before the grace time is over")
	m.looks(1)
	if len(*asked) != 1 || (*asked)[0].Name != "p" || (*asked)[0].Namespace != "team" ||
		*(*asked)[0].DeleteOptions.Preconditions.UID != "uid-p" {
		t.Fatalf("evictions %+v, want one of pod p by its UID", *asked)
	}
	reporttest.Told(t, m.pods, "GPUEvicted", "10s")
	// While it ends.
	m.looks(30)
	expect.Equal(t, 1, len(*asked), "evictions of one pod")
	reporttest.Told(t, m.pods)
}

// A PodDisruptionBudget is respected: it is told, and tried again less and less often.
func TestEvictionThatIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		text string
	}{
		"budget": {apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0),
			"PodDisruptionBudget"},
		"no right": {apierrors.NewForbidden(corev1.Resource("pods"), "p", errors.New("no")),
			"deployments/options/audit-evicts"},
		"other": {errors.New("etcd is down"), "etcd is down"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, evicts(audit.OverShare))
			answer := tc.err
			asked := m.evictions(func() error { return answer })
			m.looks(7)
			reporttest.Told(t, m.pods, "GPUShareExceeded")
			reporttest.Told(t, m.pods, "GPUNotEvicted", tc.text)
			m.looks(300) // 10 minutes: after 10, 20, 40, 80, 160 and 300 seconds
			expect.Equal(t, 6, len(*asked), "times asked")
			reporttest.Told(t, m.pods)
			answer = nil
			m.looks(150)
			reporttest.Told(t, m.pods, "GPUEvicted")
			if strings.Count(fmt.Sprint(*asked), "uid-p") == 0 {
				t.Error("it was not asked for by its UID")
			}
		})
	}
}
