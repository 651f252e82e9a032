// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// program writes a file to put into images.
func program(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func image(source string) Image {
	return Image{
		Name:       "localhost/app:dev",
		Entrypoint: []string{"/usr/bin/app"},
		Env:        []string{"PATH=/usr/bin"},
		Files: []File{{Path: "/usr/bin/app", Source: source, Mode: 0o755}, {Path: "/tmp", Mode: 0o777},
			{Path: "/etc/app.conf", Source: source, Mode: 0o600}},
	}
}

func archive(t *testing.T, image Image) []byte {
	t.Helper()
	content, err := Archive(image)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestSameInputSameBytes(t *testing.T) {
	first := program(t, "content")
	second := program(t, "content")
	if err := os.Chtimes(second, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	shuffled := image(second)
	shuffled.Files[0], shuffled.Files[2] = shuffled.Files[2], shuffled.Files[0]
	if !bytes.Equal(archive(t, image(first)), archive(t, shuffled)) {
		t.Error("the archive depends on when or where the files lie, or on the order they are named in")
	}
	if bytes.Equal(archive(t, image(first)), archive(t, image(program(t, "other")))) {
		t.Error("other content, same archive")
	}
}

func TestWriteReplacesWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, image(filepath.Join(t.TempDir(), "missing"))); err == nil {
		t.Error("no error where a file is missing")
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "old" {
		t.Errorf("a failed write left %q, %v", got, err)
	}
	source := program(t, "content")
	if err := Write(path, image(source)); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, archive(t, image(source))) {
		t.Errorf("wrote something else than the archive, %v", err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left %v beside the archive, %v", entries, err)
	}
}

// TestArchiveIsAnOCILayout reads the archive as containerd does: from the index
// through the digests down to the files.
func TestArchiveIsAnOCILayout(t *testing.T) {
	outer := unpack(t, archive(t, image(program(t, "content"))))
	if got := string(outer["oci-layout"].content); !strings.Contains(got, `"imageLayoutVersion":"1.0.0"`) {
		t.Errorf("oci-layout is %s", got)
	}
	var index struct{ Manifests []descriptor }
	decode(t, outer["index.json"].content, &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != "localhost/app:dev" {
		t.Fatalf("index names %+v", index.Manifests)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(t, content(t, outer, index.Manifests[0]), &manifest)
	var config struct {
		Config struct{ Entrypoint, Env []string }
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(t, content(t, outer, manifest.Config), &config)
	if len(config.Config.Entrypoint) != 1 || config.Config.Entrypoint[0] != "/usr/bin/app" {
		t.Errorf("entrypoint is %v", config.Config.Entrypoint)
	}
	if len(manifest.Layers) != 1 || len(config.Rootfs.DiffIDs) != 1 ||
		config.Rootfs.DiffIDs[0] != manifest.Layers[0].Digest {
		t.Fatalf("layers %v, diff ids %v", manifest.Layers, config.Rootfs.DiffIDs)
	}
	files := unpack(t, content(t, outer, manifest.Layers[0]))
	for name, mode := range map[string]int64{"usr/": 0o755, "usr/bin/": 0o755, "usr/bin/app": 0o755, "tmp/": 0o777,
		"etc/": 0o755, "etc/app.conf": 0o600} {
		file, there := files[name]
		if !there || file.mode != mode {
			t.Errorf("%s: there %t with mode %o, want %o", name, there, file.mode, mode)
		}
	}
	if len(files) != 6 {
		t.Errorf("%d entries, want 6", len(files))
	}
}

func TestArchiveRefuses(t *testing.T) {
	source := program(t, "content")
	tests := map[string]Image{
		"without a name":        {Files: []File{{Path: "/a", Source: source}}},
		"a relative path":       {Name: "n", Files: []File{{Path: "a", Source: source}}},
		"a path named twice":    {Name: "n", Files: []File{{Path: "/a", Source: source}, {Path: "/b/../a", Source: source}}},
		"a missing source":      {Name: "n", Files: []File{{Path: "/a", Source: source + ".gone"}}},
		"a directory as source": {Name: "n", Files: []File{{Path: "/a", Source: filepath.Dir(source)}}},
	}
	for name, image := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := Archive(image); err == nil {
				t.Error("no error")
			}
		})
	}
}

type entry struct {
	mode    int64
	content []byte
}

func unpack(t *testing.T, archive []byte) map[string]entry {
	t.Helper()
	entries := map[string]entry{}
	reader := tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return entries
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		entries[header.Name] = entry{mode: header.Mode, content: content}
	}
}

// content is the blob that d points to, checked against d.
func content(t *testing.T, entries map[string]entry, d descriptor) []byte {
	t.Helper()
	algorithm, sum, _ := strings.Cut(d.Digest, ":")
	blob, there := entries["blobs/"+algorithm+"/"+sum]
	got := sha256.Sum256(blob.content)
	if !there || hex.EncodeToString(got[:]) != sum || len(blob.content) != d.Size {
		t.Fatalf("blob of %+v: there %t, %d bytes, sum %x", d, there, len(blob.content), got)
	}
	return blob.content
}

func decode(t *testing.T, content []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatalf("%v in %s", err, content)
	}
}
