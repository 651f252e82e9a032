// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/klog/v2/ktesting"

	"github.com/gpushare/dra-driver-gpushare/cmd/gpu-compat-controller/flags"
	"github.com/gpushare/dra-driver-gpushare/internal/program/settings"
)

// The controller does not end for a setting that it would not start with.
func TestSettingsThatTheControllerWouldNotStartWith(t *testing.T) {
	for name, value := range map[string]struct {
		before string
		wrong  []string
		right  string
	}{
		"HEALTH_ADDRESS": {":8081", []string{"8082", ":99999"}, "0"},
		"CLASS_GRACE":    {"10m", []string{"-1m"}, "5m"},
	} {
		t.Run(name, func(t *testing.T) {
			_, ctx := ktesting.NewTestContext(t)
			dir := t.TempDir()
			hold := func(value string) {
				// At once, as the kubelet exchanges them.
				hidden := filepath.Join(dir, ".new")
				if err := os.WriteFile(hidden, []byte(value), 0o644); err != nil {
					t.Fatal(err)
				}
				if err := os.Rename(hidden, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			hold(value.before)
			environment := func(key string) string { return map[string]string{name: value.before}[key] }
			watched, err := settings.Watch(ctx, dir, time.Millisecond, environment, flags.Flags)
			if err != nil {
				t.Fatal(err)
			}
			for _, wrong := range value.wrong {
				hold(wrong)
				time.Sleep(50 * time.Millisecond)
				if watched.Err() != nil {
					t.Errorf("%s=%s: it ended", name, wrong)
				}
			}
			hold(value.right)
			<-watched.Done()
		})
	}
}
