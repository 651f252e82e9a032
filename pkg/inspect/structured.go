// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"fmt"
	"io"

	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// JSON prints the table as one JSON object, indented.
func JSON(out io.Writer, t *Table) error {
	if err := text.JSON(out, t); err != nil {
		return fmt.Errorf("print the table as JSON: %w", err)
	}
	return nil
}

// YAML prints the table as one YAML document with the same fields.
func YAML(out io.Writer, t *Table) error {
	data, err := text.YAML(t)
	if err != nil {
		return fmt.Errorf("print the table as YAML: %w", err)
	}
	if _, err := out.Write(data); err != nil {
		return fmt.Errorf("print the table as YAML: %w", err)
	}
	return nil
}
