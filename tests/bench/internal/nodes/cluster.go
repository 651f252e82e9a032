// SPDX-License-Identifier: Apache-2.0

// Package nodes has a cluster of nodes without kubelets: a real API server and scheduler, and objects for all else.
package nodes

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/pods"
	"github.com/gpushare/dra-driver-gpushare/tests/bench/internal/process"
)

// writers is how many requests each sends at once.
const writers = 16

// leaseEvery is how often each node is said to be up. The controller manager
// gives a node up that it has not heard of for 50 s.
const leaseEvery = 25 * time.Second

// Cluster is a cluster whose control plane runs as processes of this machine.
type Cluster struct {
	Client     kubernetes.Interface
	kubeconfig string
	// Nodes are those that SetUp made, as the API server has them.
	Nodes []*corev1.Node
	// Pods makes the pods of the namespace.
	Pods *pods.Watcher
	// processes has the scheduler's processes, and the controller's while it runs.
	processes []int
}

// Connect connects to a cluster by the kubeconfig file that lies in its directory.
func Connect(kubeconfig string) (*Cluster, error) {
	config, err := program.ClientConfig(kubeconfig, "bench")
	if err != nil {
		return nil, err
	}
	client, err := program.Client(config, -1, 0) // without a limit
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(filepath.Dir(kubeconfig))
	if err != nil {
		return nil, err
	}
	scheduler, err := process.With("--config=" + filepath.Join(dir, "scheduler.yaml"))
	if err != nil {
		return nil, fmt.Errorf("find kube-scheduler: %w", err)
	}
	return &Cluster{Client: client, kubeconfig: kubeconfig, processes: scheduler[:1]}, nil
}

// SetUp makes nodes, which are up until ctx ends, and what pods of a namespace need, and watches these pods.
func (c *Cluster) SetUp(ctx context.Context, namespace string, templates map[string]resourceapi.ResourceClaimSpec,
	nodes []*corev1.Node) error {
	if err := c.Install(ctx, namespace, templates); err != nil {
		return err
	}
	if err := c.register(ctx, nodes); err != nil {
		return err
	}
	go c.keepUp(ctx)
	var err error
	c.Pods, err = pods.Watch(ctx, c.Client, namespace, false)
	return err
}

// CPU returns the processor time that the scheduler and, if it runs, the controller have used so far.
func (c *Cluster) CPU() ([]time.Duration, error) {
	var out []time.Duration
	for _, pid := range c.processes {
		used, err := process.CPU(pid)
		if err != nil {
			return nil, err
		}
		out = append(out, used)
	}
	return out, nil
}

// SchedulerMemory returns the scheduler's resident memory in MiB.
func (c *Cluster) SchedulerMemory() (float64, error) { return process.Resident(c.processes[0]) }

// Install makes a namespace with templates of claims, by their names, and the driver's DeviceClasses. Existing objects
// stay as they are.
func (c *Cluster) Install(ctx context.Context, namespace string,
	templates map[string]resourceapi.ResourceClaimSpec) error {
	classes, err := deviceclasses.All()
	if err != nil {
		return err
	}
	_, err = c.Client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	errs := []error{err}
	for _, class := range classes {
		_, err := c.Client.ResourceV1().DeviceClasses().Create(ctx, class, metav1.CreateOptions{})
		errs = append(errs, err)
	}
	for name, spec := range templates {
		_, err := c.Client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec},
		}, metav1.CreateOptions{})
		errs = append(errs, err)
	}
	err = utilerrors.FilterOut(utilerrors.NewAggregate(errs), apierrors.IsAlreadyExists)
	if err != nil {
		return fmt.Errorf("make namespace %s, and what pods there need: %w", namespace, err)
	}
	return nil
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
func (c *Cluster) register(ctx context.Context, nodes []*corev1.Node) error {
	c.Nodes = make([]*corev1.Node, len(nodes))
	err := each(ctx, len(nodes), func(ctx context.Context, i int) error {
		var err error
		if c.Nodes[i], err = c.Client.CoreV1().Nodes().Create(ctx, nodes[i], metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make node %s: %w", nodes[i].Name, err)
		}
		return c.renew(ctx, nodes[i].Name)
	})
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, time.Second, pods.Settled, true, func(ctx context.Context) (bool, error) {
		lost, err := c.lost(ctx)
		return lost == 0, err
	})
	if err != nil {
		return fmt.Errorf("wait until no node has a taint that keeps pods off: %w", err)
	}
	return nil
}

// lost returns how many of the nodes that register made have a taint that keeps pods off.
func (c *Cluster) lost(ctx context.Context) (int, error) {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	lost := len(c.Nodes)
	for _, n := range list.Items {
		if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Effect != corev1.TaintEffectPreferNoSchedule
		}) {
			lost--
		}
	}
	return lost, nil
}

// AllUp returns an error if the cluster has given up nodes: the scheduler tries those that are left alone, so what was
// measured is true of fewer nodes.
func (c *Cluster) AllUp(ctx context.Context) error {
	lost, err := c.lost(ctx)
	if err != nil {
		return fmt.Errorf("count the nodes that take pods: %w", err)
	}
	if lost > 0 {
		return fmt.Errorf("%d of %d nodes were given up, for the machine was too slow to renew their leases: leave it to "+
			"the benchmark, or ask for fewer nodes", lost, len(c.Nodes))
	}
	return nil
}

// renew says that a node is up.
func (c *Cluster) renew(ctx context.Context, node string) error {
	now := metav1.NowMicro()
	leases := c.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
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
func (c *Cluster) keepUp(ctx context.Context) {
	turns := int(leaseEvery / time.Second)
	perTurn, next := (len(c.Nodes)+turns-1)/turns, 0
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		first := next
		next = (next + perTurn) % len(c.Nodes)
		err := each(ctx, perTurn, func(ctx context.Context, i int) error {
			return c.renew(ctx, c.Nodes[(first+i)%len(c.Nodes)].Name)
		})
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Will try again")
		}
	}, time.Second)
}

// Publish replaces all slices of the nodes and says how long it took to write
// them.
func (c *Cluster) Publish(ctx context.Context, published [][]*resourceapi.ResourceSlice) (time.Duration, error) {
	api := c.Client.ResourceV1().ResourceSlices()
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
