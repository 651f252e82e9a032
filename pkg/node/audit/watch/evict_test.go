// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/apitest"
	"github.com/gpushare/dra-driver-gpushare/internal/reporttest"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/audit"
)

// Whoever makes a pod can make budgets that keep it. Where administrators say so, they keep it
// from nothing.
func TestEvictionOverBudgets(t *testing.T) {
	several := apierrors.NewInternalError(errors.New("This pod has more than one PodDisruptionBudget, which the " +
		"eviction subresource does not support."))
	for name, test := range map[string]struct {
		answer error
		over   bool
		want   int
	}{
		"a budget, and it holds": {apierrors.NewTooManyRequests("budget", 0), false, 0},
		"a budget":               {apierrors.NewTooManyRequests("budget", 0), true, 1},
		"several":                {several, true, 1},
		"one that changes":       {context.DeadlineExceeded, true, 1},
		"a webhook": {apierrors.NewForbidden(corev1.Resource("pods"), "p",
			errors.New("admission webhook denied the request")), true, 0},
		"none": {nil, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, func(o *Options) {
				o.Eviction = audit.Eviction{Kinds: []audit.Kind{audit.OverShare}, After: 10 * time.Second, OverBudgets: test.over}
			})
			m.evictions(func() error { return test.answer })
			var deleted []metav1.DeleteOptions
			apitest.Answer(m.client, "delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if d, ok := action.(clienttesting.DeleteActionImpl); ok {
					deleted = append(deleted, d.DeleteOptions)
				}
				return true, nil, nil
			})
			m.looks(30)
			if len(deleted) != test.want {
				t.Fatalf("%d deletions, want %d", len(deleted), test.want)
			}
			if test.want > 0 && *deleted[0].Preconditions.UID != "uid-p" {
				t.Errorf("deleted by %+v, want its UID", deleted[0].Preconditions)
			}
			reporttest.Told(t, m.pods, "GPUShareExceeded")
			reporttest.Told(t, m.pods, map[bool]string{true: "GPUEvicted", false: "GPUNotEvicted"}[test.want > 0 ||
				test.answer == nil])
		})
	}
}
