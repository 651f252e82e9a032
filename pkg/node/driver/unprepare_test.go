// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/preparetest"
)

// told remembers on what Events were.
type told struct {
	record.EventRecorder
	objects []string
}

func (r *told) Eventf(object runtime.Object, _, reason, _ string, _ ...any) {
	if ref, ok := object.(*corev1.ObjectReference); ok {
		r.objects = append(r.objects, reason+" "+ref.Kind+" "+ref.Name)
	}
}

// What is deleted and does not end says why, as far as it is known who uses it.
func TestUsersAreToldWhyAClaimIsNotTakenBack(t *testing.T) {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c", UID: "u"}}
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "a", UID: "a1"}}
	again := c.DeepCopy()
	again.UID = "other"
	const onClaim = "GPUUnprepareFailed ResourceClaim c"
	knows := func(c *resourceapi.ResourceClaim) preparetest.Cluster {
		return preparetest.Cluster{Claims: []*resourceapi.ResourceClaim{c}}
	}
	for name, test := range map[string]struct {
		api  preparetest.Cluster
		want []string
	}{
		"known":         {knows(c), []string{onClaim, "GPUUnprepareFailed Pod a"}},
		"created again": {knows(again), []string{onClaim}},
		"API server":    {preparetest.Cluster{Away: map[string]bool{"c": true}}, []string{onClaim}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &told{}
			unprepareFailures{r, test.api}.tell(t.Context(), kubeletplugin.NamespacedObject{
				NamespacedName: types.NamespacedName{Namespace: "team", Name: "c"}, UID: "u"}, errors.New("in use"))
			expect.Equal(t, test.want, r.objects, "told")
		})
	}
}
