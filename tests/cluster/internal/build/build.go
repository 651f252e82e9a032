// SPDX-License-Identifier: Apache-2.0

// Package build makes the programs a cluster runs and keeps them in a cache
// outside the checkout, under a name that says what they were built from. A
// second checkout with the same sources builds and links nothing.
package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Builder builds components into a cache. Several builders, also of different
// processes, may use one cache at a time.
type Builder struct {
	// Sources is the directory that holds one module per component.
	Sources string
	// Cache is the directory that holds what was built; made when missing.
	Cache string
	// Built, if set, is a directory with the components by their names, made elsewhere:
	// nothing is built then, and neither Sources nor Go is needed.
	Built string
	// Progress is told what is being done, a line at a time.
	Progress func(format string, args ...any)
}

// DefaultCache is $GPUSHARE_CACHE, or else the user's cache directory, with
// a directory for this program appended.
func DefaultCache() (string, error) {
	base := os.Getenv("GPUSHARE_CACHE")
	if base == "" {
		var err error
		if base, err = os.UserCacheDir(); err != nil {
			return "", fmt.Errorf("find a directory for built components: %w; set GPUSHARE_CACHE to one", err)
		}
	}
	path, err := filepath.Abs(filepath.Join(base, "gpushare-cluster"))
	if err != nil {
		return "", fmt.Errorf("find a directory for built components: %w", err)
	}
	return path, nil
}

// Failed is a build that did not succeed.
type Failed struct {
	Component string
	Log       string // path of what the build printed
	Err       error
}

func (f *Failed) Error() string {
	return fmt.Sprintf("build component %s: %v", f.Component, f.Err)
}

func (f *Failed) Unwrap() error { return f.Err }

// LogPath is where to read what went wrong.
func (f *Failed) LogPath() string { return f.Log }

// Ensure builds the components that the cache lacks and returns the directory
// of each by name. The directories hold the programs under their own names and
// must not be written to.
func (b *Builder) Ensure(ctx context.Context, components []Component) (map[string]string, error) {
	if err := os.MkdirAll(b.Cache, 0o755); err != nil {
		return nil, fmt.Errorf("make the cache of built components: %w; set GPUSHARE_CACHE to a directory that can be "+
			"written", err)
	}
	if b.Built != "" {
		return b.prebuilt(components)
	}
	tools, err := goToolchain(ctx)
	if err != nil {
		return nil, err
	}
	built := map[string]string{}
	var missing []Component
	for _, c := range components {
		k, err := key(c, os.DirFS(filepath.Join(b.Sources, c.directory())), tools)
		if err != nil {
			return nil, err
		}
		built[c.Name] = filepath.Join(b.Cache, c.Name+"-"+k)
		if _, err := os.Stat(built[c.Name]); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, c)
		} else if err != nil {
			return nil, fmt.Errorf("look for component %s in the cache: %w", c.Name, err)
		}
	}
	if err := b.install(ctx, missing); err != nil {
		return nil, err
	}
	for i, c := range missing {
		if err := b.build(ctx, c, built[c.Name], fmt.Sprintf("build %d/%d %s", i+1, len(missing), c.Name)); err != nil {
			return nil, err
		}
	}
	return built, nil
}

// prebuilt gives the directories of components that were built elsewhere.
func (b *Builder) prebuilt(components []Component) (map[string]string, error) {
	dirs := map[string]string{}
	for _, c := range components {
		dirs[c.Name] = filepath.Join(b.Built, c.Name)
		if info, err := os.Stat(dirs[c.Name]); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("%s has no directory %s with the programs of that name: name the directory whose "+
				"parts `cluster programs` lists", b.Built, c.Name)
		}
	}
	return dirs, nil
}

// build makes one component in a directory beside its place and renames it
// there when it is whole, so that the cache never shows half a component.
func (b *Builder) build(ctx context.Context, c Component, target, title string) error {
	logPath := target + ".log"
	fail := func(err error) error { return &Failed{Component: c.Name, Log: logPath, Err: err} }

	unlock, err := b.lock(c.Name, title)
	if err != nil {
		return fail(err)
	}
	defer unlock()
	if _, err := os.Stat(target); err == nil {
		b.Progress("%s: built meanwhile by another process", title)
		return nil
	}

	started := time.Now()
	note := c.Note
	if note != "" {
		note = " (" + note + ")"
	}
	b.Progress("%s%s", title, note)
	stopTicking := every(15*time.Second, func() { b.Progress("%s: still building, %s", title, elapsed(started)) })
	defer stopTicking()

	version := ""
	if c.Module != "" {
		if version, err = b.moduleVersion(ctx, c); err != nil {
			return fail(err)
		}
	}
	// The lock is held, so what an earlier, killed build left is nobody's.
	partial := filepath.Join(b.Cache, c.Name+".partial")
	if err := os.RemoveAll(partial); err != nil {
		return fail(fmt.Errorf("clear the left-overs of an earlier build: %w", err))
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return fail(err)
	}
	log, err := os.Create(logPath)
	if err != nil {
		return fail(err)
	}
	defer log.Close()
	args := append([]string{"build", "-o", partial + "/"}, flags(c, version)...)
	cmd := exec.CommandContext(ctx, "go", append(args, c.Packages...)...)
	cmd.Dir = filepath.Join(b.Sources, c.directory())
	cmd.Env = append(os.Environ(), environment(c)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fail(fmt.Errorf("go build in %s: %w", cmd.Dir, err))
	}
	for link, program := range c.Links {
		if _, err := os.Stat(filepath.Join(partial, program)); err != nil {
			return fail(fmt.Errorf("%s is to be another name of program %s, which was not built: %w", link, program, err))
		}
		if err := os.Symlink(program, filepath.Join(partial, link)); err != nil {
			return fail(err)
		}
	}
	if err := os.Rename(partial, target); err != nil {
		return fail(err)
	}
	b.Progress("%s: done in %s", title, elapsed(started))
	return nil
}

func (b *Builder) lock(name, title string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(b.Cache, name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		b.Progress("%s: another process is building it, waiting", title)
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file.Name(), err), file.Close())
	}
	return func() { file.Close() }, nil
}

func (b *Builder) moduleVersion(ctx context.Context, c Component) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", c.Module)
	cmd.Dir = filepath.Join(b.Sources, c.directory())
	cmd.Env = append(os.Environ(), environment(c)...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask for the version of %s: %w: %s", c.Module, err, strings.TrimSpace(complaint.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

func goToolchain(ctx context.Context) (toolchain, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		return toolchain{}, fmt.Errorf("run go: %w; the cluster's programs are built with Go 1.26 or newer, which has to "+
			"be on PATH", err)
	}
	fields := strings.Fields(string(out))
	if len(fields) != 3 {
		return toolchain{}, fmt.Errorf("go env GOVERSION GOOS GOARCH: want three values, got %q", out)
	}
	return toolchain{Version: fields[0], OS: fields[1], Arch: fields[2]}, nil
}

// every calls f in intervals until the returned function is called.
func every(interval time.Duration, f func()) (stop func()) {
	ticker := time.NewTicker(interval)
	done := make(chan struct{})
	go func() {
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				f()
			}
		}
	}()
	return func() { close(done) }
}

func elapsed(since time.Time) time.Duration {
	return time.Since(since).Round(time.Second)
}

func sortedKeys(m map[string]string) []string {
	return slices.Sorted(maps.Keys(m))
}
