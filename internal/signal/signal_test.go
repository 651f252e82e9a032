// SPDX-License-Identifier: Apache-2.0

package signal_test

import (
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/internal/signal"
)

func TestBroadcastWakesAllWhoWaitOnce(t *testing.T) {
	var b signal.Broadcast
	b.Send() // for nobody
	one, other := b.Next(), b.Next()
	select {
	case <-one:
		t.Error("a broadcast from before wakes")
	default:
	}
	b.Send()
	<-one
	<-other
	select {
	case <-b.Next():
		t.Error("one broadcast wakes twice")
	default:
	}
}

func TestSignalsThatNobodyReceivedAreOne(t *testing.T) {
	c := make(chan struct{}, 1)
	signal.Send(c)
	signal.Send(c)
	<-c
	expect.Equal(t, 0, len(c), "one signal is received twice")
	signal.Send(c)
	expect.Equal(t, 1, len(c), "a signal after that is lost")
}
