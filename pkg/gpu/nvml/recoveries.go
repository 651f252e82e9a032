// SPDX-License-Identifier: Apache-2.0

package nvml

import "sync"

// Recoveries knows of which GPUs the driver tells each change of the recovery action, so that a Reader need not ask
// them for it each second. Events and a Reader share one.
type Recoveries struct {
	mu sync.Mutex
	// watched are these GPUs, by UUID. Those that are true were told of since they were asked last.
	watched map[string]bool
}

// NewRecoveries returns those of no GPU: each is asked every time.
func NewRecoveries() *Recoveries { return &Recoveries{watched: map[string]bool{}} }

func (r *Recoveries) watch(uuid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watched[uuid] = true
}

// told is called for every event of a GPU: whatever went wrong may change the action, too.
func (r *Recoveries) told(uuid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, watched := r.watched[uuid]; watched {
		r.watched[uuid] = true
	}
}

// lost says that no more events are told.
func (r *Recoveries) lost() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.watched)
}

// due reports whether the GPU has to be asked, which it is then.
func (r *Recoveries) due(uuid string) bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	changed, watched := r.watched[uuid]
	if watched {
		r.watched[uuid] = false
	}
	return changed || !watched
}
