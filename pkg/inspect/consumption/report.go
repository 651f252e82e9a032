// SPDX-License-Identifier: Apache-2.0

package consumption

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// By is what amounts are added up by.
type By string

// The ways.
const (
	ByNamespace By = "namespace"
	ByWorkload  By = "workload"
	ByPod       By = "pod"
)

// Ways lists them.
func Ways() []string { return []string{string(ByNamespace), string(ByWorkload), string(ByPod)} }

// Share is what a pod has of GPUs, or a claim that no single pod uses.
type Share struct {
	Workload
	// Pod is empty where it is a claim's.
	Pod string
	Amounts
}

// Amounts are GiB of GPU memory; nil is what is not known. Its JSON form is an interface: fields are added, never
// renamed.
type Amounts struct {
	GrantedGiB *float64 `json:"grantedGiB,omitempty"`
	UsedGiB    *float64 `json:"usedGiB,omitempty"`
	// PeakGiB adds up the most that each container used of each GPU since its node's plugin started.
	PeakGiB *float64 `json:"peakGiB,omitempty"`

	// These are of a period.
	GrantedGiBHours *float64 `json:"grantedGiBHours,omitempty"`
	UsedGiBHours    *float64 `json:"usedGiBHours,omitempty"`
	// These are the largest of all pods, each.
	PodGrantedGiB *float64 `json:"podGrantedGiB,omitempty"`
	PodP99GiB     *float64 `json:"podP99GiB,omitempty"`
	PodPeakGiB    *float64 `json:"podPeakGiB,omitempty"`
}

// Row is what a namespace, a workload or a pod has.
type Row struct {
	Namespace string `json:"namespace"`
	Workload  string `json:"workload,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Pods      int    `json:"pods"`
	Amounts
}

// Report is what all of them have, most first.
type Report struct {
	By By `json:"by"`
	// Since is the length of the period, empty for now.
	Since string `json:"since,omitempty"`
	Rows  []Row  `json:"rows"`
	// Notes say what is not known, each in a sentence.
	Notes []string `json:"notes,omitempty"`
}

// Sum adds shares up.
func Sum(shares []Share, by By) *Report {
	r := &Report{By: by, Rows: []Row{}}
	at := map[Row]int{}
	for _, s := range shares {
		key := Row{Namespace: s.Namespace}
		if by != ByNamespace {
			key.Workload = s.Workload.String()
		}
		if by == ByPod {
			key.Pod = s.Pod
		}
		i, known := at[key]
		if !known {
			i = len(r.Rows)
			at[key] = i
			r.Rows = append(r.Rows, key)
			r.Rows[i].Amounts = s.Amounts
		} else {
			r.Rows[i].add(s.Amounts)
		}
		if s.Pod != "" {
			r.Rows[i].Pods++
		}
	}
	slices.SortFunc(r.Rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.most(), a.most()), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Pod, b.Pod))
	})
	return r
}

func (a Amounts) most() float64 {
	if amount := cmp.Or(a.GrantedGiBHours, a.GrantedGiB); amount != nil {
		return *amount
	}
	return 0
}

func (a *Amounts) add(b Amounts) {
	sum := func(x, y float64) float64 { return x + y }
	larger := func(x, y float64) float64 { return max(x, y) }
	for _, each := range []struct {
		into **float64
		from *float64
		by   func(x, y float64) float64
	}{
		{&a.GrantedGiB, b.GrantedGiB, sum}, {&a.UsedGiB, b.UsedGiB, sum}, {&a.PeakGiB, b.PeakGiB, sum},
		{&a.GrantedGiBHours, b.GrantedGiBHours, sum}, {&a.UsedGiBHours, b.UsedGiBHours, sum},
		{&a.PodGrantedGiB, b.PodGrantedGiB, larger}, {&a.PodP99GiB, b.PodP99GiB, larger},
		{&a.PodPeakGiB, b.PodPeakGiB, larger},
	} {
		// One that is not known leaves the sum unknown.
		if *each.into == nil || each.from == nil {
			*each.into = nil
			continue
		}
		amount := each.by(**each.into, *each.from)
		*each.into = &amount
	}
}

// Print writes the report as a table.
func (r *Report) Print(out io.Writer) error {
	head := []string{"NAMESPACE"}
	if r.By != ByNamespace {
		head = append(head, "WORKLOAD")
	}
	if r.By == ByPod {
		head = append(head, "POD")
	} else {
		head = append(head, "PODS")
	}
	if r.Since == "" {
		head = append(head, "GRANTED(GiB)", "USED(GiB)", "PEAK(GiB)")
	} else {
		head = append(head, "GRANTED(GiB·h)", "USED(GiB·h)", "POD GRANTED(GiB)", "POD P99(GiB)", "POD PEAK(GiB)")
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(head, "\t"))
	for _, row := range r.Rows {
		fmt.Fprintln(table, strings.Join(row.cells(r), "\t"))
	}
	return table.Flush()
}

func (row Row) cells(of *Report) []string {
	cells := []string{row.Namespace}
	if of.By != ByNamespace {
		cells = append(cells, row.Workload)
	}
	if of.By == ByPod {
		cells = append(cells, cmp.Or(row.Pod, "-"))
	} else {
		cells = append(cells, strconv.Itoa(row.Pods))
	}
	amounts := []*float64{row.GrantedGiB, row.UsedGiB, row.PeakGiB}
	if of.Since != "" {
		amounts = []*float64{row.GrantedGiBHours, row.UsedGiBHours, row.PodGrantedGiB, row.PodP99GiB, row.PodPeakGiB}
	}
	for _, amount := range amounts {
		if amount == nil {
			cells = append(cells, "-")
		} else {
			cells = append(cells, strconv.FormatFloat(*amount, 'f', 1, 64))
		}
	}
	return cells
}
