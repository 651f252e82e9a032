// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// patience has a call tried again of which the kubelet says that there are too many, or that it has just been started.
const patience = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.1s",
	"maxBackoff": "2s", "backoffMultiplier": 3,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "UNAVAILABLE"]}}]}`

// mostPodBytes is what a pod may have: more than the API server stores.
const mostPodBytes = 16 << 20

// Kubelet is the socket at which a kubelet serves the pods of its node (KEP-4188); empty for none.
type Kubelet string

// connect returns what reads a pod, which is nil where the node has none with that UID. Done ends it.
func (k Kubelet) connect() (read func(context.Context, corev1.ObjectReference) (*corev1.Pod, error), done func() error,
	err error) {
	connection, err := grpc.NewClient("unix:"+string(k), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(patience), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostPodBytes)))
	if err != nil {
		return nil, nil, fmt.Errorf("connect with the kubelet at %s: %w", k, err)
	}
	client := podsv1alpha1.NewPodsClient(connection)
	return func(ctx context.Context, ref corev1.ObjectReference) (*corev1.Pod, error) {
		answer, err := client.GetPod(ctx, &podsv1alpha1.GetPodRequest{PodUID: string(ref.UID)})
		if status.Code(err) == codes.NotFound {
			return nil, nil
		}
		pod := &corev1.Pod{}
		if err == nil {
			err = pod.Unmarshal(answer.GetPod())
		}
		if err != nil {
			return nil, fmt.Errorf("ask the kubelet at %s, as KUBELET_PODS_SOCKET says, which kubelets serve from 1.37 on: %w",
				k, err)
		}
		return pod, nil
	}, connection.Close, nil
}
