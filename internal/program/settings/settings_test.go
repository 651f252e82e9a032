// SPDX-License-Identifier: Apache-2.0

package settings_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v3"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
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
	expect.NoError(v, os.Mkdir(filepath.Join(v.dir, version), 0o755))
	for key, value := range values {
		expect.NoError(v, os.WriteFile(filepath.Join(v.dir, version, key), []byte(value), 0o644))
	}
	link := filepath.Join(v.dir, "..new")
	expect.NoError(v, os.Symlink(version, link))
	expect.NoError(v, os.Rename(link, filepath.Join(v.dir, "..data")))
	for key := range values {
		if err := os.Symlink(filepath.Join("..data", key), filepath.Join(v.dir, key)); err != nil &&
			!errors.Is(err, os.ErrExist) {
			v.Fatal(err)
		}
	}
	entries, err := os.ReadDir(v.dir)
	expect.NoError(v, err)
	for _, entry := range entries {
		if _, kept := values[entry.Name()]; !kept && entry.Name()[0] != '.' {
			expect.NoError(v, os.Remove(filepath.Join(v.dir, entry.Name())))
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
				func(key string) string { return test.environment[key] }, flags, nil)
			expect.NoError(t, err)
			v.hold(test.after)
			if test.ends {
				<-watched.Done()
				expect.ErrorIs(t, context.Cause(watched), settings.ErrChanged)
				return
			}
			// A further change that matters is noticed, and not before it is made.
			expect.NoErrorf(t, watched.Err(), "it ended for nothing")
			v.hold(values{"LATER": "1"})
			<-watched.Done()
		})
	}
}

// What is wrong with a key that the DaemonSet's own env overrides keeps no other change from the program: it would
// start with them.
func TestAWrongSettingThatTheDaemonSetOverrides(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	v := &volume{T: t, dir: t.TempDir()}
	v.hold(map[string]string{"NVIDIA_DRIVER_ROOT": "/a"})
	watched, err := settings.Watch(ctx, v.dir, time.Millisecond, func(key string) string {
		return map[string]string{"NVIDIA_DRIVER_ROOT": "/a", "V": "2"}[key]
	}, flags, nil)
	expect.NoError(t, err)
	v.hold(map[string]string{"NVIDIA_DRIVER_ROOT": "/b", "V": "loud"})
	select {
	case <-watched.Done():
	case <-time.After(10 * time.Second):
	}
	expect.ErrorIs(t, context.Cause(watched), settings.ErrChanged)
}

// flags are a program's, with one setting that not every text is right for, and one that has to be long enough.
func flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "driver-root", Sources: cli.EnvVars("NVIDIA_DRIVER_ROOT")},
		&cli.IntFlag{Name: "v", Sources: cli.EnvVars("V"), Value: 2},
		&cli.DurationFlag{Name: "gpu-read-interval", Sources: cli.EnvVars("GPU_READ_INTERVAL"), Value: time.Minute,
			Validator: func(interval time.Duration) error {
				if interval < time.Second {
					return errors.New("less than a second")
				}
				return nil
			}},
	}
}

// looks tells of the looks of a watch at the environment, of which each look at settings that changed has some.
type looks chan struct{}

func (l looks) counted(environment func(string) string) func(string) string {
	return func(key string) string {
		select {
		case l <- struct{}{}:
		default:
		}
		return environment(key)
	}
}

// wait waits for more of them than three looks at the settings have, or until the program is to end.
func (l looks) wait(watched context.Context) {
	for range 20 {
		select {
		case <-l:
		case <-watched.Done():
			return
		}
	}
}

// A setting that the program would not start with ends no program: all of a cluster would end within minutes,
// and none would start again. It is told, once, and what was made right is taken.
func TestSettingsThatTheProgramWouldNotStartWith(t *testing.T) {
	type values = map[string]string
	before := values{"NVIDIA_DRIVER_ROOT": "/a", "GPU_READ_INTERVAL": "2s"}
	for name, test := range map[string]struct {
		wrong, right values
		told         string
	}{
		"one that is refused": {values{"GPU_READ_INTERVAL": "500ms"}, values{"GPU_READ_INTERVAL": "5s"},
			`GPU_READ_INTERVAL="500ms": less than a second`},
		"one that is no number": {values{"V": "loud"}, values{"V": "4"}, `V="loud": `},
		"beside one that is right": {values{"V": "4", "GPU_READ_INTERVAL": "0"}, values{"V": "4"},
			`GPU_READ_INTERVAL="0": `},
		"before an empty one": {values{"V": "loud"}, values{"GPU_READ_INTERVAL": ""}, `V="loud": `},
		"before another":      {values{"V": "loud"}, values{"NVIDIA_DRIVER_ROOT": "/b"}, `V="loud": `},
	} {
		t.Run(name, func(t *testing.T) {
			logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
			log, ok := logger.GetSink().(ktesting.Underlier)
			if !ok {
				t.Fatal("the log is not kept")
			}
			told := func() int {
				return strings.Count(log.GetBuffer().String(), "with the new ones this program would not start")
			}
			v := &volume{T: t, dir: t.TempDir()}
			v.hold(before)
			looks, refused := make(looks), make(chan error, 1)
			watched, err := settings.Watch(klog.NewContext(t.Context(), logger), v.dir, time.Millisecond,
				looks.counted(func(key string) string { return before[key] }), flags, refused)
			expect.NoError(t, err)
			hold := func(after values) {
				all := maps.Clone(before)
				maps.Copy(all, after)
				v.hold(all)
			}
			hold(test.wrong)
			looks.wait(watched)
			said := strings.Trim(strconv.Quote(test.told), `"`)
			if watched.Err() != nil || told() != 1 || !strings.Contains(log.GetBuffer().String(), said) {
				t.Errorf("ended: %v; told %d times: %s", context.Cause(watched), told(), log.GetBuffer().String())
			}
			expect.Error(t, <-refused, test.told)
			hold(test.right)
			<-watched.Done()
			expect.ErrorIs(t, context.Cause(watched), settings.ErrChanged)
		})
	}
}

// What is made as it was ends nothing, and can be wrong once more.
func TestSettingsThatAreTakenBack(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	v := &volume{T: t, dir: t.TempDir()}
	v.hold(map[string]string{"V": "2"})
	looks, refused := make(looks), make(chan error, 1)
	watched, err := settings.Watch(ctx, v.dir, time.Millisecond, looks.counted(func(key string) string {
		return map[string]string{"V": "2"}[key]
	}), flags, refused)
	expect.NoError(t, err)
	for _, value := range []string{"loud", "2", "loud", "2"} {
		v.hold(map[string]string{"V": value})
		if value == "loud" {
			looks.wait(watched)
		}
		if value == "loud" {
			// At each look, so that Events of it are repeated before the API server forgets them.
			for range 3 {
				if err := <-refused; err == nil {
					t.Errorf("V=%s: told that it is taken", value)
				}
			}
		}
		for value == "2" && <-refused != nil {
		}
		if watched.Err() != nil {
			t.Fatalf("V=%s: it ended for %v", value, context.Cause(watched))
		}
	}
	v.hold(map[string]string{"V": "3"})
	<-watched.Done()
}

func TestWithoutAVolumeNothingIsWatched(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	watched, err := settings.Watch(ctx, "", time.Millisecond, os.Getenv, flags, nil)
	if err != nil || watched != ctx {
		t.Errorf("got %v, %v", watched, err)
	}
}
