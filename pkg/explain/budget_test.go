// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// oneGPU is a cluster with a node that shares a GPU.
func oneGPU(t *testing.T, limits Limits) *Cluster {
	t.Helper()
	classes, err := deviceclasses.Modes()
	expect.NoError(t, err)
	pool := v1alpha1.PoolName("n1")
	machine := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-0", Model: "NVIDIA-A10", MemoryMiB: 23028}}}
	built := devices.Build(machine, devices.Options{Pool: pool, Mode: mode.Share, Slots: 20}).Pools[pool]
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: devices.SliceSpec("n1", pool, built, built.Slices[0])}
	explainer := New(scheduling.NewEngine(scheduling.ExpressionsMost), limits)
	c, err := explainer.Look(scheduling.Published{Slices: []*view.Slice{view.Read(slice)}, Classes: classes})
	expect.NoError(t, err)
	return c
}

// manyRequests is a claim with 32 requests of 31 selectors each, no two alike.
func manyRequests(selector func(n int) string) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "loud", Name: "c"}}
	for r := range 32 {
		exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: "share.gpu.aliyun.com",
			AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
		for s := range 31 {
			exactly.Selectors = append(exactly.Selectors,
				resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: selector(31*r + s)}})
		}
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests,
			resourceapi.DeviceRequest{Name: fmt.Sprintf("r%d", r), Exactly: exactly})
	}
	return claim
}

// expensive is a selector that costs nearly as much as the scheduler allows.
func expensive(n int) string {
	return fmt.Sprintf("lists.range(80).all(i, lists.range(80).all(j, lists.range(10).all(k, i + j + k + %d >= 0)))", n)
}

func TestExpensiveSelectorsEndTheExplanation(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	for name, test := range map[string]struct {
		limits   Limits
		selector func(int) string
	}{
		"to evaluate": {Limits{Cost: 2 * resourceapi.CELSelectorExpressionMaxCost, Time: time.Hour, Combined: 1000},
			expensive},
		"to compile": {
			Limits{Cost: 2 * resourceapi.CELSelectorExpressionMaxCost, Time: time.Hour, Combined: 1000},
			func(n int) string { return fmt.Sprintf("%d >= 0", n) + strings.Repeat(" && true", 1000) },
		},
		"by the clock": {Limits{Cost: 1 << 62, Time: time.Nanosecond, Combined: 1000}, expensive},
	} {
		t.Run(name, func(t *testing.T) {
			c := oneGPU(t, test.limits)
			e, err := c.Explain(ctx, &corev1.Pod{}, []*resourceapi.ResourceClaim{manyRequests(test.selector)})
			expect.NoError(t, err)
			if !e.TooExpensive || !strings.Contains(e.Message, "too expensive to explain") {
				t.Errorf("it says %+v", e)
			}
			// Who asks again gets the same answer, for nothing: nothing is evaluated with such a context.
			over, cancel := context.WithCancel(ctx)
			cancel()
			again, err := c.Explain(over, &corev1.Pod{}, []*resourceapi.ResourceClaim{manyRequests(test.selector)})
			if err != nil || again != e {
				t.Errorf("asked again: %+v, %v", again, err)
			}
		})
	}
}

func TestManyCheapSelectorsAreExplained(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	c := oneGPU(t, Limits{Cost: 20 * resourceapi.CELSelectorExpressionMaxCost, Time: time.Hour,
		Combined: 0})
	claim := manyRequests(func(n int) string {
		return fmt.Sprintf(`device.attributes["gpu.aliyun.com"].memoryMiB >= %d`, n)
	})
	e, err := c.Explain(ctx, &corev1.Pod{}, []*resourceapi.ResourceClaim{claim})
	if err != nil || e.TooExpensive || !strings.Contains(e.Message, "are all taken or too full") {
		t.Errorf("it says %+v, %v", e, err)
	}
}

// A pod that is gone needs no explanation.
func TestExplanationEndsWithItsContext(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancelCause(ctx)
	gone := errors.New("the pod is gone")
	cancel(gone)
	c := oneGPU(t, Limits{Cost: 1 << 62, Time: time.Hour, Combined: 1000})
	_, err := c.Explain(ctx, &corev1.Pod{}, []*resourceapi.ResourceClaim{manyRequests(expensive)})
	expect.ErrorIs(t, err, gone)
}

// Pods with several claims ask each a question of its own.
func TestWhatWasToldIsBounded(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	c := oneGPU(t, Limits{Cost: 1 << 62, Time: time.Hour, Combined: 0})
	for n := range 2 * toldMost {
		var claims []*resourceapi.ResourceClaim
		for _, part := range []string{"a", "b"} {
			claims = append(claims,
				&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", part, n)}})
		}
		if _, err := c.Explain(ctx, &corev1.Pod{}, claims); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.told.Len(); n > toldMost {
		t.Errorf("it remembers %d explanations", n)
	}
}
