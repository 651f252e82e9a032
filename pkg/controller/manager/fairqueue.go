// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"strings"
	"sync"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// turn is what a key is charged when it is taken, before it is known how long its
// Reconcile takes: workers that take keys at the same time take them of several
// namespaces.
const turn = time.Millisecond

// namespaceOf is the namespace of a key in the form namespace/name. All other keys
// are of one.
func namespaceOf(key string) string {
	namespace, _, found := strings.Cut(key, "/")
	if !found {
		return ""
	}
	return namespace
}

// fairQueue is a workqueue.Queue that serves the namespace next whose keys have had
// the least time, and the keys of one in their order. However many keys a namespace
// has and however long they take, another one waits for no more than the key that is
// being worked on. What was not used while nothing waited is not saved up.
type fairQueue struct {
	// mu is for charge; all else is called under the lock of the workqueue.
	mu sync.Mutex
	// shares has the namespaces with keys, and those whose time is later than now: they wait for the others if they
	// come back. order has the namespaces with keys; len is the number of keys.
	shares map[string]*share
	order  *toolscache.Heap
	len    int
	// now is the time of the namespace that was served last.
	now time.Duration
	// count numbers namespaces as they come, which orders those of equal time.
	count int
	// pruneAt is how many namespaces shares may hold before it is pruned.
	pruneAt int
}

// share is the time that a namespace has used, and its keys.
type share struct {
	namespace string
	keys      workqueue.Queue[string]
	used      time.Duration
	came      int
}

func newFairQueue() *fairQueue {
	return &fairQueue{shares: map[string]*share{}, order: toolscache.NewHeap(keyOf, comesFirst), pruneAt: pruneLeast}
}

// keyOf is a cache.KeyFunc of shares.
func keyOf(object any) (string, error) {
	s, _ := object.(*share)
	return s.namespace, nil
}

// comesFirst is a cache.LessFunc of shares: the namespace with the least time is first.
func comesFirst(a, b any) bool {
	one, _ := a.(*share)
	other, _ := b.(*share)
	if one.used != other.used {
		return one.used < other.used
	}
	return one.came < other.came
}

// Touch implements workqueue.Queue.
func (q *fairQueue) Touch(string) {}

// Push implements workqueue.Queue.
func (q *fairQueue) Push(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.of(namespaceOf(key))
	if s.keys.Len() == 0 {
		q.count++
		s.came = q.count
	}
	s.keys.Push(key)
	q.len++
	q.sort(s)
}

// Len implements workqueue.Queue.
func (q *fairQueue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.len
}

// Pop implements workqueue.Queue; there has to be a key.
func (q *fairQueue) Pop() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	// The heap is never closed.
	first, _ := q.order.Pop()
	s, _ := first.(*share)
	key := s.keys.Pop()
	q.len--
	q.now = s.used
	q.count++
	s.came = q.count
	s.used += turn
	q.sort(s)
	if q.len == 0 {
		// Nobody is kept waiting by what was used.
		clear(q.shares)
		q.now = 0
	}
	return key
}

// charge says how long the Reconcile of a key took.
func (q *fairQueue) charge(key string, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if rest := took - turn; rest > 0 {
		s := q.of(namespaceOf(key))
		s.used += rest
		q.sort(s)
	}
}

// of returns the share of a namespace. A namespace without keys starts with no less time than the one that was served
// last.
func (q *fairQueue) of(namespace string) *share {
	s := q.shares[namespace]
	if s == nil {
		q.prune()
		s = &share{namespace: namespace, keys: workqueue.DefaultQueue[string]()}
		q.shares[namespace] = s
	}
	if s.keys.Len() == 0 {
		s.used = max(s.used, q.now)
	}
	return s
}

// sort moves a namespace to its place among those with keys.
func (q *fairQueue) sort(s *share) {
	if s.keys.Len() > 0 {
		// A share always has a key.
		_ = q.order.Update(s)
	}
}

// pruneLeast is how many namespaces are remembered in any case.
const pruneLeast = 100

// prune forgets what makes no difference any more, once there is much of it.
func (q *fairQueue) prune() {
	if len(q.shares) <= q.pruneAt {
		return
	}
	for namespace, s := range q.shares {
		if s.used <= q.now && s.keys.Len() == 0 {
			delete(q.shares, namespace)
		}
	}
	q.pruneAt = 2*len(q.shares) + pruneLeast
}
