// SPDX-License-Identifier: Apache-2.0

// Package harness is what the end-to-end tests have in common: the cluster they
// run on, namespaces that must leave nothing behind, pods and claims in short,
// and what a person would look at when something does not come to pass.
//
// Everything a test waits for is a condition with a deadline. The package has many small
// files because it has one type, Cluster, whose methods are grouped by what they are
// about. The archive of tests/suites/hardware has to be small: with the tag "small" the package goes without files that
// are linked with the scheduler's and kubelet's code.
package harness

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// ClusterDirEnv names the environment variable with the directory of the
// cluster: what `make cluster CLUSTER_DIR=…` was told.
const ClusterDirEnv = "E2E_CLUSTER_DIR"

// Cluster is the cluster under test. It is safe for concurrent use.
type Cluster struct {
	// Dir holds the cluster; DIR/nodes/NAME is the root directory of a node. Where it is empty, the node under test is
	// this machine.
	Dir    string
	Client kubernetes.Interface
	Config *rest.Config

	mu    sync.Mutex
	nodes map[string]*sync.RWMutex
	// taken are the nodes that tests have, or wait for, in the order in which they took them.
	taken  map[string][]string
	firsts firsts
	// places limits how many tests work at once; nil does not limit them.
	places *places
}

// openMost is how long the API server may take to answer before any test begins.
const openMost = time.Minute

// RunTests is for TestMain: it opens the cluster for the tests and runs them, and returns the exit status. The flag
// -parallel limits how many tests work at once. Tests that wait for their nodes do not count.
func RunTests(m *testing.M, into **Cluster) int {
	ctx, cancel := context.WithTimeout(context.Background(), openMost)
	defer cancel()
	cluster, err := Open(ctx)
	if err == nil {
		err = cluster.makePlaces()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "end-to-end tests:", err)
		return 1
	}
	*into = cluster
	return m.Run()
}

// makePlaces makes the testing package start all parallel tests at once, and makes as many places as the flag would
// have let start.
func (c *Cluster) makePlaces() error {
	const parallel, all = "test.parallel", "1000"
	flag.Parse()
	atOnce, err := strconv.Atoi(flag.Lookup(parallel).Value.String())
	if err != nil {
		return fmt.Errorf("read how many tests work at once: %w", err)
	}
	c.places = newPlaces(atOnce)
	return flag.Set(parallel, all)
}

// Open finds the cluster that the environment names and checks that it has what
// every test needs. The error says what to run.
func Open(ctx context.Context) (*Cluster, error) {
	dir := os.Getenv(ClusterDirEnv)
	if dir == "" {
		return nil, fmt.Errorf("%s is not set: `make test` runs these tests on a cluster of its own; by hand, "+
			"`make e2e KEEP=1 RUN=PATTERN` leaves its cluster up: set %s to its directory, .cluster-e2e", ClusterDirEnv,
			ClusterDirEnv)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("the cluster's directory: %w", err)
	}
	return OpenIn(ctx, dir, filepath.Join(dir, "kubeconfig"))
}

// OpenIn is Open for a cluster by its kubeconfig, whose nodes have their root directories below dir. Without a dir
// the node under test is this machine.
func OpenIn(ctx context.Context, dir, kubeconfig string) (*Cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("no cluster by %s: `make e2e KEEP=1 RUN=PATTERN` leaves one up in .cluster-e2e: %w",
			kubeconfig, err)
	}
	// Parallel tests poll; the default of 5 requests a second would be what is
	// measured.
	config.QPS, config.Burst = 500, 1000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client from %s: %w", kubeconfig, err)
	}
	c := &Cluster{Dir: dir, Client: client, Config: config, nodes: map[string]*sync.RWMutex{},
		taken: map[string][]string{}}
	return c, c.check(ctx)
}

// check makes sure that the cluster is up.
func (c *Cluster) check(ctx context.Context) error {
	if _, err := c.Client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("the cluster at %s does not answer: %w", c.Config.Host, err)
	}
	return nil
}

// First has a test take its first node before all tests that do not call it. The longest ones do, before t.Parallel:
// one that began last would go on alone. A test that is not parallel takes no nodes: it would wait for them for ever.
func (c *Cluster) First(t *testing.T) {
	c.firsts.add(t.Name())
	t.Cleanup(func() { c.firsts.begun(t.Name()) })
}

// Share lets the test use a node beside other tests until it ends. Tests that
// share a node must not count on any of its GPUs to be free.
func (c *Cluster) Share(t *testing.T, node string) {
	t.Helper()
	lock := c.lock(node)
	c.queue(t, node, lock.RLock)
	t.Cleanup(lock.RUnlock)
}

// Whole gives the test a node to itself until it ends. Where the test fails, the next one finds
// the node as after FreshAfterFailure.
//
// A test takes its nodes in the order of their names, so that no two tests wait for each other:
// it fails otherwise. Parallel tests call t.Parallel first.
func (c *Cluster) Whole(t *testing.T, node string) {
	t.Helper()
	lock := c.lock(node)
	c.queue(t, node, lock.Lock)
	t.Cleanup(lock.Unlock)
	c.FreshAfterFailure(t, node)
}

// queue takes a node that other tests may have, and adds how long that took to the test's attribute
// "queued": it is no time of the test's own.
func (c *Cluster) queue(t *testing.T, node string, take func()) {
	t.Helper()
	c.mu.Lock()
	for test, nodes := range c.taken {
		own := t.Name() == test || strings.HasPrefix(t.Name(), test+"/")
		if last := len(nodes) - 1; own && last >= 0 && node <= nodes[last] {
			c.mu.Unlock()
			t.Fatalf("takes node %s when it has %s: two tests may wait for each other for ever", node, nodes[last])
		}
	}
	c.taken[t.Name()] = append(c.taken[t.Name()], node)
	c.mu.Unlock()
	t.Cleanup(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.taken[t.Name()] = c.taken[t.Name()][:len(c.taken[t.Name()])-1]
	})
	c.rest(t)
	began := time.Now()
	c.firsts.wait(testOf(t))
	take()
	t.Attr("queued", time.Since(began).String())
	c.work(t)
	c.firsts.begun(testOf(t))
}

// work waits for a place among the tests that work, unless the test has one, and adds how long that took to its
// attribute "queued". The test has the place until it ends, or rests.
func (c *Cluster) work(t *testing.T) {
	t.Helper()
	if c.places == nil {
		return
	}
	began := time.Now()
	c.places.take(testOf(t))
	t.Attr("queued", time.Since(began).String())
	t.Cleanup(func() { c.rest(t) })
}

// rest gives the test's place to another one, if it has one.
func (c *Cluster) rest(t *testing.T) {
	if c.places != nil {
		c.places.give(testOf(t))
	}
}

// Idles gives the test's place to another one. It is for a test that from here on waits for minutes, and takes nothing
// of the processors meanwhile.
func (c *Cluster) Idles(t *testing.T) { c.rest(t) }

// testOf returns the name of the test that a subtest is part of.
func testOf(t *testing.T) string {
	test, _, _ := strings.Cut(t.Name(), "/")
	return test
}

// firsts are the tests that begin before all others. The zero value has none.
type firsts struct {
	mu sync.Mutex
	// waiting has each of them, and whether it has not begun.
	waiting map[string]bool
	all     sync.WaitGroup
}

// add makes a test one of them.
func (f *firsts) add(test string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting == nil {
		f.waiting = map[string]bool{}
	}
	f.waiting[test] = true
	f.all.Add(1)
}

// wait returns at once for one of them, and for another test when they all have begun.
func (f *firsts) wait(test string) {
	f.mu.Lock()
	_, first := f.waiting[test]
	f.mu.Unlock()
	if !first {
		f.all.Wait()
	}
}

// begun is called when a test has begun, or does not any more.
func (f *firsts) begun(test string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.waiting[test] {
		f.waiting[test] = false
		f.all.Done()
	}
}

// places has room for so many tests.
type places struct {
	room chan struct{}
	mu   sync.Mutex
	has  map[string]bool
}

func newPlaces(n int) *places { return &places{room: make(chan struct{}, n), has: map[string]bool{}} }

// take waits for a place for a test, unless it has one.
func (p *places) take(test string) {
	p.mu.Lock()
	has := p.has[test]
	p.has[test] = true
	p.mu.Unlock()
	if !has {
		p.room <- struct{}{}
	}
}

// give gives the place of a test to another one, if it has one.
func (p *places) give(test string) {
	p.mu.Lock()
	has := p.has[test]
	delete(p.has, test)
	p.mu.Unlock()
	if has {
		<-p.room
	}
}

func (c *Cluster) lock(node string) *sync.RWMutex {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[node] == nil {
		c.nodes[node] = &sync.RWMutex{}
	}
	return c.nodes[node]
}

// Tool runs the cluster's own program on the cluster, as in
// Tool(t, "node", "kill", "n1"), and fails the test where it fails.
func (c *Cluster) Tool(t *testing.T, arguments ...string) string {
	t.Helper()
	output, err := c.tool(Context(t), arguments...)
	expect.NoError(t, err)
	return output
}

func (c *Cluster) tool(ctx context.Context, arguments ...string) (string, error) {
	tool, err := findProgram("cluster")
	if err != nil {
		return "", err
	}
	command := exec.CommandContext(ctx, tool, append([]string{"--dir", c.Dir}, arguments...)...)
	output, err := command.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", command, err, output)
	}
	return string(output), err
}

// findProgram looks for a program in the checkout around the working directory,
// where `make` builds it.
func findProgram(name string) (string, error) { return findBuilt("bin/" + name) }

// findBuilt is the same for anything that `make` builds.
func findBuilt(name string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		built := filepath.Join(dir, ".build", name)
		if _, err := os.Stat(built); err == nil {
			return built, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no .build/%s in the checkout: `make e2e` builds it", name)
		}
		dir = filepath.Dir(dir)
	}
}
