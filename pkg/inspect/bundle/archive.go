// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"time"
)

// Write writes the files as a gzipped tar archive, in the directory of the name.
func Write(out io.Writer, directory string, files []File, at time.Time) error {
	zipped := gzip.NewWriter(out)
	archive := tar.NewWriter(zipped)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: directory + "/" + f.Name, Size: int64(len(f.Data)), Mode: 0o600,
			ModTime: at}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("write %s to the archive: %w", f.Name, err)
		}
		if _, err := archive.Write(f.Data); err != nil {
			return fmt.Errorf("write %s to the archive: %w", f.Name, err)
		}
	}
	if err := errors.Join(archive.Close(), zipped.Close()); err != nil {
		return fmt.Errorf("end the archive: %w", err)
	}
	return nil
}
