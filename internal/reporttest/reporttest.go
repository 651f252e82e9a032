// SPDX-License-Identifier: Apache-2.0

// Package reporttest lets tests check the Events that were made.
package reporttest

import (
	"strings"
	"testing"

	"k8s.io/client-go/tools/record"
)

// Told checks that there is an Event with all the texts, which it takes out, or,
// without any, none.
func Told(t *testing.T, recorder *record.FakeRecorder, texts ...string) {
	t.Helper()
	select {
	case event := <-recorder.Events:
		if len(texts) == 0 {
			t.Errorf("there is an Event %q", event)
		}
		for _, text := range texts {
			if !strings.Contains(event, text) {
				t.Errorf("Event %q, want %q in it", event, text)
			}
		}
	default:
		if len(texts) > 0 {
			t.Errorf("there is no Event, want one with %q", texts)
		}
	}
}
