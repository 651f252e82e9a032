// SPDX-License-Identifier: Apache-2.0

// Command gpu-mps-check keeps a container from starting while nothing would hold
// it to its share of a card:
//
//	gpu-mps-check DIR UUID
//
// The container runtime runs it on the host, as a CDI hook, before each start of
// a container with limits under MPS. It fails unless the MPS control daemon of
// the card with that UUID serves, by what gpu-mps-supervisor keeps in DIR.
package main

import (
	"fmt"
	"os"

	"github.com/gpushare/dra-driver-gpushare/pkg/mps"
)

func main() {
	if len(os.Args) != 3 {
		fail("usage: gpu-mps-check DIR UUID")
	}
	if err := mps.Dir(os.Args[1]).Check(os.Args[2]); err != nil {
		fail(fmt.Sprintf("the container is not started, because nothing would hold it to its share of GPU %s: %v", os.Args[2],
			err))
	}
}

func fail(message string) {
	fmt.Fprintln(os.Stderr, "gpu-mps-check:", message)
	os.Exit(1)
}
