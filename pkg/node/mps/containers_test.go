// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// As many containers have a share as may; those that have ended do not count, nor do those of
// other shares, nor the container itself.
func TestContainersOfAShare(t *testing.T) {
	d := Dir(t.TempDir())
	expect.NoError(t, d.SetStatus("GPU-a", Status{State: Ready}))
	ended := map[string]bool{}
	add := func(share, id string) error {
		runs := func(c Container) bool { return !ended[c.ID] }
		return d.AddContainer("GPU-a", Container{Share: share, ID: id, PID: 1}, 2, runs)
	}
	for _, id := range []string{"one", "two", "two"} {
		expect.NoErrorf(t, add("s", id), "container %s of two", id)
	}
	expect.Error(t, add("s", "three"), "2 containers have its share already")
	expect.NoErrorf(t, add("other", "four"), "a container of another share")
	ended["one"] = true
	expect.NoErrorf(t, add("s", "three"), "a container after another has ended")
	content, err := os.ReadFile(filepath.Join(string(d), "GPU-a", "containers.json"))
	if err != nil || strings.Contains(string(content), `"one"`) {
		t.Errorf("the file keeps what has ended: %s, %v", content, err)
	}
	expect.NoError(t, os.WriteFile(filepath.Join(string(d), "GPU-a", "containers.json"), []byte("{"), 0o644))
	expect.NoErrorf(t, add("s", "five"), "a damaged file keeps containers from starting")
}

func TestContainersThatStartAtOnce(t *testing.T) {
	d := Dir(t.TempDir())
	expect.NoError(t, d.SetStatus("GPU-a", Status{State: Ready}))
	var wg sync.WaitGroup
	var started atomic.Int32
	for i := range 20 {
		wg.Go(func() {
			c := Container{Share: "s", ID: fmt.Sprint(i)}
			if d.AddContainer("GPU-a", c, 4, func(Container) bool { return true }) == nil {
				started.Add(1)
			}
		})
	}
	wg.Wait()
	expect.Equal(t, 4, started.Load(), "containers started")
}
