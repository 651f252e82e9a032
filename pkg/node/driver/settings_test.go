// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
)

// toldEvents are node Events as they are told.
type toldEvents chan string

func (e toldEvents) Warn(reason, message string) { e <- "Warning " + reason + ": " + message }
func (e toldEvents) Normal(reason, _ string)     { e <- "Normal " + reason }
func (e toldEvents) Clear(reason string)         { e <- "Clear " + reason }

// Who changes a ConfigMap for all nodes sees on each node that it stays as it was, and why.
func TestRefusedSettingsAreTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	refused, events := make(chan error, 1), make(toldEvents)
	a := &agent{Config: Config{Refused: refused}, events: events}
	done := make(chan struct{})
	go func() { defer close(done); a.watchSettings(ctx) }()
	refused <- errors.New(`GPU_READ_INTERVAL="0": less than a second`)
	told := <-events
	expect.Says(t, told, "Warning "+v1alpha1.ReasonSettingsRefused, `GPU_READ_INTERVAL="0": less than a second`,
		"keeps its earlier settings")
	refused <- nil
	expect.Equal(t, "Clear "+v1alpha1.ReasonSettingsRefused, <-events, "told once they are right")
	cancel()
	<-done
}
