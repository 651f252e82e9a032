// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	gpuclaim "github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// evenness watches how evenly the shares of nodes' GPUs are allocated, at every moment.
type evenness struct {
	mu sync.Mutex
	// gpus is how many a node has.
	gpus map[string]int
	// claims are the GiB of each GPU that a claim was allocated, by node.
	claims map[types.UID]map[string]map[int]int64
	uneven []string
}

// watchEvenness fails the test where ever, of all shares that come and none that goes, the
// most that is taken of a GPU and the least differ by more than the largest share.
func watchEvenness(t *testing.T, gpus map[string]int) {
	t.Helper()
	e := &evenness{gpus: gpus, claims: map[types.UID]map[string]map[int]int64{}}
	factory := informers.NewSharedInformerFactory(cluster.Client, 0)
	claims := factory.Resource().V1().ResourceClaims().Informer()
	_, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: e.see, UpdateFunc: func(_, object any) { e.see(object) }, DeleteFunc: e.forget,
	})
	expect.NoError(t, err)
	factory.StartWithContext(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), claims.HasSynced) {
		t.Fatal(context.Cause(t.Context()))
	}
	t.Cleanup(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, what := range e.uneven {
			t.Error(what)
		}
	})
}

func (e *evenness) see(object any) {
	claim, ok := object.(*resourceapi.ResourceClaim)
	if !ok {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if claim.Status.Allocation == nil || e.claims[claim.UID] != nil {
		return
	}
	held := map[string]map[int]int64{}
	for _, result := range claim.Status.Allocation.Devices.Results {
		node := strings.TrimSuffix(result.Pool, "/gpu")
		indices, _, err := devices.ParseDeviceName(result.Device)
		if err != nil || e.gpus[node] == 0 {
			continue
		}
		if held[node] == nil {
			held[node] = map[int]int64{}
		}
		memory := result.ConsumedCapacity[v1alpha1.CapMemory]
		held[node][indices[0]] += memory.Value() / devices.GiB
	}
	e.claims[claim.UID] = held
	for node := range held {
		e.check(node)
	}
}

func (e *evenness) forget(object any) {
	if deleted, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = deleted.Obj
	}
	if claim, ok := object.(*resourceapi.ResourceClaim); ok {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.claims, claim.UID)
	}
}

func (e *evenness) check(node string) {
	taken, largest := make([]int64, e.gpus[node]), int64(0)
	for _, held := range e.claims {
		for index, units := range held[node] {
			taken[index] += units
			largest = max(largest, units)
		}
	}
	if slices.Max(taken)-slices.Min(taken) > largest {
		e.uneven = append(
			e.uneven,
			fmt.Sprintf("the GPUs of node %s had %v GiB taken, with no share larger than %d", node, taken, largest),
		)
	}
}

// packedNode waits until nothing of the test before is to be seen on a node in mode share with
// GPUs of 20 shares each: they are in order and open, and offer all of their shares.
func packedNode(t *testing.T, node string, gpus int) {
	t.Helper()
	cluster.Devices(t, node, "are packed, free and in order", func(published []resourceapi.Device) error {
		if len(published) != gpus {
			return fmt.Errorf("there are %d", len(published))
		}
		for i, device := range published {
			slots := device.Capacity[v1alpha1.CapSlots]
			if device.Name != fmt.Sprintf("gpu-%d-share", i) || len(device.Taints) > 0 || slots.Value.Value() != 20 {
				return fmt.Errorf("number %d is %s with %s slots and the taints %v", i, device.Name, slots.Value.String(),
					device.Taints)
			}
		}
		return nil
	})
}

// deploymentOn is one of a name whose pods go to some of the nodes.
func deploymentOn(name string, replicas int, pod *corev1.Pod, nodes ...string) *appsv1.Deployment {
	onOneOf(nodes...)(pod)
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1))
	return harness.Deployment(name, replicas, pod)
}

// hasTaken checks what pods of the namespace have of the GPUs of a node, whichever
// GPU has which.
func hasTaken(t *testing.T, ns *harness.Namespace, node string, want ...int64) {
	t.Helper()
	taken := ns.UnitsByGPU(t, node)
	slices.Sort(taken)
	expect.Equal(t, want, taken, "GiB taken of the GPUs of node %s, in order", node)
}

// spreadNode waits until nothing is left on a node of the test before, and it is spread.
func spreadNode(t *testing.T, node string, gpus int) {
	t.Helper()
	harness.Eventually(t, "the claims of node "+node+" to be gone", func(ctx context.Context) error {
		list, err := cluster.Client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, claim := range list.Items {
			if gpuclaim.AllocatedFrom(&claim) == node {
				return fmt.Errorf("claim %s/%s is there", claim.Namespace, claim.Name)
			}
		}
		return nil
	})
	offerShares(t, node, gpus, 1)
}

// offerShares waits until so many GPUs of a node have so many slots each, those that are taken
// included.
func offerShares(t *testing.T, node string, gpus int, want int64) {
	t.Helper()
	cluster.Devices(t, node, fmt.Sprintf("are %d with %d slots each", gpus, want),
		func(published []resourceapi.Device) error {
			if len(published) != gpus {
				return fmt.Errorf("there are %d", len(published))
			}
			for _, device := range published {
				if slots := device.Capacity[v1alpha1.CapSlots]; slots.Value.Value() != want {
					return fmt.Errorf("device %s has %s", device.Name, slots.Value.String())
				}
			}
			return nil
		})
}
