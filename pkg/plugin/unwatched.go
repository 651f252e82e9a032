package plugin

import (
	"context"
	"fmt"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// podsWithoutClaim knows what pods hold that a device plugin started.
type podsWithoutClaim interface {
	// run works until the context ends.
	run(ctx context.Context)
	// look returns what is taken of the machine's cards, for the publisher; soon does so
	// for a claim. Both return errPodsUnread while that is not known.
	look(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error)
	soon(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error)
	// setLeft is told when the last device plugin left.
	setLeft(left time.Time)
}

// followPods watches the node's pods, unless none is of a device plugin.
func (a *agent) followPods(ctx context.Context, changed func()) error {
	if !a.WatchPods {
		a.pods = &unwatched{kubelet: &kubeletView{client: a.PodResources}}
		return nil
	}
	sights, err := a.openSights(ctx)
	if err != nil {
		return err
	}
	u, err := newUnclaimed(a.Client, a.NodeName, a.PodResources, sights, func() {
		a.events.clear(reasonPodsUnread)
		changed()
	}, a.tellPodsUnread)
	if err != nil {
		return err
	}
	if _, err := u.pods.AddEventHandler(a.users.handler()); err != nil {
		return fmt.Errorf("watch the pods of node %s: %w", a.NodeName, err)
	}
	a.pods = u
	return nil
}

func (u *unclaimed) setLeft(left time.Time) { u.sights.setLeft(left) }

// unwatched is for nodes on which, as its administrators say, no pod of a device plugin
// runs. Should the kubelet know better, what it lists is taken all the same.
type unwatched struct{ kubelet *kubeletView }

func (u *unwatched) run(ctx context.Context) { <-ctx.Done() }

func (u *unwatched) setLeft(time.Time) {}

// look asks the kubelet. That it does not answer keeps nothing back.
func (u *unwatched) look(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error) {
	return deviceplugin.Listed(deviceplugin.Node{Cards: allCards(m), Kubelet: u.kubelet.ask(ctx)}), nil
}

// soon goes by what the kubelet said last: claims do not wait for it.
func (u *unwatched) soon(_ context.Context, m *gpu.Machine) (deviceplugin.Taken, error) {
	return deviceplugin.Listed(deviceplugin.Node{Cards: allCards(m), Kubelet: u.kubelet.last()}), nil
}
