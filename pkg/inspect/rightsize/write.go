// SPDX-License-Identifier: Apache-2.0

package rightsize

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
)

// of is what has the amounts.
func (s Setting) of() string {
	switch {
	case s.in == inLimits && s.container != "":
		return "container " + s.container
	case s.in == inLimits:
		return ""
	case s.request == "":
		return s.in + "/" + s.object
	}
	return s.in + "/" + s.object + " request " + s.request
}

// write is the command that sets so many GiB of each GPU, or where there is none, what to do.
func (s Setting) write(gib int64) (command, write string) {
	if s.in != inLimits {
		return "", fmt.Sprintf("write %dGi for the capacity memory of request %s into the manifest of %s/%s, which does not "+
			"change: `kubectl replace --force -n %s -f` it, and have its pods made again", gib, s.request, s.in, s.object,
			s.namespace)
	}
	amount := strconv.FormatInt(gib*s.gpus, 10)
	if !slices.Contains([]string{"deployment", "statefulset", "daemonset", "cronjob"}, s.workload.Kind) {
		return "", fmt.Sprintf("write %s: %q for container %s into the manifest of %s, and make it again", ack.ResourceMemory,
			amount, s.container, s.workload)
	}
	return fmt.Sprintf("kubectl patch %s -n %s -p '%s'", s.workload, s.namespace, s.patch(amount)), ""
}

// patch is the change of the pods' template. The API server wants requests of such a resource to be its limits.
func (s Setting) patch(amount string) string {
	amounts := map[string]string{ack.ResourceMemory: amount}
	containers := "containers"
	if s.sidecar {
		containers = "initContainers"
	}
	type object = map[string]any
	template := object{"spec": object{"template": object{"spec": object{containers: []object{
		{"name": s.container, "resources": object{"limits": amounts, "requests": amounts}}}}}}}
	if s.workload.Kind == "cronjob" {
		template = object{"spec": object{"jobTemplate": template}}
	}
	patch, _ := json.Marshal(template) //nolint:errcheck // Texts and maps of them have a form in JSON.
	return string(patch)
}

// Print writes the report as text.
func (r *Report) Print(out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "Looked %s back. Needs are peaks and %.0f %% more, in whole GiB of each GPU.\n\n", r.Since,
		100*r.Headroom)
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tWORKLOAD\tPODS\tSEEN\tHAS(GiB)\tPEAK(GiB)\tNEEDS(GiB)\tADVICE")
	for _, a := range r.Advice {
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s: %s\n", a.Namespace, strings.Join(a.Workloads, ","),
			a.Pods, cmp.Or(a.Seen, "-"), number(a.GrantedGiB), a.peak(), number(a.NeedsGiB), a.Verdict, a.Why)
	}
	table.Flush() //nolint:errcheck // A strings.Builder takes everything.
	for _, a := range r.Advice {
		if a.Command+a.Write != "" {
			fmt.Fprintf(&text, "\n%s %s -n %s, %s, from %d to %d GiB:\n  %s%s\n", a.Verdict, strings.Join(a.Workloads, ","),
				a.Namespace, a.Of, a.GrantedGiB, a.NeedsGiB, a.Command, a.Write)
		}
	}
	fmt.Fprintf(&text, "\nAll of it gives %d GiB back.\n", r.FreesGiB)
	_, err := io.WriteString(out, text.String())
	return err
}

func (a Advice) peak() string {
	if a.Seen == "" {
		return "-"
	}
	return strconv.FormatFloat(a.PeakGiB, 'f', 1, 64)
}

func number(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}
