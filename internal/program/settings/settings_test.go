// SPDX-License-Identifier: Apache-2.0

package settings_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/program/settings"
)

// volume is a directory as the kubelet keeps that of a ConfigMap.
type volume struct {
	*testing.T
	dir string
	n   int
}

// hold makes the volume hold these keys, at once, as the kubelet does.
func (v *volume) hold(values map[string]string) {
	v.Helper()
	v.n++
	version := "..version-" + string(rune('a'+v.n))
	if err := os.Mkdir(filepath.Join(v.dir, version), 0o755); err != nil {
		v.Fatal(err)
	}
	for key, value := range values {
		if err := os.WriteFile(filepath.Join(v.dir, version, key), []byte(value), 0o644); err != nil {
			v.Fatal(err)
		}
	}
	link := filepath.Join(v.dir, "..new")
	if err := os.Symlink(version, link); err != nil {
		v.Fatal(err)
	}
	if err := os.Rename(link, filepath.Join(v.dir, "..data")); err != nil {
		v.Fatal(err)
	}
	for key := range values {
		if err := os.Symlink(filepath.Join("..data", key), filepath.Join(v.dir, key)); err != nil &&
			!errors.Is(err, os.ErrExist) {
			v.Fatal(err)
		}
	}
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		v.Fatal(err)
	}
	for _, entry := range entries {
		if _, kept := values[entry.Name()]; !kept && entry.Name()[0] != '.' {
			if err := os.Remove(filepath.Join(v.dir, entry.Name())); err != nil {
				v.Fatal(err)
			}
		}
	}
}

func TestWatch(t *testing.T) {
	type values = map[string]string
	const root = "NVIDIA_DRIVER_ROOT"
	for name, test := range map[string]struct {
		before, after, environment values
		ends                       bool
	}{
		"a ConfigMap that is made afterwards": {nil, values{root: "/run/nvidia/driver"}, nil, true},
		"one that is changed":                 {values{root: "/a"}, values{root: "/b"}, values{root: "/a"}, true},
		"one that is deleted":                 {values{root: "/a"}, nil, values{root: "/a"}, true},
		"one key less": {values{root: "/a", "V": "1"}, values{root: "/a"},
			values{root: "/a", "V": "1"}, true},
		"one that stays":                       {values{root: "/a"}, values{root: "/a"}, values{root: "/a"}, false},
		"one that the environment was made of": {nil, values{root: "/b"}, values{root: "/b"}, false},
		"a setting that the DaemonSet overrides,": {values{root: "/a"}, values{root: "/a", "OTHER": ""},
			values{root: "/mine"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			v := &volume{T: t, dir: t.TempDir()}
			if test.before != nil {
				v.hold(test.before)
			}
			watched, err := settings.Watch(ctx, v.dir, time.Millisecond,
				func(key string) string { return test.environment[key] })
			if err != nil {
				t.Fatal(err)
			}
			v.hold(test.after)
			if test.ends {
				<-watched.Done()
				if cause := context.Cause(watched); !errors.Is(cause, settings.ErrChanged) {
					t.Errorf("it ended for %v", cause)
				}
				return
			}
			// A further change that matters is noticed, and not before it is made.
			if watched.Err() != nil {
				t.Error("it ended for nothing")
			}
			v.hold(values{"LATER": "1"})
			<-watched.Done()
		})
	}
}

func TestWithoutAVolumeNothingIsWatched(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	watched, err := settings.Watch(ctx, "", time.Millisecond, os.Getenv)
	if err != nil || watched != ctx {
		t.Errorf("got %v, %v", watched, err)
	}
}
