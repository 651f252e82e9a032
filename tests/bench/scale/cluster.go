// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

// writers is how many requests the benchmark has under way at once.
const writers = 16

// leaseEvery is how often each node is said to be up. The controller manager
// gives a node up that it has not heard of for 50 s.
const leaseEvery = 25 * time.Second

// settled is how long the benchmark waits for the cluster to do something.
const settled = 3 * time.Minute

// cluster is the one that the nodes are registered with.
type cluster struct {
	config                 *rest.Config
	client                 kubernetes.Interface
	scheduler, controllers *component
	nodes                  []*corev1.Node
}

func connect(kubeconfig, scheduler, controllers string) (*cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("configure the API client: %w", err)
	}
	config.QPS = -1 // none of its limits
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+
		runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the API client: %w", err)
	}
	c := &cluster{config: config, client: client}
	if c.scheduler, err = newComponent(config, scheduler); err != nil {
		return nil, err
	}
	if c.controllers, err = newComponent(config, controllers); err != nil {
		return nil, err
	}
	return c, nil
}

// each runs f for 0 to n-1, some at once, until one fails.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range n {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return f(ctx, i)
		})
	}
	return group.Wait()
}

// register makes the nodes and waits until the cluster takes them for Ready.
func (c *cluster) register(ctx context.Context, nodes []*corev1.Node) error {
	c.nodes = make([]*corev1.Node, len(nodes))
	err := each(ctx, len(nodes), func(ctx context.Context, i int) error {
		var err error
		if c.nodes[i], err = c.client.CoreV1().Nodes().Create(ctx, nodes[i], metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make node %s: %w", nodes[i].Name, err)
		}
		return c.renew(ctx, nodes[i].Name)
	})
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, time.Second, settled, true, func(ctx context.Context) (bool, error) {
		list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		ready := 0
		for _, n := range list.Items {
			if len(n.Spec.Taints) == 0 {
				ready++
			}
		}
		return ready >= len(nodes), nil
	})
	if err != nil {
		return fmt.Errorf("wait until no node has a taint: %w", err)
	}
	return nil
}

// renew says that a node is up.
func (c *cluster) renew(ctx context.Context, node string) error {
	now := metav1.NowMicro()
	leases := c.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, now.UTC().Format(metav1.RFC3339Micro))
	_, err := leases.Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: node},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: ptr.To(int32(40)),
				RenewTime: &now},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renew the lease of node %s: %w", node, err)
	}
	return nil
}

// keepUp renews the leases of all nodes, evenly over time and some at once, until ctx ends:
// where the API server is slow, one after the other would be too late for the last.
func (c *cluster) keepUp(ctx context.Context) {
	turns := int(leaseEvery / time.Second)
	perTurn, next := (len(c.nodes)+turns-1)/turns, 0
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		first := next
		next = (next + perTurn) % len(c.nodes)
		err := each(ctx, perTurn, func(ctx context.Context, i int) error {
			return c.renew(ctx, c.nodes[(first+i)%len(c.nodes)].Name)
		})
		if err != nil && ctx.Err() == nil {
			progress("%v", err)
		}
	}, time.Second)
}

// publish replaces all slices of the nodes and says how long it took to write
// them.
func (c *cluster) publish(ctx context.Context, published [][]*resourceapi.ResourceSlice) (time.Duration, error) {
	api := c.client.ResourceV1().ResourceSlices()
	if err := api.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return 0, fmt.Errorf("remove the slices of the last mode: %w", err)
	}
	start := time.Now()
	err := each(ctx, len(published), func(ctx context.Context, i int) error {
		for _, slice := range published[i] {
			if _, err := api.Create(ctx, slice, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("write slice %s: %w", slice.Name, err)
			}
		}
		return nil
	})
	return time.Since(start), err
}

// make makes what pods and claims of the contestants need.
func (c *cluster) make(ctx context.Context, classes []*resourceapi.DeviceClass, contestants []contestant) error {
	ignoreExisting := func(err error) error {
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	_, err := c.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	if err := ignoreExisting(err); err != nil {
		return fmt.Errorf("make namespace %s: %w", namespace, err)
	}
	for _, class := range classes {
		_, err := c.client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
		if err := ignoreExisting(err); err != nil {
			return fmt.Errorf("make DeviceClass %s: %w", class.Name, err)
		}
	}
	for _, k := range contestants {
		for name, requests := range map[string][]resourceapi.DeviceRequest{k.template(): k.requests,
			k.unsatisfiableTemplate(): k.unsatisfiable()} {
			_, err := c.client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: resourceapi.ResourceClaimTemplateSpec{
					Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}}},
			}, metav1.CreateOptions{})
			if err := ignoreExisting(err); err != nil {
				return fmt.Errorf("make ResourceClaimTemplate %s: %w", name, err)
			}
		}
	}
	return nil
}

func (c contestant) template() string { return string(c.mode) }

func (c contestant) unsatisfiableTemplate() string { return string(c.mode) + "-unsatisfiable" }
