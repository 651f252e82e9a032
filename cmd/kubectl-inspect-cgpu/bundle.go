// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/dra-driver-gpushare/internal/version"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/bundle"
)

// bundleSuffix is what the names of archives end in.
const bundleSuffix = ".tar.gz"

// newBundle makes the command bundle.
func newBundle(o *options) *cobra.Command {
	c := o.subcommand(&cobra.Command{
		Use:   "bundle",
		Short: "Write an archive with what a report of a bug needs, and no secrets",
		Long: "Write an archive with what a report of a bug needs: versions, nodes, ResourceSlices, DeviceClasses, claims, " +
			"the driver's policies, pods, settings, Events and logs, and what doctor and inspect say. There are no Secrets " +
			"in it, and of pods no commands, no environment and no annotations but the driver's. Its README says what is " +
			"inside, and what could not be read.",
		Example: "  kubectl inspect cgpu bundle\n" +
			"  kubectl inspect cgpu bundle -o report.tar.gz",
		RunE: func(c *cobra.Command, _ []string) error { return o.bundle(c.Context()) },
	}, "")
	c.Flags().StringVarP(&o.output, "output", "o", "", "the archive's name; by default gpu-bundle-DATE.tar.gz")
	return c
}

func (o *options) bundle(ctx context.Context) error {
	if o.output != "" && !strings.HasSuffix(o.output, bundleSuffix) {
		return fmt.Errorf("--output %s: the archive's name has to end in %s", o.output, bundleSuffix)
	}
	reader, err := o.reader()
	if err != nil {
		return err
	}
	in, err := reader.BundleInput(ctx, version.String())
	if err != nil {
		return err
	}
	name := o.output
	if name == "" {
		name = "gpu-bundle-" + in.Now.UTC().Format("2006-01-02-150405") + bundleSuffix
	}
	if err := writeBundle(name, in); err != nil {
		return err
	}
	fmt.Fprintf(o.streams.Out, "Wrote %s. Its README.txt says what is inside: look through it before you publish it.\n",
		name)
	for _, missing := range in.Missing {
		fmt.Fprintln(o.streams.ErrOut, "Not in it: "+missing)
	}
	return nil
}

// writeBundle writes the archive, for nobody else to read, and never over another file.
func writeBundle(name string, in bundle.Input) (err error) {
	files, err := bundle.Files(in)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	err = bundle.Write(file, strings.TrimSuffix(filepath.Base(name), bundleSuffix), files, in.Now)
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}
