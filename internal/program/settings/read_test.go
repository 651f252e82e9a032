// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// A version that the kubelet exchanges while it is read is not taken for what the ConfigMap holds: no key, or half
// of them, would be a change of all others.
func TestAVersionThatIsExchangedMeanwhile(t *testing.T) {
	for name, exchange := range map[string]func(dir string) error{
		"it is gone": func(dir string) error { return os.RemoveAll(filepath.Join(dir, "..old")) },
		"half of it is gone": func(dir string) error {
			return os.Remove(filepath.Join(dir, "..old", "NVIDIA_DRIVER_ROOT"))
		},
		"nothing of it is gone yet": func(string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, version := range []string{"..old", "..new"} {
				expect.NoError(t, os.Mkdir(filepath.Join(dir, version), 0o755))
				for _, key := range []string{"V", "NVIDIA_DRIVER_ROOT"} {
					expect.NoError(t, os.WriteFile(filepath.Join(dir, version, key), []byte(version), 0o644))
				}
			}
			point := func(version string) {
				link := filepath.Join(dir, "..link")
				expect.NoError(t, os.Symlink(version, link))
				expect.NoError(t, os.Rename(link, filepath.Join(dir, "..data")))
			}
			point("..old")
			values, err := read(dir, func(version string) ([]os.DirEntry, error) {
				point("..new")
				expect.NoError(t, exchange(dir))
				return os.ReadDir(version)
			})
			if err == nil {
				t.Errorf("it holds %v, want an error", values)
			}
			if values, err = read(dir, os.ReadDir); err != nil || values["V"] != "..new" || len(values) != 2 {
				t.Errorf("the next look: %v, %v", values, err)
			}
		})
	}
}
