// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// Node is what the node promised, for as long as its mode is to stay what it is and its GPUs are to be offered by one
// side only: it outlives the process, and the node's reboot.
type Node struct {
	// Wanted is the mode that the labels asked for last: it stays when they are
	// taken off.
	Wanted mode.Mode `json:"wanted,omitempty"`
	// Overruled are older labels that do not count (mode.Asked).
	Overruled map[string]string `json:"overruled,omitempty"`
	// Published is the mode that devices were last published in. Claims may be
	// allocated from them until the mode has been left properly.
	Published mode.Mode `json:"published,omitempty"`
	// Isolation is by what the GPUs' users were kept apart in them (mode.Offer).
	Isolation map[mode.Mode]string `json:"isolation,omitempty"`
	// Closed says that the devices have been closed to new claims for mode.Settle, since
	// they are about to be published otherwise. Claims that were allocated before are prepared; one that tolerates
	// the taint may have been allocated since, and is refused.
	Closed bool `json:"closed,omitempty"`
	// DevicePlugin says that a device plugin served the GPUs, and has not been gone
	// for long enough since.
	DevicePlugin bool `json:"devicePlugin,omitempty"`
	// DevicePluginLeft is when none had served them for long enough: pods that were
	// taken by the kubelet later have nothing of one. It is zero while DevicePlugin holds.
	DevicePluginLeft time.Time `json:"devicePluginLeft,omitzero"`
}

// keptNode is a Node as its file has it.
type keptNode struct {
	// Name is the node's: a disk that was copied from another node has what that one promised. Files of earlier versions
	// lack it.
	Name string `json:"name,omitempty"`
	Node
}

// Asked is what the labels came to last.
func (n Node) Asked() mode.Asked { return mode.Asked{Mode: n.Wanted, Overruled: n.Overruled} }

// Asks remembers what the labels come to.
func (n *Node) Asks(a mode.Asked) { n.Wanted, n.Overruled = a.Mode, a.Overruled }

// Offer is what devices were last published as; the zero Offer if there are none, or it is not known.
func (n Node) Offer() mode.Offer { return mode.Offer{Mode: n.Published, Isolation: n.Isolation} }

// Offers remembers what devices are published as.
func (n *Node) Offers(o mode.Offer) { n.Published, n.Isolation = o.Mode, o.Isolation }

// Node returns what PutNode kept, or false if there is nothing of this node. One that cannot be read is an error.
func (s *Store) Node() (Node, bool, error) {
	kept, found, err := s.node.Load()
	if err != nil {
		return Node{}, false, fmt.Errorf("read the node's last mode: %w", err)
	}
	if kept.Name != "" && kept.Name != s.nodeName {
		return Node{}, false, nil
	}
	return kept.Node, found, nil
}

// PutNode keeps what the node promises; it is on disk when PutNode returns. Hold LockNode where it offers something
// else than before: a claim is then entered before, or refused.
func (s *Store) PutNode(n Node) error {
	if err := s.node.Store(keptNode{Name: s.nodeName, Node: n}); err != nil {
		return fmt.Errorf("remember the node's mode: %w", err)
	}
	return nil
}
