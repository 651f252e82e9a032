// SPDX-License-Identifier: Apache-2.0

package statefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

type value struct {
	Version int    `json:"version"`
	Text    string `json:"text"`
}

var errVersion = errors.New("it has another version")

func file(t *testing.T) File[value] {
	t.Helper()
	return File[value]{Path: filepath.Join(t.TempDir(), "value.json"), Check: func(v value) error {
		if v.Version != 1 {
			return errVersion
		}
		return nil
	}}
}

func TestWhatIsStoredIsLoaded(t *testing.T) {
	f := file(t)
	if v, found, err := f.Load(); v != (value{}) || found || err != nil {
		t.Errorf("without a file: %+v, %v, %v", v, found, err)
	}
	want := value{1, "a"}
	expect.NoError(t, f.Store(want))
	if v, found, err := f.Load(); v != want || !found || err != nil {
		t.Errorf("loaded %+v, %v, %v", v, found, err)
	}
	info, err := os.Stat(f.Path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	expect.NoError(t, errors.Join(f.Remove(), f.Remove()))
	if _, found, err := f.Load(); found || err != nil {
		t.Errorf("after it was removed: %v, %v", found, err)
	}
}

func TestWhatIsNotUnderstood(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "cut off": `{"version":1,"te`, "of another kind": `[1]`, "a newer version": `{"version":2,"text":"a"}`,
	} {
		t.Run(name, func(t *testing.T) {
			f := file(t)
			expect.NoError(t, os.WriteFile(f.Path, []byte(content), 0o600))
			v, found, err := f.Load()
			if v != (value{}) || !found || err == nil || !strings.Contains(err.Error(), f.Path) {
				t.Errorf("loaded %+v, %v, %v", v, found, err)
			}
			expect.Equal(t, name == "a newer version", errors.Is(err, errVersion), "error %v", err)
			expect.NoError(t, f.SetAside())
			if kept, err := os.ReadFile(f.DamagedPath()); err != nil || string(kept) != content {
				t.Errorf("kept %q, %v", kept, err)
			}
			if _, found, err := f.Load(); found || err != nil {
				t.Errorf("after it was set aside: %v, %v", found, err)
			}
		})
	}
}

func TestFieldsOfANewerProgramAreIgnored(t *testing.T) {
	f := file(t)
	expect.NoError(t, os.WriteFile(f.Path, []byte(`{"version":1,"text":"a","later":{"x":1}}`), 0o600))
	if v, found, err := f.Load(); v != (value{1, "a"}) || !found || err != nil {
		t.Errorf("loaded %+v, %v, %v", v, found, err)
	}
}

// What cannot be read says nothing of what was stored: it is not taken for damaged, and not for none.
func TestWhatCannotBeRead(t *testing.T) {
	f := file(t)
	expect.NoError(t, os.Mkdir(f.Path, 0o700))
	if _, found, err := f.Load(); found || err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("loaded %v, %v", found, err)
	}
}
