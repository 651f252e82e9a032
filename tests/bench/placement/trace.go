// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/csv"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// milli is a GPU, in the unit of the trace.
const milli = 1000

// pod is one of the trace.
type pod struct {
	kind *kind
	// created and deleted are in seconds, 0 where the workload has no times.
	created, deleted int64
}

// kind is what pods ask for that are alike: of each of some GPUs so many thousandths.
type kind struct {
	number           int
	cpu, memory      int64
	gpus             int
	share            int64
	models           []string
	asked            int64
	multi, unlimited bool
}

// workload is a list of pods of the trace.
type workload struct {
	name  string
	pods  []pod
	kinds []*kind
}

// node is one of the trace, with what is free of it.
type node struct {
	name, model string
	cpu, memory int64
	freeCPU     int64
	freeMemory  int64
	// rests are what is left of each GPU, free their sum.
	rests []int64
	free  int64
}

// table are the rows of a file, by the names in its first row.
func table(dir, file string) ([]map[string]string, error) {
	f, err := os.Open(filepath.Join(dir, file))
	if err != nil {
		return nil, fmt.Errorf("read the trace (--trace names its directory): %w", err)
	}
	defer f.Close()
	read := csv.NewReader(f)
	rows, err := read.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read %s of the trace: %w", file, err)
	}
	var out []map[string]string
	for _, row := range rows[min(1, len(rows)):] {
		named := map[string]string{}
		for i, cell := range row {
			named[rows[0][i]] = cell
		}
		out = append(out, named)
	}
	return out, nil
}

// numbers are some cells of a row, 0 for those that are not there.
func numbers(row map[string]string, names ...string) ([]int64, error) {
	out := make([]int64, len(names))
	for i, name := range names {
		cell, is := row[name]
		if !is {
			continue
		}
		n, err := strconv.ParseInt(cell, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read %s of %v: %w", name, row, err)
		}
		out[i] = n
	}
	return out, nil
}

// readNodes are the nodes of the trace, all of them free.
func readNodes(dir string) ([]node, error) {
	rows, err := table(dir, "openb_node_list_gpu_node.csv")
	if err != nil {
		return nil, err
	}
	var nodes []node
	for _, row := range rows {
		n, err := numbers(row, "cpu_milli", "memory_mib", "gpu")
		if err != nil {
			return nil, err
		}
		made := node{name: row["sn"], model: row["model"], cpu: n[0], memory: n[1], freeCPU: n[0], freeMemory: n[1],
			free: n[2] * milli}
		for range n[2] {
			made.rests = append(made.rests, milli)
		}
		nodes = append(nodes, made)
	}
	return nodes, nil
}

// readWorkload is a list of pods of the trace.
func readWorkload(dir, name string) (*workload, error) {
	rows, err := table(dir, "openb_pod_list_"+name+".csv")
	if err != nil {
		return nil, err
	}
	w, at := &workload{name: name}, map[string]*kind{}
	for _, row := range rows {
		n, err := numbers(row, "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time")
		if err != nil {
			return nil, err
		}
		key := fmt.Sprint(n[:4], row["gpu_spec"])
		k := at[key]
		if k == nil {
			k = &kind{number: len(w.kinds), cpu: n[0], memory: n[1], gpus: int(n[2]), share: n[3], asked: n[2] * n[3]}
			if spec := row["gpu_spec"]; spec != "" {
				k.models = strings.Split(spec, "|")
			}
			at[key], w.kinds = k, append(w.kinds, k)
		}
		w.pods = append(w.pods, pod{k, n[4], n[5]})
	}
	return w, nil
}

// readPublished are the paper's own results: allocated GPUs in percent when 130 % have been asked for, by workload,
// policy and seed.
func readPublished(dir string) (map[string]float64, error) {
	rows, err := table(dir, "published_allocated.csv")
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for _, row := range rows {
		allocated, err := strconv.ParseFloat(row["130"], 64)
		if err != nil {
			return nil, fmt.Errorf("read the published result %v: %w", row, err)
		}
		_, policy, _ := strings.Cut(row["sc_policy"], "-")
		out[published(strings.TrimPrefix(row["workload"], "openb_pod_list_"), policy, row["seed"])] = allocated
	}
	return out, nil
}

func published(workload, policy, seed string) string { return workload + "/" + policy + "/" + seed }

// arrivals are the pods in the order of a seed, and drawn again until GPUs in percent of the cluster's are asked for.
func (w *workload) arrivals(random *rand.Rand, percent, gpus int64) []*kind {
	var out []*kind
	var asked int64
	for _, i := range random.Perm(len(w.pods)) {
		out = append(out, w.pods[i].kind)
		if asked += w.pods[i].kind.asked; asked*100 >= percent*gpus {
			return out
		}
	}
	for asked*100 < percent*gpus {
		k := w.pods[random.IntN(len(w.pods))].kind
		out, asked = append(out, k), asked+k.asked
	}
	return out
}
