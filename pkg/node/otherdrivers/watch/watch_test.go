// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/podresources"
)

const nvidia = "gpu.nvidia.com"

// noPods are Pods without any of a device plugin.
type noPods struct{}

func (noPods) Run(ctx context.Context) { <-ctx.Done() }
func (noPods) SetLeft(time.Time)       {}
func (noPods) Observe(context.Context, *gpu.Machine) (held.Reserved, error) {
	return held.Reserved{}, nil
}
func (noPods) Reserved(context.Context, *gpu.Machine) (held.Reserved, error) {
	return held.Reserved{}, nil
}

// kubelet answers what it is set to, and counts how often.
type kubelet struct {
	mu    sync.Mutex
	pods  []podresources.Claimed
	err   error
	asked int
	// before, if set, is called before it answers.
	before func()
}

func (k *kubelet) Claimed(context.Context) ([]podresources.Claimed, error) {
	if k.before != nil {
		k.before()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	return k.pods, k.err
}

func (k *kubelet) says(err error, pods ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err, k.pods = err, nil
	for _, pod := range pods {
		k.pods = append(k.pods, podresources.Claimed{Driver: nvidia, Pool: "n1", Device: "gpu-0", Pod: pod})
	}
}

func (k *kubelet) wasAsked() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

// bench is a node with GPU-0 and what watches it.
type bench struct {
	*Watch
	client  *fake.Clientset
	kubelet *kubelet
	machine *gpu.Machine
	file    string
	stop    func()
	// changes counts how often it was told of one, shown is what was shown last.
	changes atomic.Int64
	shown   string
	// damaged is what was told of files.
	damaged []error
}

func newBench(t *testing.T, objects ...runtime.Object) *bench {
	b := unstarted(t, objects...)
	b.start(t)
	return b
}

// unstarted is a bench on which nothing watches yet.
func unstarted(t *testing.T, objects ...runtime.Object) *bench {
	return &bench{client: fake.NewClientset(objects...), kubelet: &kubelet{},
		file:    filepath.Join(t.TempDir(), "otherdrivers.json"),
		machine: &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0"}}}, stop: func() {}}
}

// start begins to watch, as a new process.
func (b *bench) start(t *testing.T) {
	t.Helper()
	b.stop()
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	var err error
	b.Watch, err = New(ctx, Options{Client: b.client, NodeName: "n1", Kubelet: b.kubelet, Pods: noPods{}, File: b.file,
		OnChange: func() { b.changes.Add(1) }, OnUnread: func(err error) { t.Error(err) },
		OnDamaged: func(err error) { b.damaged = append(b.damaged, err) }})
	expect.NoError(t, err)
	_, err = b.Observe(ctx, b.machine)
	expect.ErrorIs(t, err, held.ErrPodsUnread)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		b.Run(ctx)
	}()
	b.stop = sync.OnceFunc(func() {
		cancel()
		<-stopped
	})
	t.Cleanup(b.stop)
}

// shows checks what is reserved of GPU-0: the driver that has it, and the pods. Whoever offers
// the GPU has to have been told of what is new.
func (b *bench) shows(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	// It has the machine only now, and may have to ask.
	if _, err := b.Observe(t.Context(), b.machine); err != nil && !errors.Is(err, held.ErrPodsUnread) {
		t.Fatal(err)
	}
	synctest.Wait()
	reserved, err := b.Observe(t.Context(), b.machine)
	expect.NoError(t, err)
	got := ""
	if g := reserved.GPU("GPU-0"); g.Whole {
		got = fmt.Sprint(g.Driver, g.Pods)
	}
	expect.Equal(t, want, got, "pod that has GPU-0")
	if changes := b.changes.Swap(0); changes == 0 && got != b.shown {
		t.Errorf("nobody was told that %q has GPU-0", got)
	}
	b.shown = got
}

// later lets the kubelet be asked again.
func later() {
	synctest.Wait()
	time.Sleep(askInterval)
	synctest.Wait()
}

// neighbour is what NVIDIA's driver publishes of the node.
func neighbour() *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n1-nvidia", UID: "n"},
		Spec: resourceapi.ResourceSliceSpec{Driver: nvidia, NodeName: ptr.To("n1"),
			Pool: resourceapi.ResourcePool{Name: "n1", Generation: 1, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"uuid": {StringValue: ptr.To("GPU-0")}}}}}}
}

func (b *bench) publish(t *testing.T) {
	t.Helper()
	expect.NoError(t, b.client.Tracker().Add(neighbour()))
}

func (b *bench) withdraw(t *testing.T) {
	t.Helper()
	expect.NoError(t, b.client.ResourceV1().ResourceSlices().Delete(t.Context(), "n1-nvidia", metav1.DeleteOptions{}))
}

// A GPU is another driver's while that publishes it, and after that until the last pod that has it
// from there has ended: the kubelet removes the slices of a driver that is away.
func TestGPUIsAnotherDriversUntilNobodyHasItThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.shows(t, "")
		b.publish(t)
		b.shows(t, nvidia+"[]")
		b.kubelet.says(nil, "team/p")
		later()
		b.shows(t, nvidia+"[team/p]")
		b.withdraw(t)
		later()
		b.shows(t, nvidia+"[team/p]")
		for pod, want := range map[string]bool{"team/p": true, "team/q": false} {
			expect.Equal(t, want, b.Has(pod, "GPU-0"), "pod %s has GPU-0 from another driver", pod)
		}
		// Neither a plugin that restarts nor a kubelet that does not answer lets it go.
		b.kubelet.says(errors.New("it does not answer"))
		b.start(t)
		b.shows(t, nvidia+"[]")
		b.kubelet.says(nil, "team/p")
		later()
		b.shows(t, nvidia+"[team/p]")
		b.kubelet.says(nil)
		later()
		b.shows(t, "")
	})
}

// Where the administrator says that the GPUs are this driver's, they are as soon as nobody has
// them there, and not while somebody has again.
func TestGPUThatIsThisDriversByTheNodesLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, neighbour())
		b.kubelet.says(nil, "team/p")
		b.SetOwner(v1alpha1.DriverName)
		b.shows(t, nvidia+"[team/p]")
		b.kubelet.says(nil)
		later()
		b.shows(t, "")
		// A plugin that restarts does not close it until it has asked.
		b.start(t)
		b.SetOwner(v1alpha1.DriverName)
		synctest.Wait()
		if reserved, err := b.Observe(t.Context(), b.machine); err == nil && reserved.GPU("GPU-0").Whole {
			t.Error("a plugin that restarts closes the GPU for a moment")
		}
		b.shows(t, "")
		b.kubelet.says(nil, "team/q")
		later()
		b.shows(t, nvidia+"[team/q]")
		b.kubelet.says(nil)
		b.SetOwner("")
		later()
		b.shows(t, nvidia+"[]")
	})
}

// A node on which no other driver has GPUs pays for one watch of nothing, which the API server selects, and for one
// question to the kubelet.
func TestNodeWithoutOtherDriversPaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nic := neighbour()
		nic.Spec.Driver, nic.Spec.Devices[0].Attributes = "nic", map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"resource.kubernetes.io/pciBusID": {StringValue: ptr.To("0000:60:00.0")}}
		b := newBench(t, nic)
		b.shows(t, "")
		later()
		later()
		b.shows(t, "")
		b.stop()
		expect.Equal(t, 1, b.kubelet.wasAsked(), "times the kubelet was asked")
		for _, action := range b.client.Actions() {
			list, ok := action.(k8stesting.ListActionImpl)
			if want := "spec.driver!=gpu.aliyun.com,spec.nodeName=n1"; ok && list.ListRestrictions.Fields.String() != want {
				t.Errorf("slices are listed by %q, want %q", list.ListRestrictions.Fields, want)
			}
		}
	})
}

// NVIDIA's driver was taken off the node before this one came: its pods run on, and which GPUs they
// have, nobody tells any more. So none is offered before the kubelet has been asked, or while one may be theirs.
func TestPodsOfADriverThatLeftBeforeThisOneCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, answers := unstarted(t), make(chan struct{})
		b.kubelet.says(nil, "team/p")
		b.kubelet.before = func() { <-answers }
		b.start(t)
		synctest.Wait()
		_, err := b.Observe(t.Context(), b.machine)
		expect.ErrorIs(t, err, held.ErrPodsUnread) // GPUs are offered only after the kubelet has answered
		close(answers)
		b.shows(t, nvidia+"[team/p]")
		// Also where the administrator says that the GPUs are this driver's, and for a plugin that restarts
		// while the kubelet does not answer.
		b.SetOwner(v1alpha1.DriverName)
		b.shows(t, nvidia+"[team/p]")
		b.kubelet.says(errors.New("it does not answer"))
		b.start(t)
		b.shows(t, nvidia+"[]")
		b.kubelet.says(nil)
		later()
		b.shows(t, "")
		later()
		asks := b.kubelet.wasAsked()
		later()
		expect.Equal(t, asks, b.kubelet.wasAsked(), "times the kubelet is asked though nobody has GPUs")
	})
}

// The driver comes back, and says which GPU its pods have.
func TestDriverThatComesBackSaysWhichGPUItsPodsHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unstarted(t)
		b.kubelet.says(nil, "team/p")
		b.machine = &gpu.Machine{GPUs: []gpu.GPU{{Index: 0, UUID: "GPU-0"}, {Index: 1, UUID: "GPU-1"}}}
		b.start(t)
		closed := func(when string, want ...bool) {
			t.Helper()
			later()
			reserved, err := b.Observe(t.Context(), b.machine)
			expect.NoError(t, err)
			for i, g := range b.machine.GPUs {
				expect.Equal(t, want[i], reserved.GPU(g.UUID).Whole, "%s, GPU %d is closed", when, i)
			}
		}
		closed("before it is back", true, true)
		b.publish(t)
		closed("once it is back", true, false)
		b.withdraw(t)
		closed("when it has gone again", true, false)
		b.kubelet.says(nil)
		closed("when the pod has ended", false, false)
	})
}

// A kubelet that does not answer keeps no GPUs of a node back on which no other driver is known, and is asked again.
func TestKubeletThatAnswersLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unstarted(t)
		b.kubelet.says(errors.New("it does not answer"))
		b.start(t)
		b.shows(t, "")
		b.kubelet.says(nil, "team/p")
		later()
		b.shows(t, nvidia+"[team/p]")
	})
}

// Other drivers' pods say nothing of the GPUs: their devices may be anything.
func TestDevicesOfDriversThatAreNotKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := unstarted(t)
		b.kubelet.pods = []podresources.Claimed{{Driver: "dra.cpu", Pool: "n1", Device: "cpudev000", Pod: "team/p"}}
		b.start(t)
		b.shows(t, "")
	})
}

// A file that cannot be read is set aside, and the administrator is told: what it said may be of pods that still run.
func TestDamagedFile(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "cut off": `[{"driver":"gpu.nv`, "another": `{"a":1}`,
		"null": "null"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := unstarted(t)
				expect.NoError(t, os.WriteFile(b.file, []byte(content), 0o600))
				b.kubelet.says(nil, "team/p")
				b.start(t)
				if aside := b.file + ".damaged"; len(b.damaged) != 1 || !strings.Contains(b.damaged[0].Error(), aside) {
					t.Errorf("told is %v, want where the file lies", b.damaged)
				}
				if kept, err := os.ReadFile(b.file + ".damaged"); err != nil || string(kept) != content {
					t.Errorf("set aside is %q, %v", kept, err)
				}
				b.shows(t, nvidia+"[team/p]")
				b.start(t)
				b.shows(t, nvidia+"[team/p]")
				expect.Equal(t, 1, len(b.damaged), "times told after the plugin restarted: %v", b.damaged)
			})
		})
	}
}
