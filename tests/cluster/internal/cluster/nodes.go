// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

// maxNodes is bound by the host part of the addresses: node n of a cluster has
// a last byte of n+1.
const maxNodes = 250

// Node is a node as the user asks for it.
type Node struct {
	// Name is the node's name in Kubernetes.
	Name string `json:"name"`
	// Machine names the file that describes the node's simulated GPUs; empty
	// for a node without an NVIDIA driver.
	Machine string `json:"machine,omitempty"`
	// Mode is the value of the node's mode label; empty for no label.
	Mode string `json:"mode,omitempty"`
	// StockTimers leaves kubelet the timers that Kubernetes gives it. Other nodes have shorter
	// ones: see shortTimers.
	StockTimers bool `json:"stockTimers,omitempty"`
}

// stockTimers ends the entry of a node with StockTimers. No mode and no name has a plus.
const stockTimers = "+stock-timers"

var (
	nodeName   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$`)
	labelValue = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
)

// ParseNodes reads a list of entries name[=machine[:mode]][+stock-timers] that are set
// apart by blanks or commas, such as "n1=v100x4:share n2=dgx1 n3=t4x1+stock-timers".
func ParseNodes(list string) ([]Node, error) {
	entries := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' })
	if len(entries) == 0 {
		return nil, fmt.Errorf("no nodes in %q: name at least one, such as n1=v100x4:share", list)
	}
	if len(entries) > maxNodes {
		return nil, fmt.Errorf("%d nodes: a cluster has at most %d", len(entries), maxNodes)
	}
	seen := map[string]bool{}
	nodes := make([]Node, 0, len(entries))
	for _, entry := range entries {
		node, err := parseNode(entry)
		if err != nil {
			return nil, fmt.Errorf("node entry %q: %w", entry, err)
		}
		if seen[node.Name] {
			return nil, fmt.Errorf("node entry %q: there is a node %s already", entry, node.Name)
		}
		seen[node.Name] = true
		nodes = append(nodes, node)
	}
	return nodes, nil
}

func parseNode(entry string) (Node, error) {
	entry, stock := strings.CutSuffix(entry, stockTimers)
	name, rest, hasMachine := strings.Cut(entry, "=")
	machine, mode, hasMode := rest, "", false
	if i := strings.LastIndex(rest, ":"); i >= 0 {
		machine, mode, hasMode = rest[:i], rest[i+1:], true
	}
	switch {
	case !nodeName.MatchString(name):
		return Node{}, fmt.Errorf("%q is no node name: up to 42 of a-z, 0-9 and -, with a letter or digit at both ends", name)
	case hasMachine && machine == "" && !hasMode:
		return Node{}, fmt.Errorf("nothing after =: write name=machine[:mode], or the name alone for a node without GPUs")
	case hasMode && !labelValue.MatchString(mode):
		return Node{}, fmt.Errorf("%q is no label value for the mode: up to 63 letters, digits, -, _ and .; leave the "+
			"colon out for no label, and write %s for Kubernetes' own timers", mode, stockTimers)
	}
	return Node{Name: name, Machine: machine, Mode: mode, StockTimers: stock}, nil
}

// machineFile is the file a node's machine stands for: a path is taken as it is,
// a bare name is that of a file shipped in demo/machines.
func machineFile(checkout, machine string) string {
	if strings.ContainsRune(machine, filepath.Separator) || strings.HasSuffix(machine, ".yaml") {
		return machine
	}
	return filepath.Join(checkout, "demo", "machines", machine+".yaml")
}
