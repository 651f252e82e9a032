// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// limit ends a suite that hangs, with the stacks of its tests.
const limit = 2 * time.Hour

// tellMost is how long before a lane is ended its tests are: so they tell where they were.
const tellMost = time.Minute

// buildTags are those that the image is built with (deployments/container/files.sh): what Go has compiled for one is
// taken for all.
const buildTags = "netgo,osusergo,grpcnotrace,urfave_cli_no_template"

// suite runs tests on a cluster that is made for them, and ended after them however they end.
func (r *Runner) suite(ctx context.Context, lane Lane) (tests []*Test, err error) {
	s := lane.Suite
	dir := filepath.Join(r.Checkout, ".cluster-"+lane.Name)
	cluster := filepath.Join(r.buildDir(), "bin", "cluster") + " --dir " + dir
	variables := []string{"DIR=" + dir, "CLUSTER=" + cluster, "E2E_CLUSTER_DIR=" + dir}
	selected, err := s.selected(r, lane)
	if err != nil {
		return nil, err
	}
	// Compiled before the cluster is there, with which the compiler would share the processors.
	binary := filepath.Join(r.buildDir(), "lanes", lane.Name+".test")
	compile := fmt.Sprintf(`go test -c -vet=off -tags e2e,`+buildTags+` -ldflags=-w -o %s %s`, binary, s.Package)
	scripts := []string{compile, s.Prepare}
	if !r.Keep {
		scripts = append(scripts, "$CLUSTER down")
	}
	if err := r.scripts(ctx, lane.Name, variables, scripts...); err != nil {
		return nil, err
	}
	defer func() {
		if r.Keep {
			r.say(lane.Name, fmt.Sprintf("the cluster is still up (KEEP): KUBECONFIG=%s/kubeconfig; "+
				"make cluster-down CLUSTER_DIR=%[1]s ends it", dir))
			return
		}
		// Also where the run was told to end.
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endMost)
		defer cancel()
		err = errors.Join(err, r.scripts(ending, lane.Name, variables, "$CLUSTER down"))
	}()
	if err := r.scripts(ctx, lane.Name, variables, s.up(r.variables(dir)), s.Install); err != nil {
		return nil, err
	}
	r.say(lane.Name, "the cluster is up")
	for _, variable := range s.Env {
		variables = append(variables, os.Expand(variable, r.variables(dir)))
	}
	arguments := append([]string{"tool", "test2json", "-t", "-p", s.Package, binary, "-test.v=test2json",
		"-test.timeout=" + patience(ctx, time.Now()).String()}, selected...)
	if s.Parallel > 0 {
		arguments = append(arguments, fmt.Sprint("-test.parallel=", s.Parallel))
	}
	tests, err = r.goTest(ctx, lane.Name, filepath.Join(r.Checkout, s.Package), variables, 0, true, "go", arguments...)
	if err == nil {
		err = r.scripts(ctx, lane.Name, variables, s.Then)
	}
	return tests, err
}

// patience is how long the tests of a suite that starts now may take.
func patience(ctx context.Context, now time.Time) time.Duration {
	until, ends := ctx.Deadline()
	if !ends {
		return limit
	}
	return max(time.Second, until.Sub(now)-tellMost).Round(time.Second)
}

// scripts runs those that are not empty, until one fails.
func (r *Runner) scripts(ctx context.Context, lane string, variables []string, scripts ...string) error {
	for _, script := range scripts {
		if script == "" {
			continue
		}
		if err := r.shell(ctx, lane, script, variables, 0); err != nil {
			return err
		}
	}
	return nil
}

// variables are those that a suite's images and environment can use.
func (r *Runner) variables(dir string) func(string) string {
	return func(name string) string {
		switch name {
		case "BUILD":
			return r.buildDir()
		case "DIR":
			return dir
		case "HELM":
			return filepath.Join(r.buildDir(), "bin", "helm")
		}
		return os.Getenv(name)
	}
}

// up is the command that makes the suite's cluster.
func (s *Suite) up(variables func(string) string) string {
	command := `$CLUSTER up --nodes "` + s.Nodes + `"`
	images := s.Images
	if len(images) == 0 {
		images = []string{"$BUILD/driver-image.tar"}
	}
	for _, image := range images {
		command += ` --image "` + os.Expand(image, variables) + `"`
	}
	if s.Gates != "" {
		command += " --gates " + s.Gates
	}
	if s.Kubernetes != "" {
		command += " --kubernetes " + s.Kubernetes
	}
	return command
}

// selected are the arguments that choose the suite's tests. A pattern of the user's goes before all.
func (s *Suite) selected(r *Runner, lane Lane) ([]string, error) {
	skipped := slices.Clone(s.LeftOut)
	for _, test := range skipped {
		r.say(lane.Name, "left out: "+test)
	}
	var promised []string
	if s.Promised != nil && r.Only == "" {
		all, err := promises(r.Checkout)
		if err != nil {
			return nil, err
		}
		for _, p := range all {
			if p.Lane == "e2e" {
				promised = append(promised, p.Test)
			}
		}
	}
	var arguments []string
	switch {
	case r.Only != "":
		arguments = append(arguments, "-test.run="+r.Only)
	case s.Promised != nil && *s.Promised:
		arguments = append(arguments, "-test.run="+pattern(promised))
	default:
		skipped = append(skipped, promised...)
	}
	if len(skipped) > 0 {
		arguments = append(arguments, "-test.skip="+pattern(skipped))
	}
	return arguments, nil
}

// note is what is said of a lane in a list.
func (l Lane) note() string {
	var parts []string
	if s := l.Suite; s != nil {
		nodes := fmt.Sprintf("%d nodes", len(strings.Fields(s.Nodes)))
		if s.Kubernetes != "" {
			nodes += ", Kubernetes " + s.Kubernetes
		}
		if s.Gates != "" {
			nodes += ", gates " + s.Gates
		}
		parts = append(parts, nodes, strings.TrimPrefix(s.Package, "./"))
	}
	return strings.Join(parts, ", ")
}
