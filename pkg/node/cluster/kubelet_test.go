// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/cluster"
)

// kubelet knows the pods of its node by UID. The first call is one too many.
type kubelet struct {
	podsv1alpha1.UnimplementedPodsServer
	pods  map[types.UID]*corev1.Pod
	calls int
}

func (k *kubelet) GetPod(_ context.Context, r *podsv1alpha1.GetPodRequest) (*podsv1alpha1.GetPodResponse, error) {
	if k.calls++; k.calls == 1 {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	pod, is := k.pods[types.UID(r.GetPodUID())]
	if !is {
		return nil, status.Error(codes.NotFound, "no such pod")
	}
	content, err := pod.Marshal()
	return &podsv1alpha1.GetPodResponse{Pod: content}, err
}

// serve has a kubelet listen at the socket.
func serve(t *testing.T, socket string, k *kubelet) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podsv1alpha1.RegisterPodsServer(server, k)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

// Where the kubelet tells of its own pods, the API server is asked for none: a stolen token reads none then.
func TestPodsOfTheKubelet(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "pods-api.sock")
	there := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "there", UID: "1"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
			Env: []corev1.EnvVar{{Name: "CGPU_DISABLE", Value: "true"}}}}}}
	serve(t, socket, &kubelet{pods: map[types.UID]*corev1.Pod{"1": there}})
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim"}}
	for uid, name := range map[types.UID]string{"1": "there", "2": "gone"} {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor,
			resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: name, UID: uid})
	}
	client := fake.NewClientset()
	pods, err := cluster.Reader{Client: client, Kubelet: cluster.Kubelet(socket)}.Pods(t.Context(), claim)
	if err != nil || len(pods) != 1 || pods[0].Name != "there" || len(pods[0].Spec.Containers[0].Env) != 1 {
		t.Errorf("pods %v, error %v", pods, err)
	}
	if asked := client.Actions(); len(asked) > 0 {
		t.Errorf("the API server was asked %v", asked)
	}
	// A kubelet that does not tell is no reason to believe that nobody uses the claim.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = cluster.Reader{Client: client, Kubelet: cluster.Kubelet(socket + ".none")}.Pods(ctx, claim)
	if err == nil || !strings.Contains(err.Error(), "KUBELET_PODS_SOCKET") {
		t.Errorf("without a kubelet: error %v", err)
	}
}
