// SPDX-License-Identifier: Apache-2.0

package pending

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// errGone is why the work on a pod stops that waits no more.
var errGone = errors.New("the pod waits no more")

// underway is the work on one pod, which stops when the pod is gone.
type underway struct {
	mu   sync.Mutex
	uid  types.UID
	stop context.CancelCauseFunc
}

// begin returns a context for the work on a pod; done is to be called after it.
func (u *underway) begin(ctx context.Context, uid types.UID) (work context.Context, done func()) {
	work, stop := context.WithCancelCause(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.uid, u.stop = uid, stop
	return work, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.uid, u.stop = "", nil
		stop(nil)
	}
}

// end stops the work, if it is on this pod.
func (u *underway) end(uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stop != nil && u.uid == uid {
		u.stop(errGone)
	}
}
