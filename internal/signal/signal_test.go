// SPDX-License-Identifier: Apache-2.0

package signal_test

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/signal"
)

func TestSignalsThatNobodyReceivedAreOne(t *testing.T) {
	c := make(chan struct{}, 1)
	signal.Send(c)
	signal.Send(c)
	<-c
	if len(c) != 0 {
		t.Error("one signal is received twice")
	}
	signal.Send(c)
	if len(c) != 1 {
		t.Error("a signal after that is lost")
	}
}
