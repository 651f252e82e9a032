package watch

import (
	"context"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin/podresources"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// SetLeft implements [Pods].
func (u *unclaimed) SetLeft(left time.Time) { u.sights.setLeft(left) }

// unwatched is for nodes on which, as its administrators say, no pod of a device plugin
// runs. Should the kubelet know better, what it lists is taken all the same.
type unwatched struct{ kubelet *kubeletView }

// None returns Pods for such a node.
func None(kubelet podresources.Client) Pods {
	return &unwatched{kubelet: &kubeletView{client: kubelet}}
}

// Run implements [Pods].
func (u *unwatched) Run(ctx context.Context) { <-ctx.Done() }

// SetLeft implements [Pods].
func (u *unwatched) SetLeft(time.Time) {}

// Look asks the kubelet. That it does not answer keeps nothing back.
func (u *unwatched) Look(ctx context.Context, m *gpu.Machine) (deviceplugin.Taken, error) {
	return deviceplugin.Listed(deviceplugin.Node{Cards: allCards(m), Kubelet: u.kubelet.ask(ctx)}), nil
}

// Soon goes by what the kubelet said last: claims do not wait for it.
func (u *unwatched) Soon(_ context.Context, m *gpu.Machine) (deviceplugin.Taken, error) {
	return deviceplugin.Listed(deviceplugin.Node{Cards: allCards(m), Kubelet: u.kubelet.last()}), nil
}
