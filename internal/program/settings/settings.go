// SPDX-License-Identifier: Apache-2.0

// Package settings notices that a ConfigMap, from which a container's environment was
// made when it started, has changed since, so that the program can start anew with it.
package settings

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// ErrChanged is the cause with which a context of Watch ends.
var ErrChanged = errors.New("the settings have changed")

// Poll is how often the directory is looked at beside what the kernel tells of it, which it does not where too
// much is watched on the node. The kubelet itself brings a change there within a minute and a half.
const Poll = 20 * time.Second

// Watch returns a context that ends, with the cause ErrChanged, once what the directory
// holds would give the program another environment than it has. The directory is the
// volume of a ConfigMap, a file for each of its keys; where it is empty, there is none
// yet. environment returns a variable of the process, empty if it is not set. A change
// that gives a variable what it has already, as one that the kubelet was late to bring,
// ends nothing. Without a directory, the name being empty, nothing is watched.
func Watch(ctx context.Context, dir string, poll time.Duration, environment func(name string) string) (context.Context,
	error) {
	if dir == "" {
		return ctx, nil
	}
	changes, stop := notify(ctx, dir)
	before, err := read(dir)
	if err != nil {
		stop()
		return nil, fmt.Errorf("read the settings, to notice when they change: %w", err)
	}
	watched, end := context.WithCancelCause(ctx)
	go func() {
		defer stop()
		ticker := time.NewTicker(poll)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-changes:
			case <-ticker.C:
			}
			now, err := read(dir)
			if err != nil {
				// As while the kubelet exchanges them.
				klog.FromContext(ctx).V(4).Info("The settings cannot be read at the moment", "directory", dir, "err", err)
				continue
			}
			if changed := differing(before, now, environment); len(changed) > 0 {
				klog.FromContext(ctx).Info("The settings have changed: starting anew with them", "settings", changed)
				end(ErrChanged)
				return
			}
			before = now
		}
	}()
	return watched, nil
}

// notify tells when something in the directory may have changed; never where the kernel does not tell.
func notify(ctx context.Context, dir string) (changes <-chan fsnotify.Event, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Changes of the settings are not told", "directory", dir, "err", err)
		return nil, func() {}
	}
	// It closes the channels of a watcher, and fails only where that is closed already.
	stop = func() { _ = watcher.Close() }
	if err := watcher.Add(dir); err != nil {
		klog.FromContext(ctx).V(2).Info("Changes of the settings are not told", "directory", dir, "err", err)
	}
	go func() {
		for err := range watcher.Errors {
			klog.FromContext(ctx).V(2).Info("Watching the settings", "err", err)
		}
	}()
	return watcher.Events, stop
}

// read returns the values by their keys. What begins with a dot is the kubelet's own.
func read(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		values[entry.Name()] = string(content)
	}
	return values, nil
}

// differing lists the keys that were changed, in no order, and of which the environment
// has another value.
func differing(before, now map[string]string, environment func(string) string) []string {
	keys := maps.Clone(now)
	if keys == nil {
		keys = map[string]string{}
	}
	maps.Copy(keys, before)
	var changed []string
	for key := range keys {
		if before[key] != now[key] && environment(key) != now[key] {
			changed = append(changed, key)
		}
	}
	return changed
}
