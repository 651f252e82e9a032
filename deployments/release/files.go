// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// pluginsDir has a directory for each platform, with the plugin's program. It is not
	// part of the release.
	pluginsDir     = "plugins"
	checksumsFile  = "SHA256SUMS"
	provenanceFile = "provenance.json"
)

// check looks at what the release is called.
func (r release) check() error {
	switch {
	case !regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`).MatchString(r.Version):
		return fmt.Errorf("version %q is not of the form v1.2.3 or v1.2.3-rc.1", r.Version)
	case !regexp.MustCompile(`^[0-9a-f]{40}$`).MatchString(r.Commit):
		return fmt.Errorf("commit %q is not the whole hash of a commit", r.Commit)
	case !strings.HasPrefix(r.URL, "https://") || strings.HasSuffix(r.URL, "/"):
		return fmt.Errorf("URL %q does not begin with https://, or ends with a slash", r.URL)
	}
	return nil
}

// plugin is a packed kubectl plugin.
type plugin struct {
	OS, Arch string
	// File is the archive's name, Program the program's in it, SHA256 the archive's sum.
	File, Program, SHA256 string
}

// packPlugins packs the plugins of all platforms, in the order of these.
func (r release) packPlugins(license string) ([]plugin, error) {
	found, err := filepath.Glob(filepath.Join(r.Dir, pluginsDir, "*", "*"))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("pack the kubectl plugins: %s has none: build.sh builds them there",
			filepath.Join(r.Dir, pluginsDir))
	}
	var plugins []plugin
	for _, path := range found {
		goos, arch, ok := strings.Cut(filepath.Base(filepath.Dir(path)), "-")
		if !ok {
			return nil, fmt.Errorf("pack the kubectl plugins: %s does not lie in a directory GOOS-GOARCH", path)
		}
		p := plugin{OS: goos, Arch: arch, Program: filepath.Base(path)}
		p.File = fmt.Sprintf("kubectl-inspect-cgpu-%s-%s-%s.tar.gz", r.Version, goos, arch)
		packed, err := pack(path, license)
		if err != nil {
			return nil, fmt.Errorf("pack %s: %w", path, err)
		}
		if err := os.WriteFile(filepath.Join(r.Dir, p.File), packed, 0o644); err != nil {
			return nil, err
		}
		sum := sha256.Sum256(packed)
		p.SHA256 = hex.EncodeToString(sum[:])
		plugins = append(plugins, p)
	}
	return plugins, nil
}

// pack makes an archive of a program and its licence, without times and owners.
func pack(program, license string) ([]byte, error) {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	archive := tar.NewWriter(compressed)
	for _, file := range []struct {
		source, name string
		mode         int64
	}{{program, filepath.Base(program), 0o755}, {license, "LICENSE", 0o644}} {
		content, err := os.ReadFile(file.source)
		if err != nil {
			return nil, err
		}
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file.name, Mode: file.mode,
			Size: int64(len(content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}); err != nil {
			return nil, err
		}
		if _, err := archive.Write(content); err != nil {
			return nil, err
		}
	}
	err := errors.Join(archive.Close(), compressed.Close())
	return out.Bytes(), err
}

// sums are the sums of the directory's files, by name, without those that are given.
func (r release) sums(without ...string) (map[string]string, error) {
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	for _, entry := range entries {
		if entry.IsDir() || slices.Contains(without, entry.Name()) {
			continue
		}
		if sums[entry.Name()], err = sum(filepath.Join(r.Dir, entry.Name())); err != nil {
			return nil, err
		}
	}
	return sums, nil
}

func sum(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
