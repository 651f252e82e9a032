// SPDX-License-Identifier: Apache-2.0

package spread_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/placement"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// endless is an allocator that finds no end for one claim.
type endless struct {
	structured.Allocator
	unending types.UID
}

func (e endless) Allocate(ctx context.Context, node *corev1.Node, claims []*resourceapi.ResourceClaim) (
	[]resourceapi.AllocationResult, error) {
	if slices.ContainsFunc(claims, func(c *resourceapi.ResourceClaim) bool { return c.UID == e.unending }) {
		for ctx.Err() == nil {
		}
		return nil, ctx.Err()
	}
	return e.Allocator.Allocate(ctx, node, claims)
}

// A search without an end, as one with many requests and constraints is, ends for the sake of
// the other pods.
func TestSearchEnds(t *testing.T) {
	allocator := func(s *site) {
		s.engine = scheduling.NewEngine(100).With(func(ctx context.Context, features structured.Features,
			allocated structured.AllocatedState, classes structured.DeviceClassLister,
			published []*resourceapi.ResourceSlice, compiled *cel.Cache) (structured.Allocator, error) {
			stock, err := structured.NewAllocator(ctx, features, allocated, classes, published, compiled)
			return endless{stock, "claim"}, err
		})
	}
	other := claim(-1, 3, 1)
	other.Name, other.UID = "d", "other"
	later := waitingPod(refused)
	later.Name, later.UID = "q", "later"
	later.Spec.ResourceClaims[0].ResourceClaimName = ptr.To("d")
	run(t, published("1", behind, behind), []*resourceapi.ResourceClaim{claim(-1, 2, 1), other},
		[]*corev1.Pod{waitingPod(refused), later}, func(s *site) {
			time.Sleep(15 * time.Second)
			if told := s.waiting(); told == nil || told.Claim != "other" {
				t.Errorf("the node is told %+v, want of the claim for which there is room", told)
			}
		}, allocator)
}

// A gang is looked at as one, however many pods it has.
func TestALargeGangIsLookedAtAsOne(t *testing.T) {
	const size = 100
	var claims []*resourceapi.ResourceClaim
	var pods []*corev1.Pod
	for i := range size {
		c := claim(-1, 7)
		c.Name = fmt.Sprintf("c%03d", i)
		c.UID = types.UID(c.Name)
		pod := waitingPod("pod group is unschedulable, minCount (2) cannot be satisfied")
		pod.Name, pod.UID = fmt.Sprintf("p%03d", i), types.UID(fmt.Sprintf("pod-%d", i))
		pod.Labels = map[string]string{ack.LabelMinAvailable: strconv.Itoa(2)}
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("gang")}
		pod.Spec.ResourceClaims[0].ResourceClaimName = &c.Name
		claims, pods = append(claims, c), append(pods, pod)
	}
	run(t, published("1", behind, behind), claims, pods, func(s *site) {
		s.told("at once", &placement.Waiting{Claim: "c000", GiB: 14, Shares: 2})
		time.Sleep(2 * time.Minute)
		if looks := s.looks.Load(); looks > size/2 {
			t.Errorf("%d looks at a gang of %d pods in two minutes", looks, size)
		}
	})
}
