// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
)

// sweepInterval is how often the watch checks whether deleted pods still run, while some do.
const sweepInterval = time.Second

// Watch keeps a Picture through the one informer of the node's pods.
type Watch struct {
	*Picture
	informer cache.SharedIndexInformer
	told     cache.ResourceEventHandlerRegistration
}

// NewWatch returns a Watch, which keeps the Picture while it runs. It calls failed each time that it cannot read the
// pods.
func NewWatch(
	p *Picture, client kubernetes.Interface, nodeName string, follower Follower, failed func(error),
) (*Watch, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(deviceplugin.Transform),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", nodeName).String()
		}))
	w := &Watch{Picture: p, informer: factory.Core().V1().Pods().Informer()}
	p.follower = follower
	err := w.informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		cache.DefaultWatchErrorHandler(ctx, r, err)
		failed(err)
	})
	if err == nil {
		w.told, err = w.informer.AddEventHandler(p.Handler())
	}
	if err != nil {
		return nil, fmt.Errorf("watch the pods of node %s: %w", nodeName, err)
	}
	return w, nil
}

// Run keeps the Picture until the context ends. It calls listed once all pods have been seen.
func (w *Watch) Run(ctx context.Context, listed func()) {
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		w.informer.RunWithContext(ctx)
	}()
	// cache.WaitForCacheSync would look only ten times a second, and the first claims wait for this.
	select {
	case <-w.told.HasSyncedChecker().Done():
		listed()
		w.sweepOn(ctx)
	case <-ctx.Done():
	}
	<-stopped
}

// sweepOn sweeps until the context ends, while pods leave.
func (w *Watch) sweepOn(ctx context.Context) {
	for {
		var again <-chan time.Time
		if w.sweep() {
			again = time.After(sweepInterval)
		}
		select {
		case <-again:
		case <-w.leaves:
		case <-ctx.Done():
			return
		}
	}
}
