// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what a cluster looks like.
type Report struct {
	Kubeconfig string
	Server     string
	// API is why the API server does not serve; empty where it does.
	API   string
	Nodes []NodeReport
}

// NodeReport is what a node looks like.
type NodeReport struct {
	Node
	Address string
	// PID is the node's first process on this machine; 0 where the node does
	// not run. The node's files are at /proc/PID/root.
	PID int
	// State is Ready, or why the node is not.
	State string
}

// Healthy reports whether all of the cluster works.
func (r *Report) Healthy() bool {
	for _, node := range r.Nodes {
		if node.State != stateReady {
			return false
		}
	}
	return r.API == ""
}

const stateReady = "Ready"

// String is the report for people, of several lines.
func (r *Report) String() string {
	var out strings.Builder
	api := "ready"
	if r.API != "" {
		api = r.API
	}
	fmt.Fprintf(&out, "API server  %s  %s\nkubeconfig  %s\n", r.Server, api, r.Kubeconfig)
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	r.writeNodes(table)
	// A strings.Builder takes everything.
	_ = table.Flush()
	return out.String()
}

func (r *Report) writeNodes(table io.Writer) {
	fmt.Fprintln(table, "NODE\tMACHINE\tMODE\tADDRESS\tPID\tSTATE")
	for _, node := range r.Nodes {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\n", node.Name, dash(node.Machine), dash(node.Mode), node.Address, node.PID,
			node.State)
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// Status looks at a cluster without waiting for anything. Its error is ErrNone where
// there is none.
func (c *Cluster) Status(ctx context.Context) (*Report, error) {
	s, err := c.existing()
	if err != nil {
		return nil, err
	}
	api, err := newClient(c.path("pki"), s.Network)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	report := &Report{Kubeconfig: c.Kubeconfig(), Server: api.base}
	if err := api.ready(ctx); err != nil {
		report.API = err.Error()
	}
	for _, node := range s.Nodes {
		report.Nodes = append(report.Nodes, nodeReport(ctx, s, api, node))
	}
	return report, nil
}

func nodeReport(ctx context.Context, s *state, api *client, node *nodeState) NodeReport {
	report := NodeReport{Node: node.Node, Address: s.Network.node(node.Number).String()}
	if !node.Init.Alive() {
		report.State = "not running"
		return report
	}
	report.PID = node.Init.PID
	condition, err := api.readyCondition(ctx, node.Name)
	switch {
	case err != nil:
		report.State = err.Error()
	case condition.Status != "True":
		report.State = "not Ready: " + condition.Message
	default:
		report.State = stateReady
	}
	return report
}
