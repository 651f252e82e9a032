// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func written(t *testing.T, architecture string) string {
	t.Helper()
	one := image(program(t, "for "+architecture))
	one.Architecture = architecture
	path := filepath.Join(t.TempDir(), architecture+".tar")
	if err := Write(path, one); err != nil {
		t.Fatal(err)
	}
	return path
}

// What an engine or a registry client follows: the index names one image, which names a
// manifest for each platform, and all that these name is in the archive.
func TestJoinedImageHasBothArchitectures(t *testing.T) {
	joined := filepath.Join(t.TempDir(), "image.tar")
	if err := Join(joined, "localhost/app:v1", []string{written(t, "amd64"), written(t, "arm64")}); err != nil {
		t.Fatal(err)
	}
	entries := map[string][]byte{}
	if err := eachEntry(joined, func(header *tar.Header, content io.Reader) (err error) {
		if _, twice := entries[header.Name]; twice {
			t.Errorf("%s is in the archive twice", header.Name)
		}
		entries[header.Name], err = io.ReadAll(content)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	read := func(name string, into any) {
		t.Helper()
		if err := json.Unmarshal(entries[name], into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var index, platforms struct {
		Manifests []descriptor `json:"manifests"`
	}
	read("index.json", &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != "localhost/app:v1" {
		t.Fatalf("the index has %+v", index.Manifests)
	}
	read(blobPath(index.Manifests[0].Digest), &platforms)
	var found []string
	for _, m := range platforms.Manifests {
		found = append(found, m.Platform.OS+"/"+m.Platform.Architecture)
		var manifest struct {
			Config descriptor   `json:"config"`
			Layers []descriptor `json:"layers"`
		}
		read(blobPath(m.Digest), &manifest)
		if got := len(entries[blobPath(m.Digest)]); got != m.Size {
			t.Errorf("the manifest of %s has %d bytes, want %d", m.Platform.Architecture, got, m.Size)
		}
		var config platform
		read(blobPath(manifest.Config.Digest), &config)
		if config != *m.Platform {
			t.Errorf("the configuration is for %+v, its manifest for %+v", config, *m.Platform)
		}
		layer := string(entries[blobPath(manifest.Layers[0].Digest)])
		if !strings.Contains(layer, "for "+m.Platform.Architecture) {
			t.Errorf("the layer for %s has not its programs", m.Platform.Architecture)
		}
	}
	if want := []string{"linux/amd64", "linux/arm64"}; !slices.Equal(found, want) {
		t.Errorf("platforms %v, want %v", found, want)
	}
}

func TestArchivesThatCannotBeJoined(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.tar")
	if err := os.WriteFile(broken, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	amd64 := written(t, "amd64")
	for name, test := range map[string]struct {
		archives []string
		says     string
	}{
		"one architecture twice": {[]string{amd64, written(t, "amd64")}, "are both for amd64"},
		"no archive":             {[]string{amd64, broken}, "read " + broken},
		"none there":             {[]string{filepath.Join(t.TempDir(), "x.tar")}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out.tar")
			if err := Join(out, "localhost/app:v1", test.archives); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v, want %q", err, test.says)
			}
			if left, err := filepath.Glob(filepath.Join(filepath.Dir(out), "*")); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}
