// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/mps"
)

// serving is the directory of a supervisor whose daemon of GPU-a serves.
func serving(t *testing.T) string {
	t.Helper()
	dir := mps.Dir(t.TempDir())
	release, err := dir.Hold()
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, release()) })
	expect.NoError(t, dir.SetStatus("GPU-a", mps.Status{State: mps.Ready}))
	return string(dir)
}

// run runs the check as a hook that is written as a command.
func run(t *testing.T, command, state string) error {
	args, variables := parsed(command)
	return check(t.Context(), args, func(name string) string {
		for _, v := range variables {
			if value, is := strings.CutPrefix(v, name+"="); is {
				return value
			}
		}
		return ""
	}, strings.NewReader(state), "/proc")
}

// parsed are the arguments of a command, and the variables before it.
func parsed(command string) (args, variables []string) {
	for i, field := range strings.Fields(command) {
		if !strings.Contains(field, "=") {
			return strings.Fields(command)[i:], variables
		}
		variables = append(variables, field)
	}
	return nil, variables
}

// created is the state of a container with these hooks, each written as a command, whose
// process is this one.
func created(t *testing.T, id string, hooks ...string) string {
	t.Helper()
	all := []map[string]any{}
	for _, h := range hooks {
		args, variables := parsed(h)
		all = append(all, map[string]any{"path": "/x", "args": args, "env": variables})
	}
	bundle := t.TempDir()
	config, err := json.Marshal(map[string]any{"process": map[string]any{}, "hooks": map[string]any{"createRuntime": all}})
	expect.NoError(t, err)
	expect.NoError(t, os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o644))
	return fmt.Sprintf(`{"ociVersion":"1.2.0","id":%q,"status":"creating","pid":%d,"bundle":%q}`, id, os.Getpid(), bundle)
}

// A container that starts has one share: of two, one would run without its limits. The kubelet
// does not ask the driver about a pod that joins claims which are prepared.
func TestContainerHasOneShare(t *testing.T) {
	dir := serving(t)
	hook := func(gpu, share string) string {
		return "MPS_SHARE=" + share + " MPS_CONTAINERS=4 gpu-mps-check " + dir + " " + gpu
	}
	own := hook("GPU-a", "s1")
	for name, tc := range map[string]struct {
		hooks   []string
		refused bool
	}{
		"one":                               {[]string{own}, false},
		"one, by two requests":              {[]string{own, own}, false},
		"beside hooks of others":            {[]string{"MPS_SHARE=s2 gpu-cdi-hook a b", own, "ldconfig"}, false},
		"two, of two GPUs":                  {[]string{own, hook("GPU-b", "s2")}, true},
		"two, of one GPU":                   {[]string{hook("GPU-a", "s2"), own}, true},
		"one of an earlier version's specs": {[]string{own, "gpu-mps-check " + dir + " GPU-b"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t, own, created(t, name, tc.hooks...))
			if (err != nil) != tc.refused || err != nil && !strings.Contains(err.Error(), "two shares by MPS") {
				t.Errorf("%v, refused is to be %t", err, tc.refused)
			}
		})
	}
}

// No more containers of a share run at the same time than may.
func TestContainersPerShare(t *testing.T) {
	dir := serving(t)
	start := func(id, most string) error {
		own := "MPS_SHARE=s1 MPS_CONTAINERS=" + most + " gpu-mps-check " + dir + " GPU-a"
		return run(t, own, created(t, id, own))
	}
	for _, id := range []string{"a", "b", "b"} {
		expect.NoError(t, start(id, "2"))
	}
	expect.Error(t, start("c", "2"), "2 containers have its share already")
	expect.NoErrorf(t, start("c", "0"), "where any number may")
	// Their processes end, and others have their numbers.
	path := filepath.Join(dir, "GPU-a", "containers.json")
	content, err := os.ReadFile(path)
	expect.NoError(t, err)
	ended := strings.ReplaceAll(string(content), `"started":"`, `"started":"1`)
	expect.NoError(t, os.WriteFile(path, []byte(ended), 0o644))
	expect.NoErrorf(t, start("c", "2"), "after the others have ended")
}

// A plugin of an earlier version has said no more, and a daemon that is down is in any case
// the end, also for one of several GPUs.
func TestDaemon(t *testing.T) {
	dir := serving(t)
	expect.NoError(t, run(t, "gpu-mps-check "+dir+" GPU-a", ""))
	down := "gpu-mps-check " + dir + " GPU-b"
	for _, command := range []string{down, "MPS_SHARE=s1 MPS_CONTAINERS=4 " + down,
		"MPS_SHARE=s1 MPS_CONTAINERS=4 MPS_MORE_GPUS=GPU-a,GPU-b gpu-mps-check " + dir + " GPU-a"} {
		synctest.Test(t, func(t *testing.T) {
			expect.Error(t, run(t, command, created(t, "a", command)),
				"nothing would hold it to its share of GPU-b, for which it waited 10s")
		})
	}
}

// Whoever looks at a pod that waits is told why: the note says which pod it is, by what the runtime says of the
// container.
func TestWhoWaits(t *testing.T) {
	for name, annotations := range map[string]map[string]string{
		"containerd": {"io.kubernetes.cri.sandbox-namespace": "team", "io.kubernetes.cri.sandbox-name": "job",
			"io.kubernetes.cri.sandbox-uid": "u1"},
		"CRI-O": {"io.kubernetes.pod.namespace": "team", "io.kubernetes.pod.name": "job", "io.kubernetes.pod.uid": "u1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := mps.Dir(serving(t))
				expect.NoError(t, dir.SetStatus("GPU-a", mps.Status{State: mps.Late, Reason: "it is busy"}))
				own := "MPS_SHARE=s1 MPS_CONTAINERS=4 gpu-mps-check " + string(dir) + " GPU-a"
				var state map[string]any
				expect.NoError(t, json.Unmarshal([]byte(created(t, "c1", own)), &state))
				state["annotations"] = annotations
				text, err := json.Marshal(state)
				expect.NoError(t, err)
				ended := make(chan error, 1)
				go func() { ended <- run(t, own, string(text)) }()
				time.Sleep(20 * time.Second)
				waiting, err := dir.Waiting("GPU-a")
				if err != nil || len(waiting) != 1 || waiting[0].Namespace != "team" || waiting[0].Pod != "job" ||
					waiting[0].UID != "u1" || !strings.Contains(waiting[0].Reason, "it is busy") {
					t.Errorf("%+v, %v", waiting, err)
				}
				expect.NoError(t, dir.SetStatus("GPU-a", mps.Status{State: mps.Ready}))
				expect.NoError(t, <-ended)
			})
		})
	}
}
