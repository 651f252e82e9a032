// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// Client is a process that used a GPU by a daemon.
type Client struct {
	PID int `json:"pid"`
	// Program is the name that it has given itself, Pod the UID by which the kubelet knows its pod; empty where that is
	// not known, as of one that has ended.
	Program string    `json:"program,omitempty"`
	Pod     types.UID `json:"pod,omitempty"`
}

func (c Client) String() string {
	return fmt.Sprintf("process %d (%s)", c.PID, cmp.Or(c.Program, "unknown"))
}

// Fault is a fatal fault of one program, as an illegal address or a failed assert. By NVIDIA's documents MPS reports it
// to all clients on the GPU, whose programs are lost with it, does not say whose it was, and takes no new clients until
// all have ended.
type Fault struct {
	Seen time.Time `json:"seen"`
	// Until is when the daemon is started again, for clients that do not end; zero where it is not, since it may have
	// clients on other GPUs, which go on.
	Until time.Time `json:"until,omitzero"`
	// Over is when the GPU took clients again; zero before.
	Over time.Time `json:"over,omitzero"`
	// XID is the error by the kernel's log, 0 where that has none, and Culprit the client that it names; nil for none.
	XID     int     `json:"xid,omitempty"`
	Culprit *Client `json:"culprit,omitempty"`
	// Lost are all clients.
	Lost []Client `json:"lost,omitempty"`
}

// mostListed keeps messages short.
const mostListed = 6

// Tell is the fault in a sentence, with clients by these names.
func (f Fault) Tell(name func(Client) string) string {
	whose, number := "which neither MPS nor the kernel's log names", ""
	if f.Culprit != nil {
		whose = "by the kernel's log " + name(*f.Culprit)
	}
	if f.XID != 0 {
		number = fmt.Sprintf(" (XID %d)", f.XID)
	}
	var lost []string
	for _, c := range f.Lost {
		lost = append(lost, name(c))
	}
	again := "again when these have ended"
	const clock = time.TimeOnly + " MST"
	if !f.Over.IsZero() {
		again = "again since " + f.Over.UTC().Format(clock)
	} else if !f.Until.IsZero() {
		again += ", at " + f.Until.UTC().Format(clock) + " at the latest"
	}
	return fmt.Sprintf("a fatal fault of one program%s, %s, has ended all programs under MPS on the GPU: %s; the GPU "+
		"takes programs %s",
		number, whose, text.List(lost, mostListed), again)
}
