// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The first thread's mounts are what others take for the process's, and it does
// not end with a goroutine.
func TestNotOnTheFirstThread(t *testing.T) {
	const calls = 500
	threads := make(chan int, calls)
	for range calls {
		onThread(func() { threads <- unix.Gettid() })
	}
	for range calls {
		if <-threads == unix.Getpid() {
			t.Fatal("something has run on the process's first thread")
		}
	}
}
