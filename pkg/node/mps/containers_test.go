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
)

// As many containers have a share as may; those that have ended do not count, nor do those of
// other shares, nor the container itself.
func TestContainersOfAShare(t *testing.T) {
	d := Dir(t.TempDir())
	if err := d.SetStatus("GPU-a", Status{State: Ready}); err != nil {
		t.Fatal(err)
	}
	ended := map[string]bool{}
	add := func(share, id string) error {
		runs := func(c Container) bool { return !ended[c.ID] }
		return d.AddContainer("GPU-a", Container{Share: share, ID: id, PID: 1}, 2, runs)
	}
	for _, id := range []string{"one", "two", "two"} {
		if err := add("s", id); err != nil {
			t.Fatalf("container %s of two: %v", id, err)
		}
	}
	if err := add("s", "three"); err == nil || !strings.Contains(err.Error(), "2 containers have its share already") {
		t.Errorf("a third container: %v", err)
	}
	if err := add("other", "four"); err != nil {
		t.Errorf("a container of another share: %v", err)
	}
	ended["one"] = true
	if err := add("s", "three"); err != nil {
		t.Errorf("a container after another has ended: %v", err)
	}
	content, err := os.ReadFile(filepath.Join(string(d), "GPU-a", "containers.json"))
	if err != nil || strings.Contains(string(content), `"one"`) {
		t.Errorf("the file keeps what has ended: %s, %v", content, err)
	}
	if err := os.WriteFile(filepath.Join(string(d), "GPU-a", "containers.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := add("s", "five"); err != nil {
		t.Errorf("a damaged file keeps containers from starting: %v", err)
	}
}

func TestContainersThatStartAtOnce(t *testing.T) {
	d := Dir(t.TempDir())
	if err := d.SetStatus("GPU-a", Status{State: Ready}); err != nil {
		t.Fatal(err)
	}
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
	if got := started.Load(); got != 4 {
		t.Errorf("%d containers started, want 4", got)
	}
}
