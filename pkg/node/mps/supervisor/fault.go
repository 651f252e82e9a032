// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// faultLimit is how long clients that a fault has ended may take to end by themselves: their programs are lost, and the
// GPU takes no others meanwhile.
const faultLimit = 30 * time.Second

// clients are what is known of the clients of the daemon's server, and of their faults.
type clients struct {
	// seen are its clients by the last answer.
	seen map[int]mps.Client
	// logged is to where its log was read, -1 for not yet, fatal that it wrote of a fatal fault since the last answer.
	logged int64
	fatal  bool
	// fault is the last one; nil if there was none.
	fault *mps.Fault
}

// faulty reports whether the GPU takes no clients because of a fault.
func (c *clients) faulty() bool { return c.fault != nil && c.fault.Over.IsZero() }

// answer is what the daemon says of its server and that server's clients; server is 0 where it has none.
type answer struct {
	server int
	text   string
	err    error
}

// probe asks the daemon for that, with further commands to a server that the supervisor has started: clients may have
// started another one, where others have some of the GPU. It may be called beside run.
func (k *keeper) probe(ctx context.Context, server int, more string) answer {
	if server == 0 {
		servers, err := k.servers(ctx)
		if err != nil || len(servers) == 0 {
			return answer{err: err}
		}
		server = servers[0]
	}
	// The server's status ends the list.
	command := fmt.Sprintf("%s %d\n%s %d\n%s", commandClients, server, commandServerStatus, server, more)
	text, err := k.ask(ctx, strings.TrimSpace(command))
	return answer{server, text, err}
}

// parseProbe is the answer to that.
func parseProbe(answer string) (pids []int, status string) {
	for line := range strings.Lines(answer) {
		line = strings.TrimSpace(line)
		pid, err := strconv.Atoi(line)
		switch {
		case err == nil:
			pids = append(pids, pid)
		case line != "":
			return pids, line
		}
	}
	return pids, ""
}

// clientLine is how servers of several versions name a client that has come: it may be gone when they are asked.
var clientLine = regexp.MustCompile(`(?i)client \{?(?:PID: )?(\d+)(?:, Context ID: \d+)?\}? connected`)

// logGrew reports whether the server has written something, as it does when clients come and go: then it is asked now.
func (k *keeper) logGrew() bool {
	text := k.newLog()
	for _, found := range clientLine.FindAllStringSubmatch(text, -1) {
		pid, _ := strconv.Atoi(found[1])
		if _, known := k.clients.seen[pid]; !known {
			k.clients.seen[pid] = k.Describe(pid)
		}
	}
	k.clients.fatal = k.clients.fatal || strings.Contains(strings.ToLower(text), "fatal")
	return text != ""
}

// sawClients notes what the daemon has answered.
func (k *keeper) sawClients(ctx context.Context, a answer) {
	c := &k.clients
	pids, status := parseProbe(a.text)
	inFault := strings.Contains(status, "FAULT")
	before := c.seen
	c.seen = make(map[int]mps.Client, len(pids))
	for _, pid := range pids {
		client, described := before[pid]
		if !described {
			client = k.Describe(pid)
		}
		c.seen[pid] = client
	}
	if (inFault || c.fatal) && !c.faulty() {
		lost := maps.Clone(c.seen)
		maps.Copy(lost, before)
		k.faultSeen(ctx, a.server, lost)
	}
	c.fatal = false
	if !inFault {
		k.faultOver(ctx)
	}
}

func (k *keeper) faultSeen(ctx context.Context, server int, lost map[int]mps.Client) {
	f := &mps.Fault{Seen: k.Clock.Now()}
	if len(k.gpus) == 1 {
		f.Until = f.Seen.Add(faultLimit)
	}
	for _, pid := range slices.Sorted(maps.Keys(lost)) {
		f.Lost = append(f.Lost, lost[pid])
	}
	log, err := k.KernelLog()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Whose fault it was that ended all clients of MPS is not known")
	}
	xid, pid, name := faulter(log, append(slices.Collect(maps.Keys(lost)), server))
	f.XID = xid
	if culprit, known := lost[pid]; known {
		culprit.Program = cmp.Or(culprit.Program, name)
		f.Culprit = &culprit
	}
	k.clients.fault = f
	klog.FromContext(ctx).Info("A fatal fault of one program has ended the programs of all clients of MPS on the GPU",
		"fault", f.Tell(mps.Client.String))
}

// faultOver is for when the daemon serves new clients.
func (k *keeper) faultOver(ctx context.Context) {
	if !k.clients.faulty() {
		return
	}
	over := *k.clients.fault
	over.Over = k.Clock.Now()
	k.clients.fault = &over
	klog.FromContext(ctx).Info("MPS takes clients on the GPU again", "after", over.Over.Sub(over.Seen))
}

// pastFault is why the daemon has to be started again; nil if it need not.
func (k *keeper) pastFault() error {
	f := k.clients.fault
	if !k.clients.faulty() || f.Until.IsZero() || k.Clock.Now().Before(f.Until) {
		return nil
	}
	return fmt.Errorf("%d clients that a fatal fault had ended were still there %s later: it is restarted without them",
		len(k.clients.seen), faultLimit)
}

// xidLine is how the NVIDIA driver tells an error of a process in the kernel's log.
var xidLine = regexp.MustCompile(`NVRM: Xid \([^)]*\): (\d+), pid='?(\d+)'?,(?: name=([^,\n]*))?`)

// faulter is the last error in the kernel's log of one of these processes, which, and its name; 0 for none.
func faulter(log string, pids []int) (xid, pid int, name string) {
	all := xidLine.FindAllStringSubmatch(log, -1)
	for _, found := range slices.Backward(all) {
		number, _ := strconv.Atoi(found[2])
		if slices.Contains(pids, number) {
			xid, _ = strconv.Atoi(found[1])
			return xid, number, found[3]
		}
	}
	return 0, 0, ""
}

// mostRead is how much of a log is read at once: the end counts.
const mostRead = 64 << 10

// newLog is what the server has written since it was last asked for; nothing at first. It uses the apparent size,
// also of a log that was emptied: NVIDIA's server goes on where it was.
func (k *keeper) newLog() string {
	f, err := os.Open(filepath.Join(k.Dir.LogDir(k.devices), "server.log"))
	if err != nil {
		k.clients.logged = 0
		return ""
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	from := k.clients.logged
	k.clients.logged = end
	if err != nil || from < 0 || end <= from {
		return ""
	}
	text := make([]byte, min(end-from, mostRead))
	n, _ := f.ReadAt(text, end-int64(len(text)))
	return string(text[:n])
}
