// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"sync"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/deviceplugin/podresources"
)

// kubeletOnly is for nodes on which, as its administrators say, no pod of a device plugin
// runs. Should the kubelet know better, what it lists is taken all the same.
type kubeletOnly struct{ kubelet *kubeletAnswers }

// KubeletOnly returns Pods for such a node.
func KubeletOnly(kubelet podresources.Client) Pods {
	return &kubeletOnly{kubelet: &kubeletAnswers{client: kubelet}}
}

// Run implements [Pods].
func (k *kubeletOnly) Run(ctx context.Context) { <-ctx.Done() }

// SetLeft implements [Pods].
func (k *kubeletOnly) SetLeft(time.Time) {}

// Observe asks the kubelet. That it does not answer keeps nothing back.
func (k *kubeletOnly) Observe(ctx context.Context, m *gpu.Machine) (deviceplugin.Reserved, error) {
	return deviceplugin.Listed(nodeOf(m, k.kubelet.ask(ctx))), nil
}

// Reserved goes by what the kubelet said last: claims do not wait for it.
func (k *kubeletOnly) Reserved(_ context.Context, m *gpu.Machine) (deviceplugin.Reserved, error) {
	return deviceplugin.Listed(nodeOf(m, k.kubelet.last())), nil
}

// kubeletAnswers is what the kubelet said last of the devices that it gave to pods.
type kubeletAnswers struct {
	client podresources.Client

	mu     sync.Mutex
	at     time.Time
	answer deviceplugin.Kubelet
}

// goodFor is how long an answer of the kubelet's is good for. It bounds what pods cost
// that ask for devices and have none: whoever may write pods may write many, and the
// kubelet refuses to answer more than some 100 times a second.
const goodFor = time.Second

// last returns what the kubelet said last, if anything.
func (v *kubeletAnswers) last() deviceplugin.Kubelet {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.answer
}

// ask returns what the kubelet says now, or said a moment ago.
func (v *kubeletAnswers) ask(ctx context.Context) deviceplugin.Kubelet {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.at.IsZero() && time.Since(v.at) < goodFor {
		return v.answer
	}
	var answer deviceplugin.Kubelet
	answer.Containers, answer.Err = v.client.Devices(ctx)
	if ctx.Err() == nil {
		v.at, v.answer = time.Now(), answer
	}
	return answer
}
