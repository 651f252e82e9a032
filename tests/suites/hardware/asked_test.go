// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
)

// questions are asked one after the other. One more takes a node in mode mps: whoPays.
func questions() []question {
	const programs = 4
	published := here.capMiB(here.gpu().MemoryUnits())
	quarter := load{"main", "device", published / programs}
	return []question{
		{what: "who counts the memory", ask: askCapacity},
		{what: "which controllers the container's control group has", ask: askControllers},
		{what: "a hard limit of 4096 MiB on the container: fill 8192",
			ask: filled(limits{leaf: 4096}, load{"main", "device", 8192})},
		{what: "a hard limit of 4096 MiB on the pod: two containers fill 3072 each",
			ask: filled(limits{pod: 4096}, load{"main", "device", 3072}, load{"second", "device", 3072})},
		{what: "2048 MiB on the pod, 4096 on its container: fill 8192",
			ask: filled(limits{pod: 2048, leaf: 4096}, load{"main", "device", 8192})},
		{what: "2048 MiB on the container: fill 8192 of managed memory",
			ask: filled(limits{leaf: 2048}, load{"main", "managed", 8192})},
		{what: "1024 MiB, imported by a container with 512", ask: askImport},
		{what: "a limit of 1024 MiB on a container that holds 4000", ask: askTighter},
		{what: "a limit meets new control groups after its own has gone", ask: askStale},
		{what: "what the first program on the GPU is charged with, without persistence mode",
			byHand: "nvidia-smi -pm 0; nvidia-smi -L in a limited container; cat dmem.current"},
		{what: "limits after kubelet is restarted", ask: askRestart},
		{what: "limits after the driver is loaded again",
			byHand: "restart the driver's container, then nvidia-smi memory-limits --get"},
		{what: "who can write the limit of its own container", ask: askWrite},
		{what: "whether the plugin can set limits from its pod", ask: askPlugin},
		{what: "with what rights the hook runs",
			byHand: "a pod in mode cgpu: what kubectl describe pod says where it does not start"},
		{what: fmt.Sprintf("all that is published, %d MiB, filled by %d programs", published, programs),
			ask: filled(limits{pod: published}, quarter, quarter, quarter, quarter)},
		{what: "a soft limit of 1024 MiB, after its pod was deleted", ask: askSoft},
	}
}

// limits are hard ones, in MiB; 0 is none.
type limits struct{ pod, leaf int64 }

// load is what a program in a container takes.
type load struct {
	container, kind string
	mib             int64
}

// filled has programs fill memory one after the other, below limits.
func filled(l limits, loads ...load) func(*ground) (string, error) {
	return func(g *ground) (string, error) {
		var err error
		if l.pod > 0 {
			err = g.set(g.pod, l.pod)
		}
		if l.leaf > 0 {
			err = errors.Join(err, g.set(g.leaf, l.leaf))
		}
		if err != nil {
			return "", err
		}
		reads, err := g.get(g.leaf)
		answers := []string{"reads " + told(reads.String(), err)}
		for _, one := range loads {
			answer, _, err := g.fill("asked", one.container, one.kind, one.mib)
			// An error is that there is no room for another context.
			answers = append(answers, told(answer, err))
		}
		reads, err = g.get(g.leaf)
		return strings.Join(append(answers, "reads "+told(reads.String(), err)), "; then "), nil
	}
}

func askCapacity(g *ground) (string, error) {
	content, err := os.ReadFile(filepath.Join(g.root, "dmem.capacity"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	address := strings.ToLower(here.gpu().PCIBusID)
	for line := range strings.Lines(string(content)) {
		if strings.Contains(strings.ToLower(line), strings.TrimLeft(address, "0")) {
			return strings.TrimSpace(line), nil
		}
	}
	return "dmem.capacity has no line of " + address, nil
}

func askControllers(g *ground) (string, error) {
	leaf, leafErr := os.ReadFile(filepath.Join(g.leaf, "cgroup.controllers"))
	root, rootErr := os.ReadFile(filepath.Join(g.root, "cgroup.controllers"))
	has, all := strings.Fields(string(leaf)), strings.Fields(string(root))
	return fmt.Sprintf("%d of the root's %d: %s", len(has), len(all), strings.Join(has, " ")),
		errors.Join(leafErr, rootErr)
}

// contextMiB is more than a CUDA context was seen to take (560 to 816 MiB).
const contextMiB = 1024

func askImport(g *ground) (string, error) {
	if err := errors.Join(g.set(g.leaf, 4096), g.set(g.second, 512+contextMiB)); err != nil {
		return "", err
	}
	handle, err := g.try("asked", "export", "1024")
	if err != nil {
		return "", err
	}
	importer, err := g.launch("asked", "second", "import", handle)
	if err != nil {
		return "", err
	}
	before, beforeErr := g.get(g.second)
	said, saidErr := importer.next()
	after, afterErr := g.get(g.second)
	return fmt.Sprintf("%s; before %s, after %s", said, before, after), errors.Join(beforeErr, saidErr, afterErr)
}

func askTighter(g *ground) (string, error) {
	if err := g.set(g.leaf, 8192); err != nil {
		return "", err
	}
	filled, p, err := g.fill("asked", "main", "device", 4000)
	if err != nil {
		return "", err
	}
	refused := g.set(g.leaf, 1024)
	more, err := p.next()
	return fmt.Sprintf("%s; set: %v; one more block: %s", filled, refused, more), err
}

// askStale looks at many new control groups for an old limit.
func askStale(g *ground) (string, error) {
	const tried = 2000
	dir := filepath.Join(g.pod, "gpushare-asked")
	if err := errors.Join(os.Mkdir(dir, 0o755), g.set(dir, 512), os.Remove(dir)); err != nil {
		return "", err
	}
	found := 0
	for range tried {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
		if got, err := g.get(dir); err == nil && got.hardMiB != noLimit {
			found++
		}
		if err := os.Remove(dir); err != nil {
			return "", err
		}
	}
	// Whatever stays of it is not left to others.
	return fmt.Sprintf("%d of %d new control groups had a limit", found, tried),
		errors.Join(os.Mkdir(dir, 0o755), g.set(dir, noLimit), os.Remove(dir))
}

func askRestart(g *ground) (string, error) {
	if err := g.set(g.leaf, 4096); err != nil {
		return "", err
	}
	here.KillKubelet(g.T, here.node)
	harness.Eventually(g.T, "the kubelet to know its pods again", func(ctx context.Context) error {
		_, logErr := here.PluginLog(ctx, here.node, metav1.Now())
		_, execErr := g.ns.Exec(g.T, "asked", "main", "env")
		return errors.Join(logErr, execErr)
	})
	got, err := g.get(g.leaf)
	return got.String(), err
}

// askWrite tries files, which only dmem has.
func askWrite(g *ground) (string, error) {
	if !g.dmem {
		return "no files: NVIDIA's table is set through NVML, with CAP_SYS_ADMIN", nil
	}
	g.create(pod{name: "privileged", privileged: true})
	g.ns.WaitRunning(g.T, "privileged")
	ordinary, err := g.try("asked", "write", "/sys/fs/cgroup/dmem.max", "nvidia/0 max")
	privileged, privilegedErr := g.try("privileged", "write",
		filepath.Join(g.step.leaf("privileged", "main"), "dmem.max"), "nvidia/0 max")
	return fmt.Sprintf("an ordinary pod: %s; a privileged one: %s", ordinary, privileged), errors.Join(err, privilegedErr)
}

// askPlugin has the plugin's own words: it tries limits when it starts.
func askPlugin(g *ground) (string, error) {
	lines, err := here.PluginLog(g.Context(), here.node, metav1.NewTime(time.Unix(0, 0)))
	said := "nothing of memory limits"
	for _, line := range lines {
		if strings.Contains(strings.ToLower(line), "memory limit") {
			said = strings.TrimSpace(line)
		}
	}
	return said, err
}

// askSoft deletes a pod with a soft limit, and looks at what those above promise then.
func askSoft(g *ground) (string, error) {
	above := filepath.Dir(g.pod)
	before, beforeErr := g.get(above)
	if err := g.setBoth(g.leaf, 1024, 4096); err != nil {
		return "", err
	}
	g.ns.Delete(g.T, "asked")
	after, afterErr := g.get(above)
	return fmt.Sprintf("above: %s, before %s", after, before), errors.Join(beforeErr, afterErr)
}
