// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"io"
	"strings"
)

// Print writes the report as text.
func (r *Report) Print(out io.Writer) error {
	var text strings.Builder
	counts := map[Level]int{}
	for _, f := range r.Findings {
		counts[f.Level]++
		object := ""
		if f.Object != "" {
			object = f.Object + ": "
		}
		fmt.Fprintf(&text, "%-8s%s%s\n        do: %s\n", strings.ToUpper(string(f.Level)), object, f.Text, f.Do)
	}
	if len(r.Findings) == 0 {
		fmt.Fprintf(&text, "%d checks, nothing found: %s\n", len(r.Checks), strings.Join(r.Checks, ", "))
	} else {
		fmt.Fprintf(&text, "\n%d checks: %d errors, %d warnings, %d notes\n", len(r.Checks), counts[Error], counts[Warning],
			counts[Note])
	}
	_, err := io.WriteString(out, text.String())
	return err
}
