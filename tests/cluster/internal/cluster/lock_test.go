// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// commands are several that work on one cluster of the nodes a and b, which is on disk only. The
// channel tells of each that has to wait.
func commands(t *testing.T, count int) ([]*Cluster, <-chan string) {
	t.Helper()
	dir, waiting := t.TempDir(), make(chan string)
	var all []*Cluster
	for range count {
		all = append(all, &Cluster{Dir: dir, Progress: func(format string, _ ...any) { waiting <- format }})
	}
	s := &state{Nodes: []*nodeState{{Node: Node{Name: "a"}, Number: 1}, {Node: Node{Name: "b"}, Number: 2}}}
	if err := all[0].save(s); err != nil {
		t.Fatal(err)
	}
	return all, waiting
}

func stateOf(t *testing.T, c *Cluster) *state {
	t.Helper()
	s, err := c.existing()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// onNode is what a command on a node does, but for the need for root.
func onNode(t *testing.T, c *Cluster, name string, f func(*state, *nodeState) error) error {
	t.Helper()
	return c.change(t.Context(), func(_ context.Context, s *state) error {
		return c.onNode(s, name, func(node *nodeState) error { return f(s, node) })
	})
}

// finish sets Made, and adds an image, as commands write at different times.
func finish(c *Cluster, s *state, node *nodeState) error {
	return errors.Join(c.update(s, func() { node.Made = true }),
		c.update(s, func() { node.Images = map[string]string{"image": node.Name} }))
}

func TestCommandsOnTwoNodesGoOnBesideEachOther(t *testing.T) {
	all, _ := commands(t, 2)
	err := onNode(t, all[0], "a", func(s *state, a *nodeState) error {
		// The other one begins and ends while this one still has its node.
		other := onNode(t, all[1], "b", func(s *state, b *nodeState) error { return finish(all[1], s, b) })
		return errors.Join(other, finish(all[0], s, a))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range stateOf(t, all[0]).Nodes {
		if !node.Made || node.Images["image"] != node.Name {
			t.Errorf("one command wrote over what the other had written: %+v", node)
		}
	}
}

func TestCommandsOnOneNodeTakeTurns(t *testing.T) {
	for name, first := range map[string]func(*Cluster, *state, *nodeState) error{
		"changed": finish,
		"removed": func(c *Cluster, s *state, node *nodeState) error {
			return c.update(s, func() {
				s.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n *nodeState) bool { return n == node })
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			all, waiting := commands(t, 2)
			second := make(chan error, 1)
			err := onNode(t, all[0], "a", func(s *state, a *nodeState) error {
				go func() {
					second <- onNode(t, all[1], "a", func(_ *state, a *nodeState) error {
						if !a.Made {
							return errors.New("it sees the node as it was before the first command")
						}
						return nil
					})
				}()
				select {
				case <-waiting:
				case err := <-second:
					return errors.Join(errors.New("the second command did not wait"), err)
				}
				return first(all[0], s, a)
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := <-second; (name == "removed") != errors.Is(err, errNoNode) || name == "changed" && err != nil {
				t.Errorf("the second command: %v", err)
			}
		})
	}
}

// What changes all of the cluster, as `down`, waits for those that change nodes, and they for it.
func TestCommandsOnTheClusterAreAlone(t *testing.T) {
	all, waiting := commands(t, 2)
	down := make(chan error, 1)
	err := onNode(t, all[0], "a", func(s *state, a *nodeState) error {
		go func() {
			unlock, err := all[1].alone(false)
			if err == nil {
				if !stateOf(t, all[1]).node("a").Made {
					err = errors.New("it began before the command on the node had ended")
				}
				// Before it is told: the next to lock is not to wait.
				unlock()
			}
			down <- err
		}()
		<-waiting
		return finish(all[0], s, a)
	})
	if err := errors.Join(err, <-down); err != nil {
		t.Fatal(err)
	}

	unlock, err := all[1].alone(true)
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error, 1)
	go func() { started <- onNode(t, all[0], "b", func(*state, *nodeState) error { return nil }) }()
	<-waiting
	unlock()
	if err := <-started; err != nil {
		t.Error(err)
	}
}
