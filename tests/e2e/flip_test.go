//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
	"github.com/gpushare/dra-driver-gpushare/tests/e2e/harness"
)

const flipNode = "flip"

// Pods of both modes come and go all the time while the node's label changes, first
// each second and then each time that the node has followed. No card is ever held
// in two modes, and in the end the node is as the label says.
func TestLabelThatKeepsChanging(t *testing.T) {
	t.Parallel()
	cluster.Whole(t, flipNode)
	setMode := cluster.Label(t, flipNode, modeLabel)
	ns := cluster.Namespace(t)
	ns.Template(t, "card", harness.Requests(harness.Exclusive("gpu", 1)))
	ns.Template(t, "share", harness.Requests(harness.Share("gpu", "7Gi")))

	stop := make(chan struct{})
	t.Run("meanwhile", func(t *testing.T) {
		for _, template := range []string{"card", "share"} {
			t.Run(template, func(t *testing.T) {
				t.Parallel()
				comeAndGo(t, ns, flipNode, template, stop)
			})
		}
		t.Run("cards", func(t *testing.T) {
			t.Parallel()
			neverInTwoModes(t, flipNode, stop)
		})
		t.Run("label", func(t *testing.T) {
			t.Parallel()
			defer close(stop)
			changeLabel(t, setMode)
		})
	})

	began := time.Now()
	setMode("default")
	publishes(t, flipNode, devices(4, "gpu-%d")...)
	cluster.WaitNodeEvent(t, flipNode, began, "GPUModeServed", "4 GPUs are offered in mode exclusive")
	ns.Run(t, harness.Pod("after", flipNode, harness.FromTemplate("card")))
	seesItsCards(t, ns, "after", "main", ns.Granted(t, "after"))
}

func changeLabel(t *testing.T, set func(value string)) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for i := range 60 {
		set([]string{"default", "share"}[i%2])
		<-second.C
	}
	for range 2 {
		set("default")
		publishes(t, flipNode, devices(4, "gpu-%d")...)
		set("share")
		publishes(t, flipNode, cardsIn("share")...)
	}
}

// comeAndGo keeps making pods, two at a time, and takes each away when it runs, or
// does not within a few seconds, as where the node is in another mode or full.
func comeAndGo(t *testing.T, ns *harness.Namespace, node, template string, stop <-chan struct{}) {
	const patience = 3 * time.Second
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		names := []string{fmt.Sprintf("%s-%d-a", template, i), fmt.Sprintf("%s-%d-b", template, i)}
		for _, name := range names {
			ns.Create(t, harness.Pod(name, node, harness.FromTemplate(template)))
		}
		for _, name := range names {
			// That one does not is no error here.
			_ = harness.Poll(t.Context(), patience, func(ctx context.Context) error { return runs(ctx, ns, name) })
		}
		ns.Delete(t, names...)
	}
}

// neverInTwoModes looks at what the plugin has prepared, again and again.
func neverInTwoModes(t *testing.T, node string, stop <-chan struct{}) {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for seen := 0; ; {
		select {
		case <-stop:
			if seen == 0 {
				t.Error("no claim was seen to be prepared")
			}
			return
		case <-look.C:
		}
		records, err := cluster.Records(node)
		if err != nil {
			t.Error(err)
			return
		}
		modes := map[int]mode.Mode{}
		for _, record := range records {
			for _, grant := range record.Grants {
				seen++
				if other, held := modes[grant.Card.Index]; held && other != grant.Mode {
					t.Errorf("card %d is held in the modes %s and %s", grant.Card.Index, other, grant.Mode)
				}
				modes[grant.Card.Index] = grant.Mode
			}
		}
	}
}
