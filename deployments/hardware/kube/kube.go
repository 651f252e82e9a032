// SPDX-License-Identifier: Apache-2.0

// Package kube speaks to the cluster as a user does: by kubectl.
package kube

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Kubectl runs kubectl on the cluster, in a namespace.
type Kubectl struct {
	// Program is the path of kubectl, Config that of the kubeconfig.
	Program, Config string
	Namespace       string
}

// In is the same for another namespace.
func (k Kubectl) In(namespace string) Kubectl {
	k.Namespace = namespace
	return k
}

func (k Kubectl) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, k.Program, args...)
	if k.Namespace != "" {
		cmd.Args = slices.Insert(cmd.Args, 1, "--namespace", k.Namespace)
	}
	// It keeps a cache in the home directory, which is to go with the cluster.
	cmd.Env = append(os.Environ(), "KUBECONFIG="+k.Config, "HOME="+filepath.Dir(k.Config))
	// With a proxy in the environment the API server would be looked for there.
	cmd.Env = append(cmd.Env, "NO_PROXY=*", "no_proxy=*")
	cmd.WaitDelay = time.Second
	return cmd
}

// Run runs kubectl and returns what it prints.
func (k Kubectl) Run(ctx context.Context, args ...string) (string, error) {
	return k.feed(ctx, "", args...)
}

// Apply applies manifests.
func (k Kubectl) Apply(ctx context.Context, manifests string) error {
	_, err := k.feed(ctx, manifests, "apply", "-f", "-")
	return err
}

func (k Kubectl) feed(ctx context.Context, input string, args ...string) (string, error) {
	cmd := k.command(ctx, args...)
	var output, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &output, &complaint
	if err := cmd.Run(); err != nil {
		return output.String(), fmt.Errorf(
			"kubectl %s: %w: %s",
			strings.Join(args, " "),
			cause(ctx, err),
			tail(complaint.String()+output.String()),
		)
	}
	return output.String(), nil
}

// cause is the end of the time where that is why a program ended.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// maxComplaint is how much of what a program prints an error repeats.
const maxComplaint = 600

func tail(text string) string {
	text = strings.TrimSpace(text)
	return text[max(0, len(text)-maxComplaint):]
}

// Get reads an object, or a list of objects, into what stands for it.
func (k Kubectl) Get(ctx context.Context, into any, args ...string) error {
	out, err := k.Run(ctx, append(append([]string{"get"}, args...), "--output", "json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		return fmt.Errorf("kubectl get %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// Exec runs a program in a pod's container, with this as its standard input, and returns
// what it prints, also where it fails.
func (k Kubectl) Exec(ctx context.Context, pod, input string, program ...string) (string, error) {
	cmd := k.command(ctx, append([]string{"exec", "--stdin", pod, "--"}, program...)...)
	var output bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &output, &output
	if err := cmd.Run(); err != nil {
		return output.String(), fmt.Errorf(
			"%s in pod %s: %w: %s",
			strings.Join(program, " "),
			pod,
			cause(ctx, err),
			tail(output.String()),
		)
	}
	return output.String(), nil
}

// Program is a program in a container that says "ready", waits for a line, and answers in
// one line, as tests/suites/gpu/testdata/cudaprobe.c does.
type Program struct {
	name     string
	cmd      *exec.Cmd
	input    io.WriteCloser
	output   *bufio.Scanner
	messages *bytes.Buffer
	ctx      context.Context
}

// Start starts a program in a pod's first container and returns when it is ready.
func (k Kubectl) Start(ctx context.Context, pod string, program ...string) (*Program, error) {
	return k.StartIn(ctx, pod, "", program...)
}

// StartIn does so in the container of that name.
func (k Kubectl) StartIn(ctx context.Context, pod, container string, program ...string) (*Program, error) {
	p := &Program{
		name: fmt.Sprintf("%s in pod %s", strings.Join(program, " "), pod), messages: &bytes.Buffer{}, ctx: ctx,
		cmd: k.command(ctx, append([]string{"exec", "--stdin", "--container", container, pod, "--"}, program...)...),
	}
	p.cmd.Stderr = p.messages
	input, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.input, p.output = input, bufio.NewScanner(output)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	line, err := p.line()
	if err == nil && line != "ready" {
		err = fmt.Errorf("%s said %q before it was ready", p.name, line)
	}
	if err != nil {
		return nil, errors.Join(err, p.end())
	}
	return p, nil
}

// GoOn lets the program do what it is for.
func (p *Program) GoOn() error {
	if _, err := io.WriteString(p.input, "\n"); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// Next lets a program that answers more than once go on, and waits for what it says.
func (p *Program) Next() (string, error) {
	if err := p.GoOn(); err != nil {
		return "", err
	}
	return p.line()
}

// Answer waits for what the program says in the end.
func (p *Program) Answer() (string, error) {
	line, err := p.line()
	if err != nil {
		return "", err
	}
	if err := p.cmd.Wait(); err != nil {
		return line, fmt.Errorf("%s: %w: %s", p.name, cause(p.ctx, err), tail(p.messages.String()))
	}
	return line, nil
}

func (p *Program) line() (string, error) {
	if p.output.Scan() {
		return p.output.Text(), nil
	}
	// It ends, or has ended: what it says then is why.
	err := p.cmd.Wait()
	if err == nil {
		err = errors.New("it ended")
	}
	return "", fmt.Errorf("%s said nothing: %w: %s", p.name, cause(p.ctx, err), tail(p.messages.String()))
}

// end ends the program, of which nothing more is wanted.
func (p *Program) end() error {
	_ = p.input.Close()
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
	return nil
}

// End ends a program that was started, whatever it is doing.
func (p *Program) End() { _ = p.end() }

// interval is how often a condition is looked at.
const interval = 300 * time.Millisecond

// Until tries until it succeeds or the time is over; its error is then the last one.
func Until(ctx context.Context, limit time.Duration, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s for %s: %w", limit, what, err)
		case <-ticker.C:
		}
	}
}
