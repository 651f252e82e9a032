// SPDX-License-Identifier: Apache-2.0

// Package oci writes container images as OCI archives, the tar files that
// `ctr images import` reads, without a container engine.
package oci

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Image says what is in an image. The same Image over the same files gives
// the same bytes, whoever writes it and when.
type Image struct {
	// Name is the full reference, such as localhost/gpu-probe:latest.
	Name string
	// Entrypoint is what a container runs where its pod names no command.
	Entrypoint []string
	// Env holds NAME=VALUE settings.
	Env []string
	// Files are the content. Directories above them are made.
	Files []File
	// Architecture is that of the programs, as Go names it; empty is this program's own.
	Architecture string
}

// File is one entry of an image.
type File struct {
	// Path is the absolute path in the image.
	Path string
	// Source is the file to take the content from; symbolic links are
	// followed. Empty for a directory.
	Source string
	// Mode holds the permission bits; 0 takes those of Source, and 0755 for a
	// directory.
	Mode fs.FileMode
}

// Write writes the archive to path, which it replaces only when the whole
// archive is written.
func Write(path string, image Image) (err error) {
	archive, err := Archive(image)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write image %s: %w", image.Name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write image %s: %w", image.Name, err), os.Remove(file.Name()))
		}
	}()
	if _, err := file.Write(archive); err != nil {
		return errors.Join(err, file.Close())
	}
	if err := file.Chmod(0o644); err != nil {
		return errors.Join(err, file.Close())
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

// Archive is the image as an OCI archive with one uncompressed layer: it never
// leaves the machine, where unpacking costs more than the bytes.
func Archive(image Image) ([]byte, error) {
	if image.Name == "" {
		return nil, errors.New("image without a name")
	}
	layer, err := layerOf(image.Files)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", image.Name, err)
	}
	layerBlob := blob{mediaType: "application/vnd.oci.image.layer.v1.tar", content: layer}
	config, err := jsonBlob("application/vnd.oci.image.config.v1+json", map[string]any{
		"created":      time.Unix(0, 0).UTC().Format(time.RFC3339),
		"os":           "linux",
		"architecture": cmp.Or(image.Architecture, runtime.GOARCH),
		"config":       map[string]any{"Entrypoint": image.Entrypoint, "Env": image.Env},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{layerBlob.digest()}},
	})
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", image.Name, err)
	}
	manifest, err := jsonBlob("application/vnd.oci.image.manifest.v1+json", map[string]any{
		"schemaVersion": 2,
		"mediaType":     "application/vnd.oci.image.manifest.v1+json",
		"config":        config.descriptor(),
		"layers":        []descriptor{layerBlob.descriptor()},
	})
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", image.Name, err)
	}
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	if err := writeLayout(archive, image.Name, manifest, config, layerBlob); err != nil {
		return nil, fmt.Errorf("image %s: %w", image.Name, err)
	}
	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("image %s: %w", image.Name, err)
	}
	return out.Bytes(), nil
}

const (
	mediaTypeIndex = "application/vnd.oci.image.index.v1+json"
	blobsDir       = "blobs/sha256"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

// platform is what an image runs on. The configuration of an image has the same fields.
type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

type blob struct {
	mediaType string
	content   []byte
}

func jsonBlob(mediaType string, value any) (blob, error) {
	content, err := json.Marshal(value)
	return blob{mediaType: mediaType, content: content}, err
}

func (b blob) sum() string {
	sum := sha256.Sum256(b.content)
	return hex.EncodeToString(sum[:])
}

func (b blob) digest() string { return "sha256:" + b.sum() }

func (b blob) path() string { return blobPath(b.digest()) }

// blobPath is where an archive has what has the digest.
func blobPath(digest string) string {
	return path.Join(blobsDir, strings.TrimPrefix(digest, "sha256:"))
}

func (b blob) descriptor() descriptor {
	return descriptor{MediaType: b.mediaType, Digest: b.digest(), Size: len(b.content)}
}

// layerOf packs files in the order of their paths, each directory before what
// is in it, all owned by root and without a time.
func layerOf(files []File) ([]byte, error) {
	entries := map[string]File{}
	for _, file := range files {
		if !path.IsAbs(file.Path) {
			return nil, fmt.Errorf("file %q: its path in the image has to be absolute", file.Path)
		}
		name := strings.TrimPrefix(path.Clean(file.Path), "/")
		if _, taken := entries[name]; taken {
			return nil, fmt.Errorf("file /%s is named twice", name)
		}
		entries[name] = file
	}
	for name := range entries {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, known := entries[dir]; !known {
				entries[dir] = File{Path: "/" + dir}
			}
		}
	}
	names := make([]string, 0, len(entries))
	for name := range entries {
		names = append(names, name)
	}
	slices.Sort(names)

	var out bytes.Buffer
	layer := tar.NewWriter(&out)
	for _, name := range names {
		if err := addFile(layer, name, entries[name]); err != nil {
			return nil, fmt.Errorf("file /%s: %w", name, err)
		}
	}
	if err := layer.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func addFile(layer *tar.Writer, name string, file File) error {
	if file.Source == "" {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(cmp.Or(file.Mode, 0o755)),
			Format: tar.FormatPAX}
		return layer.WriteHeader(header)
	}
	content, err := os.Open(file.Source)
	if err != nil {
		return err
	}
	defer content.Close()
	info, err := content.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", file.Source)
	}
	mode := cmp.Or(file.Mode, info.Mode().Perm())
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode), Size: info.Size(), Format: tar.FormatPAX}
	return writeEntry(layer, header, content)
}

func writeEntry(archive *tar.Writer, header *tar.Header, content io.Reader) error {
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(archive, content)
	return err
}
