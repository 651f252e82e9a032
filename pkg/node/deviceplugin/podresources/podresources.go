// SPDX-License-Identifier: Apache-2.0

// Package podresources asks the kubelet which devices of device plugins, and of DRA drivers, it
// gave to which containers, by its PodResources API (k8s.io/kubelet/pkg/apis/podresources/v1).
package podresources

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
)

// DefaultSocket is where a kubelet with the usual root directory serves the API.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

const (
	// timeout bounds a call: the kubelet answers from memory.
	timeout = 5 * time.Second
	// mostBytes is what an answer may have, as the kubelet's own client allows it.
	mostBytes = 16 << 20
)

// Client asks the kubelet.
type Client struct {
	// Socket is the path of the socket that it serves the API at.
	Socket string
	// Own is the pod that this process runs in; empty outside of one.
	Own cache.ObjectName
}

// Devices returns what containers of the node's pods have of the resources of package
// taken. The kubelet lists pods that run or are about to, all their containers among
// them, and of init containers those that run beside the others.
func (c Client) Devices(ctx context.Context) (map[deviceplugin.Container]deviceplugin.Devices, error) {
	pods, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	devices := map[deviceplugin.Container]deviceplugin.Devices{}
	for _, pod := range pods {
		for _, container := range pod.GetContainers() {
			key := deviceplugin.Container{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Name: container.GetName()}
			devices[key] = devicesOf(container)
		}
	}
	return devices, nil
}

// Claimed is a device of a DRA driver that a pod has.
type Claimed struct {
	Driver, Pool, Device string
	// Pod is the pod, as namespace/name.
	Pod string
}

// Claimed returns the devices of DRA drivers that containers of the node's pods have.
func (c Client) Claimed(ctx context.Context) ([]Claimed, error) {
	pods, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	var claimed []Claimed
	for _, pod := range pods {
		name := pod.GetNamespace() + "/" + pod.GetName()
		for _, container := range pod.GetContainers() {
			for _, claim := range container.GetDynamicResources() {
				for _, r := range claim.GetClaimResources() {
					claimed = append(claimed, Claimed{r.GetDriverName(), r.GetPoolName(), r.GetDeviceName(), name})
				}
			}
		}
	}
	return claimed, nil
}

// list returns what the kubelet says of the node's pods. A kubelet that has just been started serves
// the API before it has the pods, and then lists none: so an answer without the own pod is none.
func (c Client) list(ctx context.Context) ([]*podresourcesv1.PodResources, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	connection, err := grpc.NewClient("unix:"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostBytes)))
	if err != nil {
		return nil, fmt.Errorf("connect with the kubelet at %s: %w", c.Socket, err)
	}
	defer connection.Close()
	answer, err := podresourcesv1.NewPodResourcesListerClient(connection).List(ctx,
		&podresourcesv1.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet at %s which containers have which devices: %w", c.Socket, err)
	}
	isOwn := func(pod *podresourcesv1.PodResources) bool {
		return pod.GetNamespace() == c.Own.Namespace && pod.GetName() == c.Own.Name
	}
	if c.Own.Name != "" && !slices.ContainsFunc(answer.GetPodResources(), isOwn) {
		return nil, fmt.Errorf("ask the kubelet at %s which containers have which devices: it does not list pod %s, in "+
			"which this runs: it has just been started, and tells in a moment", c.Socket, c.Own)
	}
	return answer.GetPodResources(), nil
}

func devicesOf(container *podresourcesv1.ContainerResources) deviceplugin.Devices {
	var out deviceplugin.Devices
	for _, d := range container.GetDevices() {
		name := corev1.ResourceName(d.GetResourceName())
		if len(d.GetDeviceIds()) == 0 || !deviceplugin.OfPlugin(name) {
			continue
		}
		if !slices.Contains(out.Resources, name) {
			out.Resources = append(out.Resources, name)
		}
		if deviceplugin.Native(name) {
			out.IDs = append(out.IDs, d.GetDeviceIds()...)
		}
	}
	return out
}
