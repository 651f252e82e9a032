// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	upstream "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// injected is the environment of a container that has these CDI devices, as a runtime makes it.
func (n *node) injected(t *testing.T, ids ...string) []string {
	t.Helper()
	cache, err := upstream.NewCache(upstream.WithSpecDirs(n.cdiDir), upstream.WithAutoRefresh(false))
	expect.NoError(t, err)
	container := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
	for _, id := range ids {
		cache.GetDevice(id).ContainerEdits.DeviceNodes = nil // they are looked for on the host
	}
	if missing, err := cache.InjectDevices(container, ids...); err != nil {
		t.Fatalf("%v: %v", missing, err)
	}
	return container.Process.Env
}

// A privileged container sees all GPUs of the node: its environment names those that are its own, whatever the number
// of requests and claims by which it has them. There is nothing else, so programs that see their own GPUs alone find
// what they found before.
func TestContainersAreToldWhichGPUsAreTheirOwn(t *testing.T) {
	n := newNode(t)
	n.published = mode.Exclusive
	two, other := devicesOf("u1", "gpu-3", "gpu-0"), devicesOf("u2", "gpu-2")
	two.Status.Allocation.Devices.Results[0].Request = "a"
	two.Status.Allocation.Devices.Results[1].Request = "b"
	first := n.takes(t, two)
	second := n.takes(t, other)
	a, b, c := first[0].CDIDeviceIDs[0], first[1].CDIDeviceIDs[0], second[0].CDIDeviceIDs[0]
	for name, test := range map[string]struct{ has, want []string }{
		"one request":            {[]string{a}, []string{"3=GPU-3"}},
		"the other":              {[]string{b}, []string{"0=GPU-0"}},
		"both":                   {[]string{a, b}, []string{"0=GPU-0", "3=GPU-3"}},
		"those of another claim": {[]string{a, c, b}, []string{"0=GPU-0", "2=GPU-2", "3=GPU-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			var own, rest []string
			for _, v := range n.injected(t, test.has...) {
				if gpu, is := strings.CutPrefix(v, v1alpha1.EnvUUID); is {
					own = append(own, gpu)
				} else {
					rest = append(rest, v)
				}
			}
			slices.Sort(own)
			expect.Equal(t, test.want, own, "its GPUs")
			expect.Equal(t, []string{"COMMON=1", "NVIDIA_VISIBLE_DEVICES=void"}, rest, "besides")
		})
	}
}
