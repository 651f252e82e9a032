// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// DeviceClass makes a DeviceClass for the time of the test and returns its name.
func (n *Namespace) DeviceClass(t *testing.T, spec resourceapi.DeviceClassSpec) string {
	t.Helper()
	classes := n.Client.ResourceV1().DeviceClasses()
	class, err := classes.Create(t.Context(), &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Spec: spec}, metav1.CreateOptions{})
	expect.NoErrorf(t, err, "make a DeviceClass")
	t.Cleanup(func() {
		if err := classes.Delete(Context(t), class.Name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete DeviceClass %s: %v", class.Name, err)
		}
	})
	return class.Name
}

// AddNode brings up one more node with the GPUs of a machine file, in a mode, and waits until its plugin serves. The
// end of the test takes it away, as a cluster that is scaled in does.
func (c *Cluster) AddNode(t *testing.T, node, machine, mode string) {
	t.Helper()
	image, err := findBuilt("driver-image.tar")
	expect.NoError(t, err)
	// Commands to the cluster wait for each other.
	const patience = 5 * time.Minute
	t.Cleanup(func() {
		// The test's own context is over when its clean-up runs.
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := c.tool(ctx, "node", "remove", node); err != nil {
			t.Errorf("take node %s away: %v", node, err)
		}
	})
	c.Tool(t, "node", "add", "--image", image, node+"="+machine+":"+mode)
	c.Plugin(t, node)
}

// Label returns a function that sets a label of a node, or removes it where the
// value is empty. When the test ends, the label is what it was before.
func (c *Cluster) Label(t *testing.T, node, key string) func(value string) {
	t.Helper()
	before := Get(t, c.Client.CoreV1().Nodes(), node)
	t.Cleanup(func() {
		if err := c.label(Context(t), node, key, before.Labels[key]); err != nil {
			t.Errorf("put the labels of node %s back: %v", node, err)
		}
	})
	return func(value string) {
		t.Helper()
		expect.NoError(t, c.label(t.Context(), node, key, value))
	}
}

func (c *Cluster) label(ctx context.Context, node, key, value string) error {
	labels := map[string]*string{key: &value}
	if value == "" {
		labels[key] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	_, err = c.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// WaitNodeEvent waits for an Event of a node with a reason and a text, seen since
// a time.
func (c *Cluster) WaitNodeEvent(t *testing.T, node string, since time.Time, reason, text string) {
	t.Helper()
	Eventually(t, fmt.Sprintf("an Event %s of node %s with %q", reason, node, text), func(ctx context.Context) error {
		events, err := c.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node,
		})
		if err != nil {
			return err
		}
		recent := events.Items[:0]
		for _, event := range events.Items {
			// Events carry whole seconds.
			if !event.LastTimestamp.Time.Before(since.Truncate(time.Second)) {
				recent = append(recent, event)
			}
		}
		return hasEvent(recent, reason, text)
	})
}
