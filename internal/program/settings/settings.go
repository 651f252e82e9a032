// SPDX-License-Identifier: Apache-2.0

// Package settings notices that a ConfigMap, from which a container's environment was
// made when it started, has changed since, so that the program can restart with it.
package settings

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/urfave/cli/v3"
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
// ends nothing. Nor does one that flags, which are created again for each look, do not take, unless
// the environment overrides it: the program would not start again, and on no node, so it goes on
// with what it has, and refused, a channel with room for one unless it is nil, gets why at each look, and nil once the
// settings are as before. Without a directory, the name being empty, nothing is watched.
func Watch(ctx context.Context, dir string, poll time.Duration, environment func(name string) string,
	flags func() []cli.Flag, refused chan error) (context.Context, error) {
	if dir == "" {
		return ctx, nil
	}
	changes, stop := notify(ctx, dir)
	before, err := read(dir, os.ReadDir)
	if err != nil {
		stop()
		return nil, fmt.Errorf("read the settings, to notice when they change: %w", err)
	}
	w := &watch{dir: dir, environment: environment, flags: flags, before: before, tells: refused}
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
			if w.changed(ctx) {
				end(ErrChanged)
				return
			}
		}
	}()
	return watched, nil
}

// watch is what is known of the settings from one look to the next.
type watch struct {
	dir         string
	environment func(name string) string
	flags       func() []cli.Flag
	// before is what the directory held when it last was as the environment is.
	before map[string]string
	// refused is what was said of what it has held since, so that it is not said at each look.
	refused string
	tells   chan error
}

// tell replaces what nobody has taken yet: only the last counts.
func (w *watch) tell(refused error) {
	if w.tells == nil {
		return
	}
	select {
	case <-w.tells:
	default:
	}
	w.tells <- refused
}

// changed looks whether the program has to restart.
func (w *watch) changed(ctx context.Context) bool {
	logger := klog.FromContext(ctx)
	now, err := read(w.dir, os.ReadDir)
	if err != nil {
		// As while the kubelet exchanges them.
		logger.V(4).Info("The settings cannot be read at the moment", "directory", w.dir, "err", err)
		return false
	}
	changed := differing(w.before, now, w.environment)
	if len(changed) == 0 {
		if w.refused != "" {
			w.tell(nil)
		}
		w.before, w.refused = now, ""
		return false
	}
	if err := check(w.flags(), now, slices.DeleteFunc(slices.Clone(changed), w.overridden)); err != nil {
		w.tell(err)
		if w.refused != err.Error() {
			w.refused = err.Error()
			logger.Error(err, "The settings have changed, and with the new ones this program would not start: going on "+
				"with the old ones until they are right")
		}
		return false
	}
	logger.Info("The settings have changed: restarting with them", "settings", changed)
	return true
}

// overridden reports whether the environment has a value of its own, as of the DaemonSet, in place of the ConfigMap's:
// the program starts with that, whatever the ConfigMap says.
func (w *watch) overridden(key string) bool { return w.environment(key) != w.before[key] }

// check is an error if the flags do not take what was changed. A key that is gone leaves a flag its default.
func check(flags []cli.Flag, now map[string]string, changed []string) error {
	var refused []error
	for _, flag := range flags {
		documented, ok := flag.(cli.DocGenerationFlag)
		if !ok {
			continue
		}
		for _, key := range documented.GetEnvVars() {
			value, ok := now[key]
			// Of an empty variable flags of other types take nothing: see PostParse of cli.FlagBase.
			if !ok || !slices.Contains(changed, key) || value == "" && documented.TypeName() != "string" {
				continue
			}
			if err := flag.Set(flag.Names()[0], value); err != nil {
				refused = append(refused, fmt.Errorf("%s=%q: %w", key, value, err))
			}
		}
	}
	return errors.Join(refused...)
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

// read returns the values by their keys, listed by list. What begins with a dot is the kubelet's own. An error is also
// that the kubelet exchanged the version meanwhile: it removes the old one file by file.
func read(dir string, list func(dir string) ([]fs.DirEntry, error)) (map[string]string, error) {
	version, err := current(dir)
	if err != nil {
		return nil, err
	}
	entries, err := list(version)
	if version == dir && errors.Is(err, fs.ErrNotExist) {
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
		content, err := os.ReadFile(filepath.Join(version, entry.Name()))
		if err != nil {
			return nil, err
		}
		values[entry.Name()] = string(content)
	}
	after, err := current(dir)
	if err != nil {
		return nil, err
	}
	if after != version {
		return nil, fmt.Errorf("%s was exchanged for %s while it was read", version, after)
	}
	return values, nil
}

// current is where the values lie: ..data links to a directory with all values of one time, and only then the kubelet
// shows new keys beside it, one by one. Without that link it is the directory itself.
func current(dir string) (string, error) {
	version, err := filepath.EvalSymlinks(filepath.Join(dir, "..data"))
	if errors.Is(err, fs.ErrNotExist) {
		return dir, nil
	}
	return version, err
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
