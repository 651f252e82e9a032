// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// milli is a GPU, in the unit of the trace.
const milli = 1000

// kind is what pods ask for that are alike: of each of some GPUs so many thousandths.
type kind struct {
	number      int
	cpu, memory int64
	gpus        int
	share       int64
	models      []string
	asked       int64
}

// workload is a list of pods of the trace: the kind of each, and all kinds.
type workload struct {
	name        string
	pods, kinds []*kind
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

// read returns the rows of a file of the trace. The file's first row names the fields.
func read[Row any](dir, file string) ([]Row, error) {
	f, err := os.Open(filepath.Join(dir, file))
	if err != nil {
		return nil, fmt.Errorf("read the trace (--trace names its directory): %w", err)
	}
	defer f.Close()
	cells, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read %s of the trace: %w", file, err)
	}
	var named []map[string]string
	for _, row := range cells[min(1, len(cells)):] {
		one := map[string]string{}
		for i, cell := range row {
			one[cells[0][i]] = cell
		}
		named = append(named, one)
	}
	encoded, err := json.Marshal(named)
	if err != nil {
		return nil, fmt.Errorf("read %s of the trace: %w", file, err)
	}
	var rows []Row
	if err := json.Unmarshal(encoded, &rows); err != nil {
		return nil, fmt.Errorf("read %s of the trace: %w", file, err)
	}
	return rows, nil
}

// readNodes are the nodes of the trace, all of them free.
func readNodes(dir string) ([]node, error) {
	rows, err := read[struct {
		Name   string `json:"sn"`
		Model  string `json:"model"`
		CPU    int64  `json:"cpu_milli,string"`
		Memory int64  `json:"memory_mib,string"`
		GPUs   int    `json:"gpu,string"`
	}](dir, "openb_node_list_gpu_node.csv")
	var nodes []node
	for _, r := range rows {
		nodes = append(nodes, node{name: r.Name, model: r.Model, cpu: r.CPU, memory: r.Memory, freeCPU: r.CPU,
			freeMemory: r.Memory, free: int64(r.GPUs) * milli, rests: slices.Repeat([]int64{milli}, r.GPUs)})
	}
	return nodes, err
}

// readWorkload is a list of pods of the trace.
func readWorkload(dir, name string) (*workload, error) {
	type ask struct {
		CPU    int64  `json:"cpu_milli,string"`
		Memory int64  `json:"memory_mib,string"`
		GPUs   int    `json:"num_gpu,string"`
		Share  int64  `json:"gpu_milli,string"`
		Models string `json:"gpu_spec"`
	}
	rows, err := read[ask](dir, "openb_pod_list_"+name+".csv")
	w, at := &workload{name: name}, map[ask]*kind{}
	for _, r := range rows {
		k := at[r]
		if k == nil {
			k = &kind{number: len(w.kinds), cpu: r.CPU, memory: r.Memory, gpus: r.GPUs, share: r.Share,
				asked: int64(r.GPUs) * r.Share}
			if r.Models != "" {
				k.models = strings.Split(r.Models, "|")
			}
			at[r], w.kinds = k, append(w.kinds, k)
		}
		w.pods = append(w.pods, k)
	}
	return w, err
}

// readPublished returns the paper's own results by publishedAs: allocated GPUs in percent, when pods have asked for 130
// %.
func readPublished(dir string) (map[string]float64, error) {
	rows, err := read[struct {
		Workload  string  `json:"workload"`
		Policy    string  `json:"sc_policy"`
		Seed      int     `json:"seed,string"`
		Allocated float64 `json:"130,string"`
	}](dir, "published_allocated.csv")
	out := map[string]float64{}
	for _, r := range rows {
		_, policy, _ := strings.Cut(r.Policy, "-")
		out[publishedAs(strings.TrimPrefix(r.Workload, "openb_pod_list_"), policy, r.Seed)] = r.Allocated
	}
	return out, err
}

// publishedAs returns the key of a result of the paper.
func publishedAs(workload, policy string, seed int) string {
	return fmt.Sprint(workload, "/", policy, "/", seed)
}

// arrivals are the pods in the order of a seed, and drawn again until GPUs in percent of the cluster's are asked for.
func (w *workload) arrivals(random *rand.Rand, percent, gpus int64) []*kind {
	var out []*kind
	var asked int64
	for _, i := range random.Perm(len(w.pods)) {
		out = append(out, w.pods[i])
		if asked += w.pods[i].asked; asked*100 >= percent*gpus {
			return out
		}
	}
	for asked*100 < percent*gpus {
		k := w.pods[random.IntN(len(w.pods))]
		out, asked = append(out, k), asked+k.asked
	}
	return out
}
