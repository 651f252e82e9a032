// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// watchNode tells the publisher of every change of the node's labels.
func (a *agent) watchNode(ctx context.Context) {
	factory := informers.NewSharedInformerFactoryWithOptions(a.Client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, a.NodeName).String()
		}))
	informer := factory.Core().V1().Nodes().Informer()
	set := func(obj any) {
		node, ok := obj.(*corev1.Node)
		if !ok {
			return
		}
		if err := replaced(a.nodeUID, node); err != nil {
			a.fail(err)
			return
		}
		a.setNode(node)
	}
	update := func(_, obj any) { set(obj) }
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: set, UpdateFunc: update}); err != nil {
		a.fail(fmt.Errorf("watch node %s: %w", a.NodeName, err))
		return
	}
	informer.RunWithContext(ctx)
}

// replaced says that the node is another object than before. ResourceSlices belong to
// the Node by its UID, so that the garbage collector removes all that this process
// publishes; only a process that restarts uses the new UID.
func replaced(before types.UID, node *corev1.Node) error {
	if node.UID == before {
		return nil
	}
	return fmt.Errorf("node %s was deleted and registered again: its UID was %s and is %s now, so that the "+
		"ResourceSlices of the old one are gone: restarting to publish its GPUs", node.Name, before, node.UID)
}

// setNode passes on what the node's labels say.
func (a *agent) setNode(node *corev1.Node) {
	a.runtimeName.Store(&node.Status.NodeInfo.ContainerRuntimeVersion)
	disabled := mode.IsolationDisabled(node.Labels)
	a.preparer.SetIsolationDisabled(disabled)
	if disabled {
		a.events.Warn(v1alpha1.ReasonIsolationDisabled,
			fmt.Sprintf("The label %s=true switches off the limits of all claims that are prepared from now on; what they "+
				"were granted still counts", ack.NodeLabelDisableIsolation))
	} else {
		a.events.Clear(v1alpha1.ReasonIsolationDisabled)
	}
	slice, _ := mode.TimeSliceFromLabels(node.Labels) // the publisher tells what is wrong with it
	a.preparer.SetTimeSlice(slice)
	a.others.SetOwner(node.Labels[v1alpha1.LabelGPUDriver])
	a.publisher.SetNode(node)
}

// waitForNode reads the node, as long as it takes: without the API server
// there is nothing to do, and starting again would only take longer.
func waitForNode(ctx context.Context, client kubernetes.Interface, name string) (*corev1.Node, error) {
	var node *corev1.Node
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 5, Cap: 10 * time.Second}
	err := backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		var err error
		node, err = client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			klog.FromContext(ctx).Error(err, "The node cannot be read from the API server, will try again", "node", name)
		}
		return err == nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", name, err)
	}
	return node, nil
}
