// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"container/heap"
	"strings"
	"sync"
	"time"

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
	// queued are the namespaces that have keys, by name and as a heap; len the number
	// of keys.
	queued map[string]*share
	order  shares
	len    int
	// used is what namespaces have used that may come back before the others have
	// had as much: those whose time is beyond now. now is the time of the namespace
	// that was served last.
	used map[string]time.Duration
	now  time.Duration
	// count numbers namespaces as they come, which orders those of equal time.
	count int
	// pruneAt is how many namespaces used may hold before it is pruned.
	pruneAt int
}

// share is a namespace that has keys.
type share struct {
	namespace string
	keys      workqueue.Queue[string]
	used      time.Duration
	came      int
	index     int
}

func newFairQueue() *fairQueue {
	return &fairQueue{queued: map[string]*share{}, used: map[string]time.Duration{}, pruneAt: pruneLeast}
}

// Touch implements workqueue.Queue.
func (q *fairQueue) Touch(string) {}

// Push implements workqueue.Queue.
func (q *fairQueue) Push(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	namespace := namespaceOf(key)
	s := q.queued[namespace]
	if s == nil {
		q.count++
		s = &share{namespace: namespace, keys: workqueue.DefaultQueue[string](), used: max(q.used[namespace], q.now),
			came: q.count}
		q.queued[namespace] = s
		heap.Push(&q.order, s)
	}
	s.keys.Push(key)
	q.len++
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
	s := q.order[0]
	key := s.keys.Pop()
	q.len--
	q.now = s.used
	q.count++
	s.came = q.count
	q.use(s.namespace, turn)
	if s.keys.Len() == 0 {
		heap.Remove(&q.order, s.index)
		delete(q.queued, s.namespace)
	}
	if len(q.queued) == 0 {
		// Nobody is kept waiting by what was used.
		clear(q.used)
		q.now = 0
	}
	return key
}

// charge says how long the Reconcile of a key took.
func (q *fairQueue) charge(key string, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if rest := took - turn; rest > 0 {
		q.use(namespaceOf(key), rest)
	}
}

// use adds to what a namespace has used.
func (q *fairQueue) use(namespace string, d time.Duration) {
	used := max(q.used[namespace], q.now) + d
	q.used[namespace] = used
	if s := q.queued[namespace]; s != nil {
		s.used = used
		heap.Fix(&q.order, s.index)
	}
	q.prune()
}

// pruneLeast is how many namespaces are remembered in any case.
const pruneLeast = 100

// prune forgets what makes no difference any more, once there is much of it.
func (q *fairQueue) prune() {
	if len(q.used) <= q.pruneAt {
		return
	}
	for namespace, used := range q.used {
		if used <= q.now && q.queued[namespace] == nil {
			delete(q.used, namespace)
		}
	}
	q.pruneAt = 2*len(q.used) + pruneLeast
}

// shares is a heap.Interface: the namespace with the least time is first.
type shares []*share

func (s shares) Len() int { return len(s) }

func (s shares) Less(i, j int) bool {
	if s[i].used != s[j].used {
		return s[i].used < s[j].used
	}
	return s[i].came < s[j].came
}

func (s shares) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i, j
}

// Push implements heap.Interface.
func (s *shares) Push(x any) {
	added, ok := x.(*share)
	if !ok {
		return
	}
	added.index = len(*s)
	*s = append(*s, added)
}

// Pop implements heap.Interface.
func (s *shares) Pop() any {
	last := (*s)[len(*s)-1]
	(*s)[len(*s)-1] = nil
	*s = (*s)[:len(*s)-1]
	return last
}
