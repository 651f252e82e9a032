// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// JSON prints the table as one JSON object, indented.
func JSON(out io.Writer, t *Table) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(t); err != nil {
		return fmt.Errorf("print the table as JSON: %w", err)
	}
	return nil
}

// YAML prints the table as one YAML document with the same fields.
func YAML(out io.Writer, t *Table) error {
	text, err := yaml.Marshal(t)
	if err != nil {
		return fmt.Errorf("print the table as YAML: %w", err)
	}
	if _, err := out.Write(text); err != nil {
		return fmt.Errorf("print the table as YAML: %w", err)
	}
	return nil
}
