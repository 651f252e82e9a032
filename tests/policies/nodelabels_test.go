// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// The controller may write ACK's labels of nodes and those of GPU Feature Discovery's that it knows, and no others of
// NVIDIA's, by which the GPU Operator decides what runs on a node.
func TestNodeLabelsOfTheController(t *testing.T) {
	s := newServer(t)
	node := func(labels map[string]string) *corev1.Node {
		return &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: labels}}
	}
	for key, refused := range map[string]string{
		"aliyun.accelerator/nvidia_name": "", "nvidia.com/gpu.product": "", "nvidia.com/gpu.compute.major": "",
		"nvidia.com/cuda.driver-version.full": "", "nvidia.com/cuda.runtime.minor": "",
		"nvidia.com/gpu.deploy.device-plugin": "may change no label of a node but",
		"nvidia.com/mig.config":               "may change no label of a node but",
		"nvidia.com/gpu.products":             "may change no label of a node but",
		"zone":                                "may change no label of a node but",
	} {
		with, without := node(map[string]string{key: "1"}), node(nil)
		for what, objects := range map[string][2]*corev1.Node{"adds": {with, without}, "removes": {without, with},
			"changes": {with, node(map[string]string{key: "2"})}} {
			t.Run(what+" "+key, func(t *testing.T) {
				err := s.validate(&user.DefaultInfo{Name: "system:serviceaccount:kube-system:gpu-compat-controller"}, objects[0],
					objects[1])
				expect.Error(t, err, refused)
			})
		}
	}
}
