// SPDX-License-Identifier: Apache-2.0

// Release completes the directory of a release, which deployments/release/build.sh fills:
//
//	release --version v1.2.3 --commit SHA --url https://…/v1.2.3 DIRECTORY
//
// It packs the kubectl plugins that lie in DIRECTORY/plugins/GOOS-GOARCH, each with the
// licence, and writes SBOMs of these and of the programs in DIRECTORY/programs/GOOS-GOARCH,
// the manifest for krew, the provenance and the checksums. The same files give the same bytes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/urfave/cli/v3"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := command().Run(ctx, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release says which release a directory is of.
type release struct {
	// Version is such as v1.2.3, Commit the whole hash of git's commit.
	Version, Commit string
	// URL is where the files will lie, without a slash at its end.
	URL string
	// Dir has the files.
	Dir string
}

func command() *cli.Command {
	return &cli.Command{
		Name: "release", Usage: "complete the directory of a release", ArgsUsage: "DIRECTORY",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "version", Required: true, Usage: "`VERSION`, such as v1.2.3"},
			&cli.StringFlag{Name: "commit", Required: true, Usage: "`HASH` of the commit that the files were built of"},
			&cli.StringFlag{Name: "url", Required: true, Usage: "`URL` of the directory where the files will lie"},
			&cli.StringFlag{Name: "license", Value: "LICENSE", Usage: "`FILE` with the licence"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.NArg() != 1 {
				return errors.New("name one directory")
			}
			r := release{Version: c.String("version"), Commit: c.String("commit"), URL: c.String("url"),
				Dir: c.Args().First()}
			return r.complete(c.String("license"))
		},
	}
}

// complete writes what is missing in the directory.
func (r release) complete(license string) error {
	if err := r.check(); err != nil {
		return err
	}
	plugins, err := r.packPlugins(license)
	if err != nil {
		return err
	}
	if err := r.writeKrew(plugins); err != nil {
		return err
	}
	if err := r.writeSBOMs(); err != nil {
		return err
	}
	// The provenance is of all files but itself and the checksums, and these are of it, too.
	if err := r.writeProvenance(); err != nil {
		return err
	}
	return r.writeChecksums()
}
