// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// A kubelet's credential is good for removing its node's slices, as the kubelet does, and not for
// publishing GPUs: one without attributes would keep the pods of all nodes from being scheduled.
func TestKubeletsPublishNoGPUs(t *testing.T) {
	s := newServer(t)
	const refused = "a kubelet may write no ResourceSlice of driver gpu.aliyun.com: gpu-kubelet-plugin publishes them"
	kubelet := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup, user.AllAuthenticated}}
	of := func(driver string) *resourceapi.ResourceSlice {
		return slice(func(s *sliceSpec) { s.Driver = driver })
	}
	bare := slice(func(s *sliceSpec) { s.Devices = []resourceapi.Device{{Name: "gpu-0"}} })
	for name, test := range map[string]struct {
		who         user.Info
		object, old *resourceapi.ResourceSlice
		refused     string
	}{
		"a device without attributes": {kubelet, bare, nil, refused},
		"as the plugin writes it":     {kubelet, slice(nil), nil, refused},
		"a change":                    {kubelet, bare, slice(nil), refused},
		"another driver's to ours":    {kubelet, slice(nil), of("gpu.example.com"), refused},
		"ours to another driver's":    {kubelet, of("gpu.example.com"), slice(nil), refused},
		"a removal":                   {kubelet, nil, slice(nil), ""},
		"another driver's":            {kubelet, of("gpu.example.com"), nil, ""},
		"a change of another's":       {kubelet, of("gpu.example.com"), of("gpu.example.com"), ""},
		"a removal of another's":      {kubelet, nil, of("gpu.example.com"), ""},
		"an administrator's":          {&user.DefaultInfo{Name: "admin", Groups: []string{"system:masters"}}, bare, nil, ""},
		"of nobody's groups":          {&user.DefaultInfo{Name: "admin"}, bare, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, s.validate(test.who, test.object, test.old), test.refused)
		})
	}
}
