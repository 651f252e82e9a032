// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package migration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// uninstallation is the section that the rehearsal finds by its heading, in whichever of
// the documents it stands.
const uninstallation = "Uninstall"

// removals is the document that has the section.
func removals(t *testing.T) *document {
	t.Helper()
	for _, name := range []string{"docs/install.md", "README.md"} {
		if d := read(t, filepath.Join(checkout, name)); len(d.sections[uninstallation]) > 0 {
			return d
		}
	}
	t.Fatalf("no document has a section %q", uninstallation)
	return nil
}

// uninstall takes the driver off the cluster by the commands of the document, while pods
// without its GPUs run.
func (r *rehearsal) uninstall(t *testing.T) {
	d := removals(t)
	d.environment, d.instead = r.environment, r.instead
	blocks := d.section(t, uninstallation, 6)
	claims, amounts, driver, rest, modes, directories := blocks[0], blocks[1], blocks[2], blocks[3], blocks[4], blocks[5]
	for _, b := range blocks {
		// What the reader has named otherwise.
		b.text = strings.ReplaceAll(b.text, "my-cluster", "deployments/manifests")
	}
	ns := &harness.Namespace{Cluster: r.Cluster, Name: "prod"}
	ns.Run(t, harness.Pod("bystander", "n1"))
	running := ns.Containers(t)

	// One of the claims has several devices.
	r.run(t, &block{text: "kubectl create namespace claims; kubectl -n claims apply -f demo/legacy/GPUtest.yaml " +
		"-f demo/legacy/four-gpus.yaml"})
	d.shows(t, claims, "claims/gpu-share-sample", "claims/four-gpus")
	d.run(t, &block{text: "kubectl delete namespace claims"})
	d.last(t, claims, "")

	// A label of a reader's own, of docs/install.md#beside-another-dra-driver.
	d.run(t, &block{text: "kubectl label node n1 gpu.aliyun.com/gpu-driver=gpu.aliyun.com"})
	d.last(t, amounts, "0")
	d.run(t, driver)
	d.eventually(t, "kubectl get resourceslices", "No resources found")
	d.run(t, rest)
	for _, node := range []string{"n1", "n2"} {
		// The node's root is elsewhere here.
		d.run(t, &block{text: strings.ReplaceAll(directories.text, " /", " "+r.NodeFile(node)+"/")})
	}
	d.run(t, &block{text: "kubectl label nodes n1 n2 aliyun.accelerator/nvidia_count- aliyun.accelerator/nvidia_mem- " +
		"gpu.aliyun.com/gpu-driver-"})
	// Simulated nodes have no nvidia-smi.
	modes.ran, directories.ran = true, true
	sectionRan(t, uninstallation, blocks)

	wait(t, "nothing to be left in the cluster",
		func(ctx context.Context) error { return r.nothingInCluster(ctx, d) })
	for _, node := range []string{"n1", "n2"} {
		wait(t, "nothing to be left on node "+node,
			func(context.Context) error { return r.nothingOnNode(node) })
	}
	ns.KeptRunning(t, running)
	// A node without the driver starts pods as ever.
	ns.Run(t, harness.Pod("afterwards", "n2", func(pod *corev1.Pod) {
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	}))
}

// last runs a block until its last line is the text; the exit status is that of a search
// that finds nothing, too.
func (d *document) last(t *testing.T, b *block, want string) {
	t.Helper()
	b.ran = true
	wait(t, fmt.Sprintf("%q as the last line from\n%s", want, b.text), func(ctx context.Context) error {
		output, err := d.shell(ctx, "set +e\n"+b.text+"\ntrue")
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(output), "\n")
		if got := lines[len(lines)-1]; got != want {
			return fmt.Errorf("printed\n%s", output)
		}
		return nil
	})
}

// everything prints the names of all objects that may be the driver's, and what nodes have
// of it. Events go by themselves, and a kubelet shows a zero of a device plugin that it
// remembers.
const everything = `kinds=$(kubectl api-resources --verbs=list -o name | grep -v ^events | paste -sd,)
kubectl get -A -o name "$kinds" 2>/dev/null | grep -i gpu || true
kubectl get nodes -o json | jq -r '.items[] | (.metadata.labels + .metadata.annotations + .status.capacity + .status.allocatable
  | to_entries[] | select(.value != "0").key), .spec.taints[]?.key' | grep -E '(gpu\.)?aliyun\.(com|accelerator)' || true`

func (r *rehearsal) nothingInCluster(ctx context.Context, d *document) error {
	output, err := d.shell(ctx, everything)
	if err == nil && strings.TrimSpace(output) != "" {
		err = errors.New("left: " + strings.Join(strings.Fields(output), " "))
	}
	return err
}

// nothingOnNode looks for the driver's files in all places that its DaemonSets mount.
func (r *rehearsal) nothingOnNode(node string) error {
	var left []string
	for _, dir := range []string{"run", "run/cdi", "var/lib/kubelet/plugins", "var/lib/kubelet/plugins_registry",
		"usr/bin", "usr/local/bin"} {
		entries, err := os.ReadDir(r.NodeFile(node, dir))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			if strings.Contains(entry.Name(), "gpu") {
				left = append(left, filepath.Join("/", dir, entry.Name()))
			}
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("left: %s", strings.Join(left, " "))
	}
	return nil
}
