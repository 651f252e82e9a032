// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/legacy"
)

// checkOfPod compares what the policies do with what legacy.OfPod says that they do, by which
// kubectl inspect cgpu plans.
func checkOfPod(t *testing.T, p *corev1.Pod, want string, refused error) {
	t.Helper()
	if !legacy.Asks(p) {
		if want != "" || refused != nil {
			t.Fatalf("%s: it asks for nothing, but the template is %q, %v", describe(p), want, refused)
		}
		return
	}
	request, err := legacy.OfPod(p)
	if err == nil {
		err = request.Searchable()
	}
	if (err == nil) != (refused == nil) {
		t.Fatalf("%s: the policies say %v, OfPod %v", describe(p), refused, err)
	}
	if err != nil {
		return
	}
	if request.Name() != want {
		t.Fatalf("%s: OfPod makes %q of it, the policies %q", describe(p), request.Name(), want)
	}
	for _, c := range members(legacy.Convert(p, request)) {
		for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
			for resource := range list {
				if strings.HasPrefix(string(resource), "aliyun.com/") {
					t.Fatalf("%s: converted, container %s still asks for %s", describe(p), c.Name, resource)
				}
			}
		}
	}
}
