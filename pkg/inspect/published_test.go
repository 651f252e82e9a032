// SPDX-License-Identifier: Apache-2.0

package inspect_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// The files of testdata hold output of the known tool as it was published: in ACK's
// documentation of shared GPU scheduling and of registered clusters, and in users'
// reports. Blanks at the ends of lines, which documents lose, are those that its
// text/tabwriter makes of cells that end in a tab, and its details have two empty
// lines before the last one. Its order of nodes is random; here they are sorted.
func TestPublishedSamples(t *testing.T) {
	v100, small, a30 := newGPU("Tesla-V100", 16130), newGPU("Tesla-P4", 7611), newGPU("NVIDIA-A30", 24258)
	beijing := []string{"cn-beijing.192.16x.x.xx3", "cn-beijing.192.16x.x.xx1", "cn-beijing.192.16x.x.xx2"}
	var threeSlices []*resourceapi.ResourceSlice
	var threeNodes []*corev1.Node
	for _, name := range beijing {
		threeSlices = append(threeSlices, publish(name, mode.CGPU, v100)...)
		threeNodes = append(threeNodes, node(name, name[len("cn-beijing."):]))
	}
	tests := map[string]struct {
		file  string
		print func(inspect.Input, inspect.Style) string
		in    inspect.Input
	}{
		"an idle GPU": {"one-card-idle.txt", summary, inspect.Input{
			Slices: publish("cn-shanghai.192.168.6.104", mode.CGPU, v100),
			Nodes:  []*corev1.Node{node("cn-shanghai.192.168.6.104", "192.168.6.104")},
		}},
		"two idle GPUs": {"two-cards-idle.txt", summary, inspect.Input{
			Slices: publish("cn-shanghai.192.168.0.4", mode.CGPU, small, small),
			Nodes:  []*corev1.Node{node("cn-shanghai.192.168.0.4", "192.168.0.4")},
		}},
		"a share": {"one-share.txt", summary, inspect.Input{
			Slices: publish("cn-hangzhou.10.207.173.253", mode.CGPU, v100),
			Nodes:  []*corev1.Node{node("cn-hangzhou.10.207.173.253", "10.207.173.253")},
			Claims: []*resourceapi.ResourceClaim{claim("default/gpu-share-sample", "cn-hangzhou.10.207.173.253 gpu-0-cgpu 3")},
		}},
		"three nodes": {"three-nodes.txt", summary, inspect.Input{Slices: threeSlices, Nodes: threeNodes}},
		"eight GPUs": {"eight-cards.txt", summary, inspect.Input{
			Slices: publish("dev-server-153", mode.Share, slices.Repeat([]gpu.GPU{a30}, 8)...),
			Nodes:  []*corev1.Node{node("dev-server-153", "192.168.0.153")},
		}},
		"details": {"details-of-one-node.txt", details, inspect.Input{
			Slices: publish("cn-hangzhou.192.168.2.167", mode.CGPU, v100),
			Nodes:  []*corev1.Node{node("cn-hangzhou.192.168.2.167", "192.168.2.167")},
			Claims: []*resourceapi.ResourceClaim{
				claim("default/app-3g-v1-1", "cn-hangzhou.192.168.2.167 gpu-0-cgpu 4"),
				claim("default/app-3g-v1-0", "cn-hangzhou.192.168.2.167 gpu-0-cgpu 4"),
			},
		}},
		"details, long names": {"details-of-long-names.txt", details, inspect.Input{
			Slices: publish("node5", mode.Share, small),
			Nodes:  []*corev1.Node{node("node5", "10.202.115.1")},
			Claims: []*resourceapi.ResourceClaim{
				claim("default/tf-jupyter-954ffbbf8-lztc9", "node5 gpu-0-share 3"),
				claim("default/tf-jupyter2-69b6f97566-j4f4w", "node5 gpu-0-share 3"),
			},
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join("testdata", test.file))
			expect.NoError(t, err)
			expect.Equal(t, string(want), test.print(test.in, inspect.Style{}), "published")
		})
	}
}
