// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// registrationMost is how long the kubelet may take to register the plugin: it watches
// its directory, and does so within a second.
const registrationMost = 30 * time.Second

// registration is whether the kubelet has registered this instance of the plugin.
type registration struct {
	clock clock.PassiveClock
	since time.Time
	is    atomic.Bool
}

func newRegistration(c clock.PassiveClock) *registration {
	return &registration{clock: c, since: c.Now()}
}

// done says that the kubelet has registered the instance.
func (r *registration) done() { r.is.Store(true) }

// missing says that the kubelet has not registered the instance; nil where it has.
func (r *registration) missing() error {
	if r.is.Load() {
		return nil
	}
	return cmp.Or(r.overdue(), errors.New("the kubelet has not registered the plugin yet"))
}

// overdue says what may be wrong where the kubelet takes longer than it does; nil where it
// does not.
func (r *registration) overdue() error {
	if r.is.Load() || r.clock.Since(r.since) < registrationMost {
		return nil
	}
	return fmt.Errorf("the kubelet has not registered the plugin within %s, and prepares no claims: see that it runs, "+
		"and that KUBELET_REGISTRAR_DIR and KUBELET_PLUGINS_DIR are the directories plugins_registry and plugins below its "+
		"--root-dir", registrationMost)
}
