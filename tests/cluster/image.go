// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/cluster"
	"github.com/gpushare/dra-driver-gpushare/tests/cluster/internal/oci"
)

func imageCommand() *cli.Command {
	return &cli.Command{
		Name:  "image",
		Usage: "make container images and load them",
		Commands: []*cli.Command{
			{
				Name: "load", Usage: "load OCI archives into the nodes' containerd", ArgsUsage: "ARCHIVE…",
				Flags: []cli.Flag{&cli.StringFlag{Name: "node", Usage: "load into the node `NAME` only"}},
				Action: withCluster(func(ctx context.Context, c *cluster.Cluster, cmd *cli.Command) error {
					if cmd.NArg() == 0 {
						return errors.New("image load: name at least one archive")
					}
					return c.LoadImages(ctx, cmd.Args().Slice(), cmd.String("node"))
				}),
			},
			{
				Name: "build", Usage: "write an image as an OCI archive; the same input gives the same bytes",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "name", Required: true, Usage: "full `REFERENCE`, such as localhost/app:dev"},
					&cli.StringFlag{Name: "out", Required: true, Usage: "`FILE` to write"},
					&cli.StringSliceFlag{Name: "entrypoint", Usage: "program and arguments, one `WORD` each time"},
					&cli.StringSliceFlag{Name: "env", Usage: "`NAME=VALUE` in the container's environment"},
					&cli.StringSliceFlag{Name: "file",
						Usage: "`SOURCE=PATH[:MODE]`: a file, its path in the image and its octal permissions"},
					&cli.StringSliceFlag{Name: "directory", Usage: "an empty directory at `PATH[:MODE]`"},
					&cli.StringFlag{Name: "arch",
						Usage: "`ARCHITECTURE` of the programs, as Go names it; this one's own if not given"},
				},
				Action: buildImage,
			},
			{
				Name: "join", Usage: "write an image for several architectures, of archives that build has written",
				ArgsUsage: "ARCHIVE…",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "name", Required: true, Usage: "full `REFERENCE`, such as localhost/app:dev"},
					&cli.StringFlag{Name: "out", Required: true, Usage: "`FILE` to write"},
				},
				Action: func(_ context.Context, cmd *cli.Command) error {
					if cmd.NArg() == 0 {
						return errors.New("image join: name at least one archive")
					}
					return oci.Join(cmd.String("out"), cmd.String("name"), cmd.Args().Slice())
				},
			},
		},
	}
}

func buildImage(_ context.Context, cmd *cli.Command) error {
	image := oci.Image{Name: cmd.String("name"), Entrypoint: cmd.StringSlice("entrypoint"), Env: cmd.StringSlice("env"),
		Architecture: cmd.String("arch")}
	for _, entry := range cmd.StringSlice("file") {
		source, target, found := strings.Cut(entry, "=")
		if !found || source == "" {
			return fmt.Errorf("--file %q: write SOURCE=PATH[:MODE]", entry)
		}
		file, err := imageFile(target)
		if err != nil {
			return fmt.Errorf("--file %q: %w", entry, err)
		}
		file.Source = source
		image.Files = append(image.Files, file)
	}
	for _, entry := range cmd.StringSlice("directory") {
		directory, err := imageFile(entry)
		if err != nil {
			return fmt.Errorf("--directory %q: %w", entry, err)
		}
		image.Files = append(image.Files, directory)
	}
	return oci.Write(cmd.String("out"), image)
}

func imageFile(target string) (oci.File, error) {
	path, octal, hasMode := strings.Cut(target, ":")
	if !hasMode {
		return oci.File{Path: path}, nil
	}
	mode, err := strconv.ParseUint(octal, 8, 9)
	if err != nil {
		return oci.File{}, fmt.Errorf("permissions %q: want octal digits such as 0755", octal)
	}
	return oci.File{Path: path, Mode: fs.FileMode(mode)}, nil
}
