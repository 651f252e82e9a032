// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// endMost is how long a command that is told to end may take: it may have a cluster to end.
const endMost = 3 * time.Minute

// Runner runs lanes in a checkout.
type Runner struct {
	Checkout string
	// Out is where lines go, each with the name of its lane.
	Out io.Writer
	// Keep leaves clusters up, and starts on those that are.
	Keep bool
	// Only, if set, is the pattern of the tests to run, as -run of `go test` takes it.
	Only string
	// Within, if set, is how long all of it may take. Lanes of EveryChange are run whatever they take. Of the
	// others, one is not run that would take longer, as slow as the machine has been so far, and one that
	// still runs a sixth of Within after it is ended.
	Within time.Duration

	mu    sync.Mutex
	began time.Time
}

// Run runs the lanes, those of EveryChange first. Those that need a cluster run one after the other, and the others
// beside them at a lower priority: tests on a cluster mostly wait. Where Within is set, the lanes that may be left out
// begin when those of EveryChange have ended, and slow none of them. A lane that fails keeps no other from being run.
func (r *Runner) Run(ctx context.Context, lanes []Lane) []Outcome {
	r.began = time.Now()
	outcomes := make([]Outcome, len(lanes))
	if err := r.build(ctx, lanes); err != nil {
		return []Outcome{{Lane: "build", Took: time.Since(r.began), Err: err}}
	}
	var both, due sync.WaitGroup
	var order, rest []int
	for i, lane := range lanes {
		if lane.When == EveryChange {
			order = append(order, i)
			due.Add(1)
		} else {
			rest = append(rest, i)
		}
	}
	order = append(order, rest...)
	for _, clusters := range []bool{true, false} {
		both.Go(func() {
			var p pace
			for _, i := range order {
				lane := lanes[i]
				if lane.needsCluster() != clusters {
					continue
				}
				always := lane.When == EveryChange
				if r.Within > 0 && !always {
					due.Wait()
				}
				outcomes[i] = r.timely(ctx, lane, p, len(lanes) > 1)
				p.add(lane, outcomes[i])
				if always {
					due.Done()
				}
			}
		})
	}
	both.Wait()
	return outcomes
}

// needsCluster reports whether the lane has a cluster, or takes what is built for one.
func (l *Lane) needsCluster() bool { return l.Suite != nil || l.Built }

// pace is how long lanes took, and should have taken.
type pace struct{ took, takes time.Duration }

func (p *pace) add(lane Lane, outcome Outcome) {
	if outcome.NotRun == "" {
		p.took, p.takes = p.took+outcome.Took, p.takes+lane.Takes
	}
}

// expects is how long a lane takes at this pace, or as the table says, which is less.
func (p *pace) expects(lane Lane) time.Duration {
	if p.takes <= 0 || p.took <= p.takes {
		return lane.Takes
	}
	return time.Duration(float64(lane.Takes) * float64(p.took) / float64(p.takes))
}

// timely runs a lane if there is time for it, and ends it when there is none left.
func (r *Runner) timely(ctx context.Context, lane Lane, p pace, others bool) Outcome {
	if ctx.Err() != nil {
		return Outcome{Lane: lane.Name, NotRun: "the run was ended"}
	}
	if r.Within == 0 || lane.When == EveryChange {
		return r.lane(ctx, lane, others)
	}
	if expected := p.expects(lane); time.Since(r.began)+expected > r.Within {
		outcome := Outcome{Lane: lane.Name, NotRun: fmt.Sprintf("it takes about %s here, and the run is to end within %s",
			clock(expected), clock(r.Within))}
		r.say(lane.Name, "not run: "+outcome.NotRun)
		return outcome
	}
	timely, cancel := context.WithDeadlineCause(ctx, r.began.Add(r.Within+r.Within/6), errTimeIsUp)
	defer cancel()
	outcome := r.lane(timely, lane, others)
	late := time.Since(r.began) > r.Within+r.Within/6-2*tellMost
	for _, t := range outcome.Tests {
		if still, where, is := t.timedOut(); is && late {
			t.Verdict, outcome.Err, outcome.Still, outcome.Where = "", errTimeIsUp, still, where
		}
	}
	failed := func(t *Test) bool { return t.Name != "" && t.Verdict == "fail" }
	if errors.Is(outcome.Err, errTimeIsUp) && !slices.ContainsFunc(outcome.Tests, failed) {
		// What was ended with the lane did not fail.
		outcome.Tests = slices.DeleteFunc(outcome.Tests, func(t *Test) bool { return t.Name == "" })
		outcome.Unfinished, outcome.Err = true, nil
	}
	return outcome
}

// errTimeIsUp is why a lane was ended that is run as far as time allows.
var errTimeIsUp = errors.New("the time of the run was up")

// lane runs one of them.
func (r *Runner) lane(ctx context.Context, lane Lane, others bool) Outcome {
	outcome := Outcome{Lane: lane.Name}
	began := time.Now()
	r.say(lane.Name, "begins: "+lane.Proves)
	nice := 0
	if others && !lane.needsCluster() {
		nice = 10
	}
	for _, command := range lane.Commands {
		if ctx.Err() != nil {
			break
		}
		tests, err := r.command(ctx, lane.Name, command, nice)
		outcome.Tests = append(outcome.Tests, tests...)
		outcome.Err = errors.Join(outcome.Err, err)
	}
	if lane.Suite != nil && outcome.Err == nil {
		var tests []*Test
		tests, outcome.Err = r.suite(ctx, lane)
		outcome.Tests = append(outcome.Tests, tests...)
	}
	if outcome.Err == nil {
		outcome.Err = noTests(lane, r.Only, outcome.Tests)
	}
	switch {
	case errors.Is(context.Cause(ctx), errTimeIsUp):
		outcome.Err = errTimeIsUp
	case ctx.Err() != nil:
		outcome.Err = errors.New("the run was ended")
	}
	outcome.Took = time.Since(began)
	verdict := "passed"
	if outcome.Err != nil {
		verdict = "failed: " + outcome.Err.Error()
	}
	r.say(lane.Name, fmt.Sprintf("%s after %s", verdict, clock(outcome.Took)))
	return outcome
}

// noTests reports that a lane with tests ran none of them, which go test takes for a success.
func noTests(lane Lane, only string, ran []*Test) error {
	has := lane.Suite != nil || slices.ContainsFunc(lane.Commands, func(c Command) bool { return len(c.Tests) > 0 })
	if only == "" || !has || slices.ContainsFunc(ran, func(t *Test) bool { return t.Name != "" }) {
		return nil
	}
	return fmt.Errorf("no test of it matches %q", only)
}

// command runs a part of a lane that needs no cluster.
func (r *Runner) command(ctx context.Context, lane string, command Command, nice int) ([]*Test, error) {
	if command.Shell != "" {
		return nil, r.shell(ctx, lane, command.Shell, nil, nice)
	}
	// Lane lint vets the packages. Without debugging information the linker takes a third less time. One package more
	// than there are processors runs at once, since one mostly waits: for a late daemon, or a killed kubelet.
	atOnce := fmt.Sprintf("-p=%d", runtime.NumCPU()+1)
	arguments := append([]string{"test", "-json", "-vet=off", "-ldflags=-w", "-timeout=30m", atOnce}, command.Tests...)
	if r.Only != "" {
		arguments = append(arguments, "-run", r.Only)
	}
	return r.goTest(ctx, lane, filepath.Join(r.Checkout, command.Dir), nil, nice, false, "go", arguments...)
}

// build makes what the lanes have in common, once.
func (r *Runner) build(ctx context.Context, lanes []Lane) error {
	if !slices.ContainsFunc(lanes, func(l Lane) bool { return l.needsCluster() }) {
		return nil
	}
	began := time.Now()
	r.say("build", "begins: the driver's image, its kubectl plugin, Helm, and the programs of a cluster")
	err := r.shell(ctx, "build", `make --no-print-directory images kubectl-inspect-cgpu helm
"$BUILD/bin/cluster" programs >"$BUILD/programs"`, nil, 0)
	if err != nil {
		return fmt.Errorf("build what the tests on clusters need: %w", err)
	}
	r.say("build", "done after "+clock(time.Since(began)))
	return nil
}

// shell runs a script, whose lines are shown.
func (r *Runner) shell(ctx context.Context, lane, script string, variables []string, nice int) error {
	cmd := r.process(ctx, r.Checkout, variables, nice, "sh", "-euc", script)
	lines := &lineWriter{show: func(line string) { r.say(lane, line) }}
	cmd.Stdout, cmd.Stderr = lines, lines
	err := cmd.Run()
	lines.end()
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(script), "\n")
		return fmt.Errorf("%s: %w", first, err)
	}
	return nil
}

// goTest runs what writes as `go test -json` does, and keeps all of it in .build/lanes.
func (r *Runner) goTest(ctx context.Context, lane, dir string, variables []string, nice int, each bool, name string,
	arguments ...string) ([]*Test, error) {
	path := filepath.Join(r.buildDir(), "lanes", lane+".json")
	kept, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("keep what the tests write: %w", err)
	}
	defer kept.Close()
	cmd := r.process(ctx, dir, variables, nice, name, arguments...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	lines := &lineWriter{show: func(line string) { r.say(lane, line) }}
	cmd.Stderr = lines
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	tests, err := digest(lane, io.TeeReader(out, kept), each, func(line string) { r.say(lane, line) })
	ended := cmd.Wait()
	lines.end()
	if ended != nil {
		ended = fmt.Errorf("%s %s: %w", name, strings.Join(arguments[:min(2, len(arguments))], " "), ended)
	}
	return tests, errors.Join(err, ended)
}

// process is a command in a process group of its own, which is told to end when the context does.
func (r *Runner) process(ctx context.Context, dir string, variables []string, nice int, name string,
	arguments ...string) *exec.Cmd {
	if nice > 0 {
		name, arguments = "nice", append([]string{"-n", fmt.Sprint(nice), name}, arguments...)
	}
	cmd := exec.CommandContext(ctx, name, arguments...)
	cmd.Dir = dir
	// With garbage that is collected a quarter as often, the compiler takes a tenth to a quarter less of the processor's
	// time, and tests that compute for seconds a quarter less. Another value of the environment takes its place.
	cmd.Env = append([]string{"GOGC=400"}, os.Environ()...)
	cmd.Env = append(cmd.Env, "BUILD="+r.buildDir(), "HELM="+filepath.Join(r.buildDir(), "bin", "helm"))
	cmd.Env = append(cmd.Env, variables...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = endMost
	return cmd
}

func (r *Runner) buildDir() string { return filepath.Join(r.Checkout, ".build") }

// say writes a line of a lane, with the time since the run began.
func (r *Runner) say(lane, line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := time.Since(r.began)
	fmt.Fprintf(r.Out, "[%2d:%02d %s] %s\n", int(since.Minutes()), int(since.Seconds())%60, lane, line)
}

// lineWriter shows what is written to it, line by line.
type lineWriter struct {
	mu   sync.Mutex
	rest string
	show func(string)
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rest += string(p)
	for {
		line, rest, found := strings.Cut(w.rest, "\n")
		if !found {
			return len(p), nil
		}
		w.show(line)
		w.rest = rest
	}
}

// end shows what was written without an end of the line.
func (w *lineWriter) end() {
	if w.rest != "" {
		w.show(w.rest)
	}
}
