// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

const (
	component = "gpu-mps-supervisor"
	// reportLimit is how long the API server may take or be away. The daemons do not
	// need it, and are back the later the longer it is; but nobody tells of this end
	// again.
	reportLimit    = 15 * time.Second
	reportInterval = time.Second
)

// newClient returns nil outside of a cluster: the supervisor can do without.
func newClient(ctx context.Context, kubeconfig string) (kubernetes.Interface, error) {
	config, err := program.ClientConfig(kubeconfig, component)
	if errors.Is(err, rest.ErrNotInCluster) {
		klog.FromContext(ctx).Info("Not in a cluster and without --kubeconfig: there will be no Events")
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return program.Client(config, rest.DefaultQPS, rest.DefaultBurst)
}

// report makes a node Event of the error that ends the supervisor. It is made
// here and now, and not by a recorder, which would end with the process. The same
// error has the same Event, with the time of the last one: the kubelet starts the
// supervisor again and again.
func report(ctx context.Context, client kubernetes.Interface, node string, failure error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportLimit)
	defer cancel()
	message := "No MPS on this node: " + failure.Error()
	hash := fnv.New32a()
	hash.Write([]byte(message))
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.mps-%x", node, hash.Sum32()), Namespace: metav1.NamespaceDefault},
		// "kubectl describe node" finds a node's Events by its name as UID too,
		// as the kubelet makes them.
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)},
		Type:           corev1.EventTypeWarning,
		Reason:         v1alpha1.ReasonMPSSupervisorFailed,
		Message:        message,
		Source:         corev1.EventSource{Component: component, Host: node},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	var last error
	err := wait.PollUntilContextCancel(ctx, reportInterval, true, func(ctx context.Context) (bool, error) {
		last = write(ctx, client, event)
		var answer apierrors.APIStatus
		denied := errors.As(last, &answer) && answer.Status().Code < http.StatusInternalServerError
		return last == nil || denied, nil
	})
	if err := cmp.Or(last, err); err != nil {
		return fmt.Errorf("tell of it in an Event of the node: %w", err)
	}
	return nil
}

// write makes the Event, or puts the time of the one that is there forward.
func write(ctx context.Context, client kubernetes.Interface, event *corev1.Event) error {
	events := client.CoreV1().Events(event.Namespace)
	_, err := events.Create(ctx, event, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	// It may not read Events, and so cannot count.
	patch := fmt.Appendf(nil, `{"lastTimestamp":%q}`, event.LastTimestamp.UTC().Format(time.RFC3339))
	_, err = events.Patch(ctx, event.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
