// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// withClients is a supervised GPU whose server has these clients, and knows them.
func withClients(t *testing.T, clients string) *world {
	t.Helper()
	w, _ := guarded(t, gpu.ComputeDefault)
	w.control.clients = clients
	w.ready("a")
	w.serverLogs("New client")
	w.pass(func() bool { return w.control.asked(commandClients + " 101") }, "its clients are asked for")
	return w
}

// serverLogs has the server write a line.
func (w *world) serverLogs(line string) {
	w.t.Helper()
	f, err := os.OpenFile(filepath.Join(w.dir.LogDir("a"), "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(line + "\n")
	}
	if err == nil {
		err = f.Close()
	}
	expect.NoError(w.t, err)
}

func (w *world) awaitFault(what string, is func(f mps.Fault) bool) mps.Fault {
	w.t.Helper()
	w.pass(func() bool { f := w.status("a").Fault; return f != nil && is(*f) }, what)
	return *w.status("a").Fault
}

// A fatal fault of one program ends those of all clients: it is told who they were, whose it was as far as the kernel's
// log says it, and that the GPU takes nobody until all have ended.
func TestFaultOfOneClient(t *testing.T) {
	w := withClients(t, "11\n12\n")
	w.kernelLog = "6,1,2,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=12, name=old, Graphics Exception\n" +
		"6,2,3,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=11, name=p11, Ch 00000008, MMU Fault\n" +
		"6,3,4,-;NVRM: Xid (PCI:0000:86:00): 79, pid=99, name=other, GPU has fallen off the bus\n"
	w.control.set(func(c *fakeControl) { c.fault = true })
	w.serverLogs("Server is handling a fatal GPU error")
	f := w.awaitFault("the fault is told of", func(mps.Fault) bool { return true })
	want := mps.Fault{Seen: f.Seen, Until: f.Seen.Add(faultLimit), XID: 31,
		Culprit: &mps.Client{PID: 11, Program: "p11", Pod: "pod-11"},
		Lost:    []mps.Client{{PID: 11, Program: "p11", Pod: "pod-11"}, {PID: 12, Program: "p12", Pod: "pod-12"}}}
	expect.Equal(t, want, f, "the fault")
	w.checkSays("a", "XID 31")
	w.checkSays("a", "by the kernel's log process 11 (p11)")
	w.checkSays("a", "at the latest")

	// They end by themselves, and NVIDIA's server goes on.
	w.control.set(func(c *fakeControl) { c.fault, c.clients = false, "" })
	w.pass(func() bool { return w.dir.Check("a") == nil }, "the GPU serves again")
	if f := w.status("a").Fault; f == nil || f.Over.IsZero() || len(w.control.started("a")) != 1 {
		t.Errorf("at the end %+v, after %d starts", f, len(w.control.started("a")))
	}
}

// A program that comes, and has a fault, and is gone when the server is asked, is known by the server's log.
func TestFaultOfAClientThatIsGone(t *testing.T) {
	w := withClients(t, "12\n")
	w.kernelLog = "6,2,3,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=11, name=train, Ch 00000008, MMU Fault\n"
	w.control.set(func(c *fakeControl) { c.fault = true })
	w.serverLogs("[Server] Client {PID: 11, Context ID: 0} connected\n[Server] Server is handling a fatal GPU error")
	f := w.awaitFault("the fault is told of", func(mps.Fault) bool { return true })
	if f.Culprit == nil || f.Culprit.PID != 11 || len(f.Lost) != 2 {
		t.Errorf("%+v, by %+v", f, f.Culprit)
	}
}

// A client that does not end although its program is lost does not keep the GPU from the others for good.
func TestClientThatStaysAfterAFault(t *testing.T) {
	w := withClients(t, "11\n12\n")
	w.control.set(func(c *fakeControl) { c.fault = true })
	w.serverLogs("Server is handling a fatal GPU error")
	f := w.awaitFault("the fault is told of", func(mps.Fault) bool { return true })
	if f.Culprit != nil || !strings.Contains(f.Tell(mps.Client.String), "the kernel's log names") {
		t.Errorf("without a line in the kernel's log: %s", f.Tell(mps.Client.String))
	}
	first := w.latest("a")
	w.pass(func() bool { return len(w.control.started("a")) == 2 }, "the daemon is restarted")
	if at := w.clock.Now(); at.Before(f.Until) || !first.killed {
		t.Errorf("the daemon was ended at %s, want %s", at, f.Until)
	}
	w.control.set(func(c *fakeControl) { c.fault, c.clients = false, "" })
	w.pass(func() bool { return w.dir.Check("a") == nil }, "the GPU serves again")
	if over := w.awaitFault("it is told", func(f mps.Fault) bool { return !f.Over.IsZero() }); !over.Seen.Equal(f.Seen) {
		t.Errorf("another fault: %+v", over)
	}
}

// Clients that end at once let the server go on before it is asked: its log says what has been.
func TestFaultThatIsOverAtOnce(t *testing.T) {
	w := withClients(t, "11\n")
	w.control.set(func(c *fakeControl) { c.clients = "" })
	w.serverLogs("Server is handling a fatal GPU error")
	f := w.awaitFault("the fault is told of", func(f mps.Fault) bool { return !f.Over.IsZero() })
	if len(f.Lost) != 1 || f.Lost[0].PID != 11 {
		t.Errorf("lost were %+v", f.Lost)
	}
	w.kept()
}

func TestClientsThatComeAndGoAreNoFault(t *testing.T) {
	w := withClients(t, "11\n")
	w.control.set(func(c *fakeControl) { c.clients, c.commands = "", nil })
	w.serverLogs("Client 11 disconnected")
	w.pass(func() bool { return w.control.asked(commandClients + " 101") }, "its clients are asked for")
	if err := w.dir.Check("a"); err != nil || w.status("a").Fault != nil {
		t.Errorf("%v, %+v", err, w.status("a").Fault)
	}
}

func TestFaulter(t *testing.T) {
	const line = "NVRM: Xid (PCI:0000:3b:00): "
	for name, tc := range map[string]struct {
		log      string
		xid, pid int
	}{
		"nothing":          {"", 0, 0},
		"of none of these": {line + "31, pid=7, name=x, Ch 1", 0, 0},
		"of one":           {line + "31, pid=11, name=x, Ch 1", 31, 11},
		"as 470 quotes it": {line + "31, pid='11', name=x, Ch 1", 31, 11},
		"the last": {line + "13, pid=11, name=x\n" + line + "43, pid=12, name=y\n" + line + "31, pid=7, name=z",
			43, 12},
		"without a process":     {line + "79, GPU has fallen off the bus", 0, 0},
		"of an unknown process": {line + "31, pid='<unknown>', name=<unknown>, Ch 1", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if xid, pid, _ := faulter(tc.log, []int{11, 12}); xid != tc.xid || pid != tc.pid {
				t.Errorf("XID %d of process %d, want %d of %d", xid, pid, tc.xid, tc.pid)
			}
		})
	}
}

// Where others have some of the GPU, clients have the daemon start its server. Their faults are told all the same, also
// those of the next server.
func TestFaultOfAServerThatClientsHadStarted(t *testing.T) {
	w := newWorld(t, "a")
	w.control.clients = "11\n12\n"
	w.ready("a")
	var before mps.Fault
	for _, server := range []int{50, 51} {
		w.control.set(func(c *fakeControl) {
			c.daemons["a"][0].server, c.clients, c.servers[server] = server, "11\n12\n", make(chan struct{})
		})
		w.serverLogs("New client")
		asked := fmt.Sprintf("%s %d", commandClients, server)
		w.pass(func() bool { return w.control.asked(asked) }, "its clients are asked for")
		w.control.set(func(c *fakeControl) { c.fault = true })
		w.serverLogs("Server is handling a fatal GPU error")
		f := w.awaitFault("the fault is told of", func(f mps.Fault) bool { return !f.Seen.Equal(before.Seen) })
		if len(f.Lost) != 2 || f.Lost[1].Program != "p12" {
			t.Errorf("lost were %+v", f.Lost)
		}
		w.control.set(func(c *fakeControl) { c.fault, c.clients, c.daemons["a"][0].server = false, "", 0 })
		before = w.awaitFault("it is over", func(now mps.Fault) bool { return now.Seen.Equal(f.Seen) && !now.Over.IsZero() })
		w.pass(func() bool { return w.dir.Check("a") == nil }, "the GPU serves again")
	}
}
