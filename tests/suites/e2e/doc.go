// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e shows on a real Kubernetes what users of the driver rely on.
//
// The tests find their cluster by the environment variable E2E_CLUSTER_DIR; its
// nodes are those of the lanes e2e and e2e-rest (tests/lanes):
//
//	fill         four V100 of 15 units of memory each, shared
//	share        four A10 of 22 units each, shared
//	whole        eight A100, handed out whole
//	mixed        two A10 and two T4, handed out whole, but for the test of what becomes of MPS when it fails
//	switch       one T4, for tests that change the node's labels
//	flip         four V100, for the test that keeps changing the mode, and some that break their node
//	dynamic      eight A100, each in the mode of its first claim
//	modes        four V100, for the modes with limits
//	kill, bad    four V100 each, shared, for tests that break their node
//	old          four V100, shared, for tests with device plugins
//	topo         eight V100 of a DGX-1 in mode topology
//	mig          four A100, two of them cut into MIG instances
//
// The node kernel is none of them: tests add it, and take it away. It has two T4 whose driver limits memory by control
// group.
//
// They run in parallel; see harness.Cluster for how they share the nodes. Those that
// break something of all nodes are not parallel: go test runs them first and alone.
package e2e
