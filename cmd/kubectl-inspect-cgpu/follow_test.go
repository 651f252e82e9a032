// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
)

// followed has a child of the test follow a cluster whose slices cannot be watched, in what it
// takes for a terminal. It is a process of its own as it stops, and as klog's logger is global.
const followed = "FOLLOWED_BY_A_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(followed) == "" {
		os.Exit(m.Run())
	}
	in := oneGPU(0)
	in.Slices[0].ObjectMeta, in.Claims[0].Name = metav1.ObjectMeta{Name: "s"}, "c"
	client := fake.NewClientset(in.Slices[0], in.Claims[0])
	client.PrependWatchReactor("resourceslices", func(clienttesting.Action) (bool, watch.Interface, error) {
		return true, nil, errors.New("the API server restarts")
	})
	streams := genericiooptions.IOStreams{Out: os.Stdout, ErrOut: os.Stderr}
	_, o := newCommand(streams, terminal{is: true, size: func() (int, int) { return 100, 24 }})
	p, err := o.printer()
	if err == nil {
		err = o.follow(context.Background(), cluster.Reader{Client: client}, nil, p)
	}
	panic(err)
}

// terminalOutput is what a process writes into a terminal.
type terminalOutput struct {
	t   *testing.T
	out io.Reader
	all bytes.Buffer
}

// until reads until there is such a text, and forgets what was there up to its end.
func (o *terminalOutput) until(text string) (before string) {
	o.t.Helper()
	for {
		if before, after, found := strings.Cut(o.all.String(), text); found {
			o.all.Reset()
			o.all.WriteString(after)
			return before
		}
		some := make([]byte, 4096)
		n, err := o.out.Read(some)
		if o.all.Write(some[:n]); err != nil {
			o.t.Fatalf("it ends (%v) without %q: %q", err, text, o.all.String())
		}
	}
}

// A watch in a terminal that fails, is stopped by Ctrl-Z and goes on.
func TestWatchKeepsItsScreen(t *testing.T) {
	read, write, err := os.Pipe()
	expect.NoError(t, err)
	defer read.Close()
	expect.NoError(t, read.SetReadDeadline(time.Now().Add(time.Minute)))
	var errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), followed+"=1")
	child.Stdout, child.Stderr = write, &errOut
	// Where its parent is in another group of the same session, as a shell is, it can be stopped.
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	expect.NoError(t, child.Start())
	write.Close()
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = child.Process.Kill()
			_ = child.Wait()
		}
	}
	defer end()
	terminal := &terminalOutput{t: t, out: read}
	terminal.until(enter)
	terminal.until("3/15")
	terminal.until("Watching fails and is tried again: the API server restarts.")

	for range 2 {
		expect.NoError(t, child.Process.Signal(syscall.SIGTSTP))
		terminal.until(leave)
		var status syscall.WaitStatus
		for {
			if _, err = syscall.Wait4(child.Process.Pid, &status, syscall.WUNTRACED, nil); !errors.Is(err, syscall.EINTR) {
				break
			}
		}
		if err != nil || !status.Stopped() || status.StopSignal() != syscall.SIGSTOP {
			t.Fatalf("after Ctrl-Z it has status %#x, %v", status, err)
		}
		expect.NoError(t, child.Process.Signal(syscall.SIGCONT))
		expect.Equal(t, "", terminal.until(enter), "written after it gave the terminal back")
		terminal.until("3/15")
		terminal.until("Watching fails")
	}
	end()
	expect.Equal(t, 0, errOut.Len(), "into the middle of the screen goes\n%s", errOut.String())
}

// A program that was stopped without being told, as by SIGSTOP, does not know what the terminal
// shows.
func TestContinuedDrawsEverything(t *testing.T) {
	e := newCounted(80, 24)
	p, _, _ := printing(t, true)
	p.screen.out, p.streams.Out = e, e
	if err := p.continued(); err != nil || e.bytes > 0 {
		t.Fatalf("without a table it wrote %d bytes, %v", e.bytes, err)
	}
	expect.NoError(t, p.printAgain(oneGPU(0)))
	want := e.Text()
	_, err := e.Write([]byte("a line of another program's over that of ours"))
	expect.NoError(t, err)
	if err := p.continued(); err != nil || !e.HasProgram() || e.Text() != want {
		t.Errorf("it shows\n%s\nwant\n%s\n%v", e.Text(), want, err)
	}
	stopped := func() {
		expect.Equal(t, false, e.HasProgram(), "it stops with a screen of its own")
	}
	if err := p.suspended(stopped); err != nil || !e.HasProgram() || e.Text() != want {
		t.Errorf("after it was stopped it shows\n%s\nwant\n%s\n%v", e.Text(), want, err)
	}
}
