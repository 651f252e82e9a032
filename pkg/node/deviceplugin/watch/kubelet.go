// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/news"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/held"
)

// Kubelet tells which containers have which devices of device plugins; podresources.Client is one.
type Kubelet interface {
	Devices(ctx context.Context) (map[deviceplugin.Container]deviceplugin.Devices, error)
}

// kubeletOnly is for nodes on which, as its administrators say, no pod of a device plugin
// runs. Should the kubelet know better, what it lists is taken all the same.
type kubeletOnly struct {
	kubelet *kubeletAnswers
	told    news.Teller
}

// KubeletOnly returns Pods for such a node.
func KubeletOnly(kubelet Kubelet) Pods {
	return &kubeletOnly{kubelet: &kubeletAnswers{kubelet: kubelet}}
}

// Run implements [Pods].
func (k *kubeletOnly) Run(ctx context.Context) { <-ctx.Done() }

// SetLeft implements [Pods].
func (k *kubeletOnly) SetLeft(time.Time) {}

// Observe asks the kubelet. Where it has never answered, nothing is kept back; what it said stays so
// until it says otherwise.
func (k *kubeletOnly) Observe(ctx context.Context, m *gpu.Machine) (held.Reserved, error) {
	answer := k.kubelet.ask(ctx, time.Time{})
	if ctx.Err() == nil && k.told.IsError(answer.Err) {
		klog.FromContext(ctx).Error(answer.Err, "The kubelet does not say which pods have GPUs of a device plugin: what it "+
			"said last counts, nothing if it never did; it is asked again")
	}
	reserved := deviceplugin.Listed(nodeOf(m, answer))
	reserved.Outdated = answer.Err != nil
	return reserved, nil
}

// Reserved uses what the kubelet said last: claims do not wait for it.
func (k *kubeletOnly) Reserved(_ context.Context, m *gpu.Machine) (held.Reserved, error) {
	return deviceplugin.Listed(nodeOf(m, k.kubelet.last())), nil
}

// kubeletAnswers is what the kubelet said last of the devices that it gave to pods. Where it does not
// answer, that is what it said before, beside the error.
type kubeletAnswers struct {
	kubelet Kubelet

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

// ask returns what the kubelet says now, or said a moment ago, asked not before that time.
func (v *kubeletAnswers) ask(ctx context.Context, notBefore time.Time) deviceplugin.Kubelet {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.at.IsZero() && time.Since(v.at) < goodFor && !v.answer.Asked.Before(notBefore) {
		return v.answer
	}
	answer := deviceplugin.Kubelet{Asked: time.Now()}
	answer.Containers, answer.Err = v.kubelet.Devices(ctx)
	if answer.Err != nil {
		answer.Containers = v.answer.Containers
	}
	if ctx.Err() == nil {
		v.at, v.answer = time.Now(), answer
	}
	return answer
}
