// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

const flipNode = "flip"

// Pods of both modes come and go all the time while the node's label changes, first
// each second and then each time that the node has followed and a pod has a GPU. No GPU is ever held
// in two modes, and in the end the node is as the label says.
func TestLabelThatKeepsChanging(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, flipNode)
	setMode := cluster.Label(t, flipNode, modeLabel)
	ns := cluster.Namespace(t)
	ns.Template(t, "card", harness.Requests(harness.Exclusive("gpu", 1)))
	ns.Template(t, "share", harness.Requests(harness.Share("gpu", "7Gi")))

	var seen grantsSeen
	end := harness.Meanwhile(t,
		comeAndGo(ns, flipNode, "card"),
		comeAndGo(ns, flipNode, "share"),
		neverInTwoModes(flipNode, seen.add),
	)
	changeLabel(t, setMode, &seen)
	end()

	began := time.Now()
	setMode("default")
	cluster.Publishes(t, flipNode, harness.DeviceNames(4, "gpu-%d")...)
	cluster.WaitNodeEvent(t, flipNode, began, "GPUModeServed", "4 GPUs are offered in mode exclusive")
	ns.Run(t, harness.Pod("after", flipNode, harness.FromTemplate("card")))
	ns.SeesItsGPUs(t, "after", "main", ns.Granted(t, "after"))
}

// changeLabel changes the label each second, whatever the node is at. Then it stays in each mode
// until a grant of that mode was seen: which of them are, while it changes, is chance.
func changeLabel(t *testing.T, set func(value string), seen *grantsSeen) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for i := range 20 {
		set([]string{"default", "share"}[i%2])
		<-second.C
	}
	for range 2 {
		set("default")
		cluster.PublishesInAnyOrder(t, flipNode, harness.DeviceNames(4, "gpu-%d")...)
		seen.wait(t, mode.Exclusive)
		set("share")
		cluster.PublishesInAnyOrder(t, flipNode, harness.DevicesIn("share")...)
		seen.wait(t, mode.Share)
	}
}

// grantsSeen counts grants, by mode.
type grantsSeen struct {
	lock   sync.Mutex
	byMode map[mode.Mode]int
}

func (g *grantsSeen) add(m mode.Mode) {
	g.lock.Lock()
	defer g.lock.Unlock()
	if g.byMode == nil {
		g.byMode = map[mode.Mode]int{}
	}
	g.byMode[m]++
}

func (g *grantsSeen) count(m mode.Mode) int {
	g.lock.Lock()
	defer g.lock.Unlock()
	return g.byMode[m]
}

// wait returns when a grant of a mode was seen after the call.
func (g *grantsSeen) wait(t *testing.T, m mode.Mode) {
	t.Helper()
	before := g.count(m)
	harness.Eventually(t, fmt.Sprintf("a grant in mode %s", m), func(context.Context) error {
		if g.count(m) == before {
			return errors.New("none was seen")
		}
		return nil
	})
}

// comeAndGo makes two pods, and takes them away when they run, or do not within a
// few seconds, as where the node is in another mode or full.
func comeAndGo(ns *harness.Namespace, node, template string) func(context.Context) error {
	const patience = 3 * time.Second
	return func(ctx context.Context) error {
		client := ns.Client.CoreV1().Pods(ns.Name)
		var names []string
		for range 2 {
			pod := harness.Pod("", node, harness.FromTemplate(template))
			pod.GenerateName = template + "-"
			made, err := client.Create(context.WithoutCancel(ctx), pod, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			names = append(names, made.Name)
		}
		for _, name := range names {
			// That one does not run is no error here.
			_ = harness.Poll(ctx, patience, func(ctx context.Context) error { return runs(ctx, ns, name) })
		}
		// Also at the end: nothing that is left may hold the node's mode.
		for _, name := range names {
			err := client.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
			// A pod that the node refused is evicted by the controller.
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		return nil
	}
}

// neverInTwoModes looks at what the plugin of a node has prepared, and tells of the mode of
// each grant that it finds.
func neverInTwoModes(node string, found func(mode.Mode)) func(context.Context) error {
	const interval = 20 * time.Millisecond
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
		records, err := cluster.Records(node)
		if err != nil {
			return err
		}
		modes := map[int]mode.Mode{}
		for _, record := range records {
			for _, grant := range record.Grants {
				if other, held := modes[grant.GPU.Index]; held && other != grant.Mode {
					return fmt.Errorf("GPU %d is held in the modes %s and %s", grant.GPU.Index, other, grant.Mode)
				}
				modes[grant.GPU.Index] = grant.Mode
				found(grant.Mode)
			}
		}
		return nil
	}
}
