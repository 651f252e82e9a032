// SPDX-License-Identifier: Apache-2.0

// Pack makes an archive of a Helm chart, as `helm package` does, for machines without Helm:
//
//	pack CHART VERSION APP-VERSION DIRECTORY
//
// It prints the archive's path. What the chart links to is in the archive.
package main

import (
	"fmt"
	"io"
	"log"
	"os"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: pack CHART VERSION APP-VERSION DIRECTORY")
		os.Exit(2)
	}
	path, err := pack(os.Args[1], os.Args[2], os.Args[3], os.Args[4])
	if err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}

func pack(chart, version, appVersion, directory string) (string, error) {
	// Helm tells of each link, which are meant.
	log.SetOutput(io.Discard)
	c, err := loader.Load(chart)
	if err != nil {
		return "", fmt.Errorf("read the chart in %s: %w", chart, err)
	}
	c.Metadata.Version, c.Metadata.AppVersion = version, appVersion
	if err := c.Validate(); err != nil {
		return "", fmt.Errorf("check the chart in %s: %w", chart, err)
	}
	path, err := chartutil.Save(c, directory)
	if err != nil {
		return "", fmt.Errorf("write the archive of %s to %s: %w", chart, directory, err)
	}
	return path, nil
}
