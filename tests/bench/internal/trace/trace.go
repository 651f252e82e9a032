// SPDX-License-Identifier: Apache-2.0

// Package trace takes apart the time from the creation of a pod until its container
// runs, by what the container runtime logs of it.
package trace

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"
)

// Pod is when containerd (2.x, log level info) began and ended what the kubelet asked it
// for. A time is zero if the log does not have it.
type Pod struct {
	SandboxBegin, SandboxEnd, CreateBegin, CreateEnd, StartBegin, StartEnd time.Time
}

var (
	line    = regexp.MustCompile(`^time="([^"]+)" level=info msg=("(?:[^"\\]|\\.)*")`)
	sandbox = regexp.MustCompile(
		`^RunPodSandbox for name:"([^"]+)" .*namespace:"([^"]+)"(?: returns sandbox id "([^"]+)")?$`)
	create = regexp.MustCompile(
		`^CreateContainer within sandbox "([^"]+)" for (?:container )?name:"[^"]+"(?: returns container id "([^"]+)")?$`)
	start = regexp.MustCompile(`^StartContainer for "([^"]+)"( returns successfully)?$`)
)

// Read reads containerd's log. The pods are found by their namespace/name. Of a pod with
// several containers the last one counts.
func Read(log io.Reader) (map[string]*Pod, error) {
	r := reader{pods: map[string]*Pod{}, sandboxes: map[string]*Pod{}, containers: map[string]*Pod{}}
	scanner := bufio.NewScanner(log)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		found := line.FindStringSubmatch(scanner.Text())
		if found == nil {
			continue
		}
		at, errTime := time.Parse(time.RFC3339Nano, found[1])
		message, errQuote := strconv.Unquote(found[2])
		if errTime != nil || errQuote != nil {
			continue
		}
		r.message(at, message)
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read containerd's log: %w", err)
	}
	return r.pods, nil
}

type reader struct{ pods, sandboxes, containers map[string]*Pod }

func (r *reader) message(at time.Time, message string) {
	if found := sandbox.FindStringSubmatch(message); found != nil {
		name, id := found[2]+"/"+found[1], found[3]
		if id == "" {
			r.pods[name] = &Pod{SandboxBegin: at}
		} else if p := r.pods[name]; p != nil {
			p.SandboxEnd = at
			r.sandboxes[id] = p
		}
		return
	}
	if found := create.FindStringSubmatch(message); found != nil {
		p := r.sandboxes[found[1]]
		switch id := found[2]; {
		case p == nil:
		case id == "":
			p.CreateBegin = at
		default:
			p.CreateEnd = at
			r.containers[id] = p
		}
		return
	}
	if found := start.FindStringSubmatch(message); found != nil {
		if p := r.containers[found[1]]; p == nil {
			return
		} else if found[2] == "" {
			p.StartBegin = at
		} else {
			p.StartEnd = at
		}
	}
}
