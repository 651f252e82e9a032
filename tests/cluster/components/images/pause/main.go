// SPDX-License-Identifier: Apache-2.0

// Command pause holds a pod's namespaces open until the pod goes. It is the
// first process of every sandbox.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	// A pod with a shared PID namespace makes this process the parent of
	// orphans, which somebody has to collect.
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, syscall.SIGCHLD)
	for {
		select {
		case <-stop:
			return
		case <-orphans:
			for {
				pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
				if pid <= 0 || err != nil {
					break
				}
			}
		}
	}
}
