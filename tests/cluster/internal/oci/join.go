// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// metadataMost bounds what is read of an archive into memory: manifests and configurations,
// not layers.
const metadataMost = 1 << 20

// Join writes an archive of one image for several architectures, of archives that Write has
// made of it for one each. They must be of different architectures.
func Join(path, name string, archives []string) (err error) {
	platforms := map[string]string{}
	var manifests []descriptor
	for _, archive := range archives {
		manifest, err := manifestOf(archive)
		if err != nil {
			return fmt.Errorf("join image %s: read %s: %w", name, archive, err)
		}
		if other, taken := platforms[manifest.Platform.Architecture]; taken {
			return fmt.Errorf("join image %s: %s and %s are both for %s", name, other, archive,
				manifest.Platform.Architecture)
		}
		platforms[manifest.Platform.Architecture] = archive
		manifests = append(manifests, manifest)
	}
	nested, err := jsonBlob(mediaTypeIndex, map[string]any{
		"schemaVersion": 2, "mediaType": mediaTypeIndex, "manifests": manifests})
	if err != nil {
		return fmt.Errorf("join image %s: %w", name, err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("join image %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("join image %s: %w", name, err), os.Remove(file.Name()))
		}
	}()
	out := tar.NewWriter(file)
	if err := errors.Join(writeLayout(out, name, nested), copyBlobs(out, archives), out.Close(), file.Chmod(0o644),
		file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// manifestOf describes the only image of an archive, with its platform.
func manifestOf(archive string) (descriptor, error) {
	entries := map[string][]byte{}
	if err := eachEntry(archive, func(header *tar.Header, content io.Reader) error {
		if header.Size > metadataMost {
			return nil
		}
		read, err := io.ReadAll(content)
		entries[header.Name] = read
		return err
	}); err != nil {
		return descriptor{}, err
	}
	var index struct {
		Manifests []descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(entries["index.json"], &index); err != nil {
		return descriptor{}, fmt.Errorf("index.json: %w", err)
	}
	if len(index.Manifests) != 1 {
		return descriptor{}, fmt.Errorf("it has %d images, want one", len(index.Manifests))
	}
	var manifest struct {
		Config descriptor `json:"config"`
	}
	if err := json.Unmarshal(entries[blobPath(index.Manifests[0].Digest)], &manifest); err != nil {
		return descriptor{}, fmt.Errorf("its manifest: %w", err)
	}
	found := index.Manifests[0]
	found.Annotations = nil
	found.Platform = &platform{}
	if err := json.Unmarshal(entries[blobPath(manifest.Config.Digest)], found.Platform); err != nil {
		return descriptor{}, fmt.Errorf("its configuration: %w", err)
	}
	return found, nil
}

// copyBlobs copies what the archives have but their own indexes; what several have, once.
func copyBlobs(out *tar.Writer, archives []string) error {
	copied := map[string]bool{}
	for _, archive := range archives {
		if err := eachEntry(archive, func(header *tar.Header, content io.Reader) error {
			if copied[header.Name] || filepath.Dir(header.Name) != blobsDir {
				return nil
			}
			copied[header.Name] = true
			return writeEntry(out, header, content)
		}); err != nil {
			return fmt.Errorf("copy %s: %w", archive, err)
		}
	}
	return nil
}

func eachEntry(archive string, do func(header *tar.Header, content io.Reader) error) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	reader := tar.NewReader(file)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := do(header, reader); err != nil {
			return err
		}
	}
}

// writeLayout writes what an archive begins with: its layout, its index, which names the
// image, and what that names.
func writeLayout(out *tar.Writer, name string, top blob, others ...blob) error {
	named := top.descriptor()
	named.Annotations = map[string]string{"io.containerd.image.name": name}
	index, err := jsonBlob("", map[string]any{
		"schemaVersion": 2, "mediaType": mediaTypeIndex, "manifests": []descriptor{named}})
	if err != nil {
		return err
	}
	write := func(path string, content []byte) error {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Size: int64(len(content)),
			Format: tar.FormatPAX}
		return writeEntry(out, header, bytes.NewReader(content))
	}
	if err := errors.Join(write("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)),
		write("index.json", index.content)); err != nil {
		return err
	}
	for _, b := range append([]blob{top}, others...) {
		if err := write(b.path(), b.content); err != nil {
			return err
		}
	}
	return nil
}
