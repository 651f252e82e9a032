// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/CycloneDX/cyclonedx-go"
)

// programsDir has a directory for each platform, with the programs of the image. It is not
// part of the release.
const programsDir = "programs"

// writeSBOMs writes for each program of the image and each kubectl plugin which modules are
// in it, as the Go compiler has recorded, in CycloneDX's JSON.
func (r release) writeSBOMs() error {
	for _, dir := range []string{programsDir, pluginsDir} {
		programs, err := filepath.Glob(filepath.Join(r.Dir, dir, "*", "*"))
		if err != nil {
			return err
		}
		for _, program := range programs {
			if err := r.writeSBOM(program, filepath.Base(filepath.Dir(program))); err != nil {
				return fmt.Errorf("write the SBOM of %s: %w", program, err)
			}
		}
	}
	return nil
}

func (r release) writeSBOM(program, platform string) (err error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	digest, err := sum(program)
	if err != nil {
		return err
	}
	name := filepath.Base(program)
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &cyclonedx.Component{
		BOMRef: name, Type: cyclonedx.ComponentTypeApplication, Name: name, Version: r.Version,
		PackageURL: packageURL(info.Main.Path, r.Version),
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: digest}},
	}}
	components := []cyclonedx.Component{{
		BOMRef: "go", Type: cyclonedx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion,
		PackageURL: packageURL("std", info.GoVersion),
	}}
	for _, module := range info.Deps {
		components = append(components, component(module))
	}
	bom.Components = &components
	file, err := os.Create(filepath.Join(r.Dir, fmt.Sprintf("sbom-%s-%s.cdx.json", name, platform)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	encoder := cyclonedx.NewBOMEncoder(file, cyclonedx.BOMFileFormatJSON).SetPretty(true)
	return encoder.EncodeVersion(bom, cyclonedx.SpecVersion1_6)
}

// component is a module as it was compiled: that which replaces it, where one does.
func component(module *debug.Module) cyclonedx.Component {
	if module.Replace != nil && module.Replace.Version != "" {
		module = module.Replace
	}
	purl := packageURL(module.Path, module.Version)
	return cyclonedx.Component{BOMRef: purl, Type: cyclonedx.ComponentTypeLibrary, Name: module.Path,
		Version: module.Version, PackageURL: purl}
}

// packageURL names a Go module: https://github.com/package-url/purl-spec.
func packageURL(path, version string) string {
	return "pkg:golang/" + path + "@" + url.PathEscape(version)
}
