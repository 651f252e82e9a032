// SPDX-License-Identifier: Apache-2.0

package memlimit

import (
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// patience is how long GPUs are waited for before all others are asked beside them.
const patience = time.Second

// answer is which GPU is at a place in NVML's order.
type answer struct {
	index  int
	handle nvml.Device
	uuid   string
	ret    nvml.Return
}

// find asks the GPUs which they are: nvmlDeviceGetHandleByUUID finds none while any GPU of the node is lost, and hangs
// where one does. The likely one is asked first and the others in turn, since a call that hangs in the kernel keeps a
// hook from ending. Where they are slow the rest are asked side by side.
func (l *Library) find(uuid string, likely int) (nvml.Device, error) {
	count, ret := l.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count the GPUs: %w", ret)
	}
	answers, asked := make(chan answer, count), 0
	defer l.leave(answers)
	next := func() {
		l.ask((likely+asked)%count, answers)
		asked++
	}
	slow := time.NewTimer(patience)
	defer slow.Stop()
	why := error(nvml.ERROR_NOT_FOUND)
	for answered := range count {
		if asked == answered {
			next()
		}
		var a answer
		select {
		case a = <-answers:
		case <-slow.C:
			for asked < count {
				next()
			}
			a = <-answers
		}
		switch {
		case a.ret != nvml.SUCCESS:
			why = fmt.Errorf("it may be GPU %d in NVML's order, which does not tell its UUID: %w", a.index, a.ret)
		case a.uuid == uuid:
			return a.handle, nil
		}
	}
	return nil, why
}

// ask sends which GPU is at that place. One that hangs is asked once for all who wait: each call would cost a thread.
func (l *Library) ask(index int, to chan<- answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting, asked := l.asking[index]
	l.asking[index] = append(waiting, to)
	if asked {
		return
	}
	go func() {
		a := answer{index: index}
		if a.handle, a.ret = l.lib.DeviceGetHandleByIndex(index); a.ret == nvml.SUCCESS {
			a.uuid, a.ret = a.handle.GetUUID()
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, to := range l.asking[index] {
			to <- a // which has room for an answer of each GPU
		}
		delete(l.asking, index)
	}()
}

// leave takes somebody who has found its GPU from those who wait.
func (l *Library) leave(to chan<- answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for index, waiting := range l.asking {
		l.asking[index] = slices.DeleteFunc(waiting, func(other chan<- answer) bool { return other == to })
	}
}
