// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// oneGPU is a cluster with a node that shares a GPU.
func oneGPU(t *testing.T) *Survey {
	t.Helper()
	classes, err := deviceclasses.Modes()
	expect.NoError(t, err)
	pool := v1alpha1.PoolName("n1")
	machine := &gpu.Machine{GPUs: []gpu.GPU{{UUID: "GPU-0", Model: "NVIDIA-A10", MemoryMiB: 23028}}}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourceapi.ResourceSliceSpec{
		Driver: v1alpha1.DriverName, NodeName: ptr.To("n1"),
		Pool: resourceapi.ResourcePool{Name: pool, ResourceSliceCount: 1},
		Devices: devices.Build(machine, devices.Options{Pool: pool, Mode: mode.Share,
			Slots: 20}).Pools[pool].Slices[0].Devices,
	}}
	c, err := NewEngine(ExpressionsMost).NewSurveyor().Look(Published{Slices: []*view.Slice{view.Read(slice)},
		Classes: classes})
	expect.NoError(t, err)
	return c
}

// manySelectors is a request with 31 selectors, no two alike.
func manySelectors(selector func(n int) string) Request {
	r := Request{Name: "r", Class: "share.gpu.aliyun.com", Count: 1}
	for s := range 31 {
		r.Selectors = append(r.Selectors, selector(s))
	}
	return r
}

// expensive is a selector that costs nearly as much as the scheduler allows.
func expensive(n int) string {
	return fmt.Sprintf("lists.range(80).all(i, lists.range(80).all(j, lists.range(10).all(k, i + j + k + %d >= 0)))", n)
}

// evaluated is how often expressions were evaluated for devices.
func (c *Survey) evaluated() int {
	n := 0
	for _, g := range c.groups {
		for _, of := range g.outcomes {
			for _, o := range of.known {
				if o != unknown {
					n++
				}
			}
		}
	}
	return n
}

// One that takes long is not evaluated at all, whatever may be spent.
func TestASelectorThatTakesLongIsNotEvaluated(t *testing.T) {
	s := oneGPU(t)
	r := Request{Name: "r", Class: "share.gpu.aliyun.com", Count: 1, Selectors: []string{expensive(1)}}
	if _, err := s.Search(t.Context(), NewMeter(1<<62), r, &corev1.Pod{}, anywhere); !errors.Is(err, ErrTooExpensive) ||
		s.evaluated() > 1 {
		t.Errorf("it ends with %v after %d evaluations", err, s.evaluated())
	}
}

func anywhere(*corev1.Node) bool { return true }

// A search ends when its cost is used up, after few evaluations.
func TestExpensiveSelectorsEndTheSearch(t *testing.T) {
	for name, selector := range map[string]func(int) string{
		"to evaluate": expensive,
		"to compile":  func(n int) string { return fmt.Sprintf("%d >= 0", n) + strings.Repeat(" && true", 1000) },
	} {
		t.Run(name, func(t *testing.T) {
			s := oneGPU(t)
			m := NewMeter(2 * resourceapi.CELSelectorExpressionMaxCost)
			var err error
			for n := 0; n < 32 && err == nil; n++ {
				_, err = s.Search(t.Context(), m, manySelectors(func(i int) string { return selector(31*n + i) }),
					&corev1.Pod{}, anywhere)
			}
			if evaluated := s.evaluated(); !errors.Is(err, ErrTooExpensive) || evaluated > 20 {
				t.Errorf("it ends with %v after %d evaluations", err, evaluated)
			}
		})
	}
}

// Nothing is evaluated for who does not wait for it.
func TestSearchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the pod is gone")
	cancel(gone)
	s := oneGPU(t)
	if _, err := s.Search(ctx, NewMeter(1<<62), manySelectors(expensive), &corev1.Pod{}, anywhere); !errors.Is(err,
		gone) || s.evaluated() > 0 {
		t.Errorf("it ends with %v after %d evaluations", err, s.evaluated())
	}
}
