// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
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
	// Until is when the daemon is started anew, for clients that do not end; zero where it is not, since it may have
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
const mostListed = 5

// String is the fault in a sentence, with the numbers of processes.
func (f Fault) String() string {
	whose := "whose it was is not known: neither MPS nor the kernel's log says it"
	if f.Culprit != nil {
		whose = "it was that of " + f.Culprit.String() + " by the kernel's log"
	}
	var lost []string
	for i, c := range f.Lost {
		if i == mostListed {
			lost = append(lost, fmt.Sprintf("%d more", len(f.Lost)-i))
			break
		}
		lost = append(lost, c.String())
	}
	return fmt.Sprintf("a fatal fault of one program%s has ended the programs of all its clients, %s; %s; %s", f.Number(),
		cmp.Or(strings.Join(lost, ", "), "which are not known"), whose, f.Again())
}

// Number is the fault's number, in parentheses; empty where it is not known.
func (f Fault) Number() string {
	if f.XID == 0 {
		return ""
	}
	return fmt.Sprintf(" (XID %d)", f.XID)
}

// Again says when the GPU takes programs again.
func (f Fault) Again() string {
	const clock = time.TimeOnly + " MST"
	switch {
	case !f.Over.IsZero():
		return "the GPU takes programs again since " + f.Over.UTC().Format(clock)
	case f.Until.IsZero():
		return "the GPU takes programs again when all of these have ended"
	}
	return "the GPU takes programs again when all of these have ended, at " + f.Until.UTC().Format(clock) +
		" at the latest"
}
