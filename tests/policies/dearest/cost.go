// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/internal/stockallocator"
	"golang.org/x/sys/unix"
)

// cacheSize is that of the scheduler's cache of compiled expressions.
const cacheSize = 10

// most is the work after which a try is ended.
const most = 300 * time.Millisecond

// work is the CPU time that what was counted took on the slow core on which docs/internals/search-cost.md was
// measured: the least squares of 2154 random pods. Of those above 50 ms nine of ten are within half and 1.6
// times of it. What is not counted, such as a regular expression, is not in it.
func (c *cost) work(counters int) time.Duration {
	return time.Duration(1000 * (160 + 0.57*float64(c.steps) +
		0.08*float64(c.devices-c.allocated-c.compared-c.unusable) +
		(2.24+0.07*float64(counters))*float64(c.allocated) + (1.45+0.07*float64(counters))*float64(c.unusable) +
		1.13*float64(c.compared) + 0.0096*float64(c.walked) +
		5.9*float64(c.evaluated) + 0.48*float64(c.celCost) + 110*float64(c.compiled) + 0.73*float64(c.compiledBytes)))
}

// cost is what the stock allocator did to find that a pod has, or has not, devices on a node.
type cost struct {
	// cpu is the CPU time of the allocator's thread, counted what was counted took.
	cpu, counted time.Duration
	// steps are the calls of the allocator's allocateOne, as allocator.md counts them; devices are those that it
	// looked at in them, allocated those that it took. All are exact.
	steps, devices, allocated int64
	// compared are devices whose capacity was looked at; walked are allocations of shares, of whatever device, that
	// were looked through.
	compared, unusable, walked int64
	// evaluated are expressions and celCost what CEL counts for them; compiled are those that were not in
	// the cache, and compiledBytes is their length.
	evaluated, celCost, compiled, compiledBytes int64
	// ended says that it was ended before it was done.
	ended, fits bool
	err         error
}

// took is the work, unless that leaves out most of it.
func (c cost) took() time.Duration {
	if c.cpu > 3*c.counted+5*time.Millisecond {
		return c.cpu
	}
	return c.counted
}

func (c cost) String() string {
	text := fmt.Sprintf("%.1f ms (%.1f counted)", float64(c.cpu.Microseconds())/1000,
		float64(c.counted.Microseconds())/1000)
	if c.ended {
		text = "> 300 ms"
	}
	return fmt.Sprintf("%s, %d steps, %d devices, %d expressions (%d compiled)", text, c.steps, c.devices,
		c.evaluated,
		c.compiled)
}

// errEnded is what a try is ended with.
var errEnded = errors.New("too dear")

// measure has the stock allocator look for the claims on the node. A sink for its log counts what it does:
// the library tells of each device. The cache of expressions is empty at first, as after other pods.
// It ends at the limit.
func measure(t *target, claims []*resourceapi.ResourceClaim, limit time.Duration) (c cost) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := cpuTime()
	sink := &counter{cost: &c, target: t, limit: limit, until: begin + 4*limit}
	ctx := klog.NewContext(context.Background(), logr.New(sink))
	defer func() {
		c.cpu = cpuTime() - begin
		c.counted = c.work(t.counters)
		if r := recover(); r != nil {
			if r != errEnded { //nolint:errorlint // it is thrown as it is
				panic(r)
			}
			c.ended = true
		}
	}()
	allocator, err := structured.NewAllocator(ctx, stockallocator.Features(), t.allocated, t.classes, t.slices,
		stockallocator.Expressions(cacheSize))
	if err != nil {
		c.err = err
		return c
	}
	defer func() { c.steps = stepsOf(allocator) }()
	result, err := allocator.Allocate(ctx, theNode(), claims)
	c.fits, c.err = result != nil, err
	return c
}

// stepsOf is what the library counts itself; the type of it is its own.
func stepsOf(a structured.Allocator) int64 {
	method := reflect.ValueOf(a).MethodByName("GetStats")
	if !method.IsValid() {
		return 0
	}
	return method.Call(nil)[0].FieldByName("NumAllocateOneInvocations").Int()
}

func cpuTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano())
}

// counter is a sink of a log that counts what the allocator tells.
type counter struct {
	cost   *cost
	target *target
	// limit is that of the work, until when the thread's time ends, for what is not counted.
	limit, until time.Duration
	events       int
	// cached are the expressions in the cache, the last used first.
	cached []string
}

func (s *counter) Init(logr.RuntimeInfo)          {}
func (s *counter) Enabled(level int) bool         { return level == 7 }
func (s *counter) Error(error, string, ...any)    {}
func (s *counter) WithValues(...any) logr.LogSink { return s }
func (s *counter) WithName(string) logr.LogSink   { return s }
func (s *counter) Info(_ int, message string, args ...any) {
	switch message {
	case "CEL result":
		s.cost.evaluated++
		for i := 0; i+1 < len(args); i += 2 {
			switch value := args[i+1].(type) {
			case uint64: // actualCost
				s.cost.celCost += int64(value)
			case string:
				if args[i] == "expression" {
					s.look(value)
				}
			}
		}
		s.events |= 255
	case "Device in use", "Device in use in same claim", "Device not selectable":
		s.cost.devices++
	case "Device not usable":
		s.cost.devices++
		s.cost.unusable++
		s.walk(args[1])
	case "Device capacity not enough":
		s.cost.devices++
		s.cost.compared++
	case "Device allocated":
		s.cost.devices++
		s.cost.allocated++
	case "Device capacity allocated":
		s.walk(args[1])
		return
	default:
		return
	}
	if s.events++; s.events&255 == 0 && (s.cost.work(s.target.counters) > s.limit || cpuTime() > s.until) {
		panic(errEnded)
	}
}

// walk counts the shares, of whatever device, that the allocator goes through to see whether a device that can be
// shared is in use.
func (s *counter) walk(device any) {
	id, is := device.(structured.DeviceID)
	if _, held := s.target.allocated.AggregatedCapacity[id]; is && !held && s.target.shareable[id] {
		s.cost.walked += int64(len(s.target.allocated.AllocatedSharedDeviceIDs))
	}
}

// look does what the allocator's cache does.
func (s *counter) look(expression string) {
	at := len(s.cached)
	for i, e := range s.cached {
		if e == expression {
			at = i
			break
		}
	}
	if at == len(s.cached) {
		s.cost.compiled++
		// It takes longer than in proportion.
		s.cost.compiledBytes += int64(len(expression) + len(expression)*len(expression)/2500)
		if s.cached = append(s.cached, expression); at == cacheSize {
			at, s.cached = at-1, append(s.cached[:at-1], expression)
		}
	}
	copy(s.cached[1:at+1], s.cached[:at])
	s.cached[0] = expression
}

// theNode is the node of all targets.
func theNode() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName,
		Labels: map[string]string{corev1.LabelHostname: nodeName}}}
}
