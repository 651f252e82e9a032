// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package migration rehearses docs/migrate.md, and after it the uninstallation: their
// commands, in their order, on a cluster that has a device plugin on each node and no
// driver. The lane brings the cluster up. With a chart in the environment (MIGRATION_CHART) the commands of
// Helm are rehearsed, which the document has beside those of kubectl.
package migration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// rehearsal is the cluster and the document that it is migrated by.
type rehearsal struct {
	*harness.Cluster
	*document
	// planned is what `kubectl inspect cgpu plan` said before.
	planned plan.Plan
}

var cluster *harness.Cluster

func TestMain(m *testing.M) { os.Exit(harness.RunTests(m, &cluster)) }

func open(t *testing.T) *rehearsal {
	t.Helper()
	d := read(t, checkout+"/docs/migrate.md")
	d.environment = []string{"PATH=" + tools(t, cluster) + ":" + os.Getenv("PATH"), "OLD=gpushare-device-plugin-ds",
		"TEAM=prod"}
	if os.Getenv("MIGRATION_CHART") != "" {
		d.instead = byHelm(t, checkout+"/docs/migrate.md")
		d.environment = append(d.environment, "KUBECONFIG="+filepath.Join(cluster.Dir, "kubeconfig"))
	}
	return &rehearsal{Cluster: cluster, document: d}
}

func TestStepsOfTheDocument(t *testing.T) {
	r := open(t)
	r.run(t, &block{text: "kubectl apply -f tests/suites/migration/old.yaml"})
	r.run(t, &block{text: labels})
	for _, node := range []string{"n1", "n2"} {
		r.eventually(t, allocatable(node), "60")
	}
	r.run(t, &block{text: "kubectl apply -f tests/suites/migration/pods.yaml"})
	trains := r.pod(t, "trains")
	r.always(t, r.checkPromised)

	r.prepare(t)
	r.install(t)

	// A node that is restarted, of which the device plugin comes back when it does,
	// offers nothing meanwhile.
	stop := r.always(t, func(ctx context.Context) error { return r.offersNothing(ctx, "n2") })
	r.Tool(t, "node", "kill", "n2")
	r.Tool(t, "node", "start", "n2")
	r.takeOff(t, "n1")
	r.offers(t, "n1", "gpu-0-share 9Gi", "gpu-1-share 15Gi", "gpu-3-share 15Gi", "GPU 0: 6 of 15 GiB (prod/trains)")
	r.try(t)
	r.goBack(t)
	r.eventually(t, allocatable("n2"), "60")
	stop()
	r.takeOff(t, "n1")
	r.takeOff(t, "n2")
	r.offers(t, "n1", "gpu-0-share 9Gi", "(prod/trains)")
	r.offers(t, "n2", "gpu-0-share 15Gi", "gpu-3-share 15Gi")
	r.pool(t)
	r.end(t)

	now := r.pod(t, "trains")
	if now.UID != trains.UID || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("pod trains did not run all the time: it is %s, %+v", now.UID, now.Status.ContainerStatuses)
	}
	r.comesToPass(t, now)
	r.allRan(t)
	r.uninstall(t)
}

func (r *rehearsal) prepare(t *testing.T) {
	blocks := r.section(t, "Before you begin", 4)
	r.shows(t, blocks[0], "n1", "n2", "share")
	r.shows(t, blocks[1], "gpushare-device-plugin-ds")
	r.shows(t, blocks[2], "n1\tprod\ttrains\t{\"0\":{\"0\":6}}")
	r.plan(t, blocks[3])
}

func (r *rehearsal) install(t *testing.T) {
	const serves = "a device plugin serves aliyun.com/gpu-mem here"
	blocks := r.section(t, "Once per cluster", 5)
	install, explains, uninstall, leave, stay := blocks[0], blocks[1], blocks[2], blocks[3], blocks[4]
	r.run(t, install)
	r.run(t, uninstall)
	r.shows(t, install, "n1      <none>", "n2      <none>")
	r.shows(t, explains, "n1     No GPUs are offered on this node: "+serves, "n2     No GPUs are offered on this node: "+
		serves)
	r.run(t, leave)
	r.run(t, stay)
	r.run(t, leave)
}

// takeOff takes the device plugin off a node.
func (r *rehearsal) takeOff(t *testing.T, node string) {
	t.Helper()
	blocks := r.section(t, "Node by node", 7)
	r.environment = append(r.environment, "NODE="+node)
	r.run(t, blocks[0])
	r.run(t, blocks[1])
}

// offers waits until the driver offers what it is to offer of such a node, and opens it.
func (r *rehearsal) offers(t *testing.T, node string, texts ...string) {
	t.Helper()
	blocks := r.section(t, "Node by node", 7)
	r.environment = append(r.environment, "NODE="+node)
	r.run(t, blocks[2])
	r.shows(t, blocks[2], texts...)
	r.run(t, blocks[3])
}

func (r *rehearsal) try(t *testing.T) {
	blocks := r.section(t, "Node by node", 7)
	r.run(t, blocks[4])
	r.eventually(t, "kubectl -n trial get resourceclaims -o "+
		"jsonpath='{.items[*].status.allocation.devices.results[*].device}'", "gpu-0-share")
	r.count(t)
}

// count has a quota count what is converted while other nodes have not moved.
func (r *rehearsal) count(t *testing.T) {
	t.Helper()
	r.run(t, &block{text: "kubectl apply -k deployments/options/quota\n" +
		"kubectl -n trial create quota gpu --hard=gib.quota.gpu.aliyun.com.deviceclass.resource.k8s.io/devices=4"})
	r.eventually(t, `kubectl -n trial create --dry-run=server -o yaml -f - <<'END'
{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "counted"}, "spec": {"devices":
  {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "share.gpu.aliyun.com"}}]}}}
END`, "quota-gib")
	r.run(t, &block{text: "kubectl -n trial delete pod first --now\n" +
		"kubectl -n trial apply -f demo/legacy/GPUtest.yaml"})
	r.eventually(t, "kubectl -n trial get pods -o jsonpath='{.items[*].status.phase}'; kubectl -n trial get "+
		"resourceclaims -o jsonpath='{.items[*].status.allocation.devices.results[*].request}'; kubectl -n trial get quota "+
		"gpu -o jsonpath='{.status.used}'", "Running", "/share", `devices":"3"`)
	r.run(t, &block{text: "kubectl delete -k deployments/options/quota"})
}

// goBack takes n1 back, which was moved last.
func (r *rehearsal) goBack(t *testing.T) {
	blocks := r.section(t, "Node by node", 7)
	r.shows(t, blocks[5], "trial gpu-share-sample-")
	r.run(t, &block{text: "kubectl delete namespace trial"})
	wait(t, "no pod to hold a claim", func(ctx context.Context) error {
		output, err := r.shell(ctx, blocks[5].text)
		if err == nil && strings.Contains(output, "gpu-share-sample") {
			err = errors.New(output)
		}
		return err
	})
	r.run(t, blocks[6])
	r.eventually(t, allocatable("n1"), "60")
	r.shows(t, blocks[6], "a device plugin serves aliyun.com/gpu-mem here")
	wait(t, "n1 to offer nothing", func(ctx context.Context) error { return r.offersNothing(ctx, "n1") })
}

func (r *rehearsal) pool(t *testing.T) {
	const try, converted = "kubectl -n prod create --dry-run=server -f demo/legacy/two-containers.yaml -o yaml",
		"resourceClaimTemplateName: gpushare"
	blocks := r.section(t, "Pool by pool", 2)
	r.eventually(t, try, "aliyun.com/gpu-mem: \"7\"")
	r.run(t, blocks[0])
	r.eventually(t, try, converted)
	r.run(t, blocks[1])
	r.eventually(t, try, "aliyun.com/gpu-mem: \"7\"")
	r.run(t, blocks[0])
}

func (r *rehearsal) end(t *testing.T) {
	blocks := r.section(t, "At the end", 7)
	install, back, waiting, otherScheduler, comesBack, unlabel, amounts := blocks[0], blocks[1], blocks[2], blocks[3],
		blocks[4], blocks[5], blocks[6]
	r.shows(t, install, "gpushare-legacy-refuse")
	r.run(t, back)
	r.eventually(t, "kubectl get validatingadmissionpolicybindings --no-headers -o name | grep legacy-refuse || echo none",
		"none")
	r.run(t, install)
	r.shows(t, waiting, "prod waits")
	r.shows(t, otherScheduler, "prod waits")
	r.run(t, &block{text: "kubectl -n prod delete pods waits pair large odd --now; " +
		"kubectl -n kube-system delete daemonset $OLD"})
	comesBack.ran = true
	if output, err := r.shell(t.Context(), comesBack.text); err == nil {
		t.Errorf("a device plugin would come back:\n%s", output)
	}
	r.run(t, unlabel)
	// Instead of the five minutes.
	r.Tool(t, "node", "restart-kubelet", "n1")
	r.Tool(t, "node", "restart-kubelet", "n2")
	r.shows(t, amounts, "n1     60    4", "n2     60    4")
	// By hand, as where no controller is left. Here one is, and shows them again.
	r.run(t, r.section(t, "Tools made for ACK", 1)[0])
	r.shows(t, amounts, "n1     60    4", "n2     60    4")
	// Neither nodes nor namespaces need a label.
	r.run(t, &block{text: "kubectl create namespace late; kubectl -n late apply -f demo/legacy/GPUtest.yaml"})
	r.eventually(t, "kubectl -n late get pods -o jsonpath='{.items[*].status.phase}'; kubectl -n late get "+
		"resourceclaims -o jsonpath='{.items[*].status.allocation.devices.results[*].device}'", "Running", "-share")
	r.run(t, &block{text: "kubectl delete namespace late"})
}

// allocatable is a command that prints what a node's kubelet says that there is.
func allocatable(node string) string {
	return "kubectl get node " + node + ` -o jsonpath='{.status.allocatable.aliyun\.com/gpu-mem}'`
}

func (r *rehearsal) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	ns := &harness.Namespace{Cluster: r.Cluster, Name: "prod"}
	ns.WaitRunning(t, name)
	return ns.Get(t, name)
}

// always checks something over and over, until the returned function is called or the
// test ends.
func (r *rehearsal) always(t *testing.T, check func(context.Context) error) (stop func()) {
	const interval = 100 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := check(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(interval):
			}
		}
	})
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}

func (r *rehearsal) checkPromised(ctx context.Context) error {
	var gpus []gpu.GPU
	for i := range 4 {
		gpus = append(gpus, gpu.GPU{Index: i, UUID: fmt.Sprint(i), MemoryMiB: 16130})
	}
	for _, node := range []string{"n1", "n2"} {
		if err := r.CheckPromised(ctx, node, gpus); err != nil {
			return err
		}
	}
	return nil
}

func (r *rehearsal) offersNothing(ctx context.Context, node string) error {
	slices, err := r.Client.ResourceV1().ResourceSlices().List(ctx,
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return err
	}
	for _, slice := range slices.Items {
		if n := len(slice.Spec.Devices); n > 0 {
			return fmt.Errorf("node %s offers %d devices", node, n)
		}
	}
	return nil
}
