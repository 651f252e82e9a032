// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// questions are asked one after the other. Two more take a pod that ends, and a node in mode mps.
func questions() []question {
	return []question{
		{"who counts the memory", askCapacity},
		{"which controllers the container's control group has", askControllers},
		{"a hard limit of 4096 MiB on the container: fill 8192", askLeaf},
		{"a hard limit of 4096 MiB on the pod: two containers fill 3072 each", askPod},
		{"2048 MiB on the pod, 4096 on its container: fill 8192", askNesting},
		{"2048 MiB on the container: fill 8192 of managed memory", askManaged},
		{"1024 MiB, imported by a container with 512", askImport},
		{"a limit of 1024 MiB on a container that holds 4000", askTighter},
		{"a limit meets new control groups after its own has gone", askStale},
		{"what the first program on the GPU is charged with, without persistence mode",
			byHand("nvidia-smi -pm 0; nvidia-smi -L in a limited container; cat dmem.current")},
		{"limits after kubelet is started anew", askRestart},
		{"limits after the driver is loaded anew",
			byHand("restart the driver's container, then nvidia-smi memory-limits --get")},
		{"who can write the limit of its own container", askWrite},
		{"whether the plugin can set limits from its pod", askPlugin},
		{"with what rights the hook runs",
			byHand("a pod in mode cgpu: what kubectl describe pod says where it does not start")},
		{"all that is published, filled by four programs", askFull},
	}
}

func askCapacity(_ context.Context, r *run, g *ground) (answer, meaning string, err error) {
	content, err := os.ReadFile(filepath.Join(g.root, "dmem.capacity"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", "", err
	}
	address := strings.ToLower(r.gpu().PCIBusID)
	for line := range strings.Lines(string(content)) {
		if strings.Contains(strings.ToLower(line), strings.TrimLeft(address, "0")) {
			return strings.TrimSpace(line), meansCapacity(true), nil
		}
	}
	return "dmem.capacity has no line of " + address, meansCapacity(false), nil
}

func controllers(dir string) []string {
	content, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(content))
}

func askControllers(_ context.Context, _ *run, g *ground) (answer, meaning string, err error) {
	leaf, root := controllers(g.leaf), controllers(g.root)
	return fmt.Sprintf("%d of the root's %d: %s", len(leaf), len(root), strings.Join(leaf, " ")),
		meansControllers(leaf, root, g.dmem), nil
}

func askLeaf(ctx context.Context, r *run, g *ground) (answer, meaning string, err error) {
	const limit = 4096
	if err := r.Limits.Set(g.leaf, 0, limit); err != nil {
		return "", "", err
	}
	got, err := r.Limits.Get(g.leaf)
	if err != nil {
		return "", "", err
	}
	f, err := r.filledOnce(ctx, g, "device", 2*limit)
	return fmt.Sprintf("reads %s; %s", got, f), meansLeaf(f, limit), err
}

func askPod(ctx context.Context, r *run, g *ground) (answer, meaning string, err error) {
	const limit = 4096
	if err := r.Limits.Set(g.podDir, 0, limit); err != nil {
		return "", "", err
	}
	first, p, err := r.fill(ctx, g.pod, "main", "device", 3072)
	if err != nil {
		return "", "", err
	}
	defer p.End()
	// Without room for its context the second does not begin.
	second, q, err := r.fill(ctx, g.pod, "second", "device", 3072)
	if err != nil {
		return fmt.Sprintf("%s; the second: %v", first, err), meansPod(first.mib, limit), nil
	}
	defer q.End()
	return fmt.Sprintf("%s; then %s", first, second), meansPod(first.mib+second.mib, limit), nil
}

func askNesting(ctx context.Context, r *run, g *ground) (answer, meaning string, err error) {
	const ofPod = 2048
	if err := errors.Join(r.Limits.Set(g.podDir, 0, ofPod), r.Limits.Set(g.leaf, 0, 2*ofPod)); err != nil {
		return "", "", err
	}
	f, err := r.filledOnce(ctx, g, "device", 4*ofPod)
	return f.String(), meansNesting(f, ofPod), err
}

func askManaged(ctx context.Context, r *run, g *ground) (answer, meaning string, err error) {
	const limit = 2048
	if err := r.Limits.Set(g.leaf, 0, limit); err != nil {
		return "", "", err
	}
	f, p, err := r.fill(ctx, g.pod, "main", "managed", 4*limit)
	if err != nil {
		return "", "", err
	}
	defer p.End()
	got, err := r.Limits.Get(g.leaf)
	return fmt.Sprintf("%s; %s", f, got), meansManaged(f, limit, got.UsedMiB), err
}

func askImport(ctx context.Context, r *run, g *ground) (answer, meaning string, err error) {
	if err := errors.Join(r.Limits.Set(g.leaf, 0, 4096), r.Limits.Set(g.second, 0, 512+contextMiB)); err != nil {
		return "", "", err
	}
	exporter, err := r.Kubectl.StartIn(ctx, g.pod, "main", probe, "export", "1024")
	if err != nil {
		return "", "", err
	}
	defer exporter.End()
	handle, err := exporter.Next()
	if err != nil {
		return "", "", err
	}
	importer, err := r.Kubectl.StartIn(ctx, g.pod, "second", probe, "import", handle)
	if err != nil {
		return "", "", err
	}
	defer importer.End()
	before, err := r.Limits.Get(g.second)
	if err != nil {
		return "", "", err
	}
	said, err := importer.Next()
	if err != nil {
		return "", "", err
	}
	after, err := r.Limits.Get(g.second)
	return fmt.Sprintf("%s; before %s, after %s", said, before, after),
		meansImport(said, before.UsedMiB, after.UsedMiB), err
}

func askTighter(ctx context.Context, r *run, g *ground) (answer, meaning string, err error) {
	if err := r.Limits.Set(g.leaf, 0, 8192); err != nil {
		return "", "", err
	}
	f, p, err := r.fill(ctx, g.pod, "main", "device", 4000)
	if err != nil {
		return "", "", err
	}
	defer p.End()
	refused := r.Limits.Set(g.leaf, 0, 1024)
	said, err := p.Next()
	if err != nil {
		return "", "", err
	}
	more, err := parseFilled(said)
	return fmt.Sprintf("%s; set: %v; one more block: %s", f, refused, more.end), meansTighter(refused, more.end), err
}

// groupsTried is how many new control groups are looked at for an old limit.
const groupsTried = 2000

func askStale(_ context.Context, r *run, g *ground) (answer, meaning string, err error) {
	dir := filepath.Join(g.podDir, "gpushare-asked")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", "", err
	}
	if err := errors.Join(r.Limits.Set(dir, 0, 512), os.Remove(dir)); err != nil {
		return "", "", err
	}
	found := 0
	for range groupsTried {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", "", err
		}
		if got, err := r.Limits.Get(dir); err == nil && got.HardMiB != NoLimit {
			found++
		}
		if err := os.Remove(dir); err != nil {
			return "", "", err
		}
	}
	// Whatever stays of it is not left to others.
	err = errors.Join(os.Mkdir(dir, 0o755), r.Limits.Set(dir, 0, NoLimit), os.Remove(dir))
	return fmt.Sprintf("%d of %d new control groups had a limit", found, groupsTried), meansStale(found, groupsTried), err
}

func askRestart(ctx context.Context, r *run, g *ground) (answer, meaning string, err error) {
	if err := r.Limits.Set(g.leaf, 0, 4096); err != nil {
		return "", "", err
	}
	if err := r.RestartKubelet(ctx); err != nil {
		return "", "", err
	}
	got, err := r.Limits.Get(g.leaf)
	return got.String(), meansKept(got.HardMiB == 4096), err
}

// askWrite tries files, which only dmem has.
func askWrite(ctx context.Context, r *run, g *ground) (answer, meaning string, err error) {
	if !g.dmem {
		return "", "", notAsked("no files: NVIDIA's table is set through NVML, with CAP_SYS_ADMIN")
	}
	p := pod{name: "privileged"}.object(r.Session)
	p["spec"].(object)["containers"].([]object)[0]["securityContext"] = object{"privileged": true}
	if err := r.apply(ctx, p); err != nil {
		return "", "", err
	}
	if err := r.Kubectl.WaitRunning(ctx, r.Patience, "privileged"); err != nil {
		return "", "", err
	}
	leaf, err := r.leaf(ctx, g.root, "privileged", "main")
	if err != nil {
		return "", "", err
	}
	answers := map[string]string{}
	for name, file := range map[string]string{
		g.pod: "/sys/fs/cgroup/dmem.max", "privileged": filepath.Join(leaf, "dmem.max"),
	} {
		program, err := r.Kubectl.Start(ctx, name, probe, "write", file, "nvidia/0 max")
		if err != nil {
			return "", "", err
		}
		answers[name], err = program.Next()
		program.End()
		if err != nil {
			return "", "", err
		}
	}
	return fmt.Sprintf("an ordinary pod: %s; a privileged one: %s", answers[g.pod], answers["privileged"]),
		meansWrite(answers[g.pod], answers["privileged"]), nil
}

// askPlugin has the plugin's own words: it tries limits when it starts.
func askPlugin(ctx context.Context, r *run, _ *ground) (answer, meaning string, err error) {
	out, err := r.Kubectl.Run(ctx, "--namespace", "kube-system", "logs", "--selector",
		"app.kubernetes.io/component=gpu-kubelet-plugin", "--tail", "-1")
	if err != nil {
		return "", "", err
	}
	said := "nothing of memory limits"
	for line := range strings.Lines(out) {
		if strings.Contains(strings.ToLower(line), "memory limit") {
			said = strings.TrimSpace(line)
		}
	}
	return said, "the plugin's own words", nil
}

func askFull(ctx context.Context, r *run, g *ground) (answer, meaning string, err error) {
	const programs = 4
	published := r.capMiB(r.gpu().MemoryUnits())
	if err := r.Limits.Set(g.podDir, 0, published); err != nil {
		return "", "", err
	}
	var sum int64
	for range programs {
		f, p, err := r.fill(ctx, g.pod, "main", "device", published/programs)
		if err != nil {
			// Nothing is left for another context.
			break
		}
		defer p.End()
		sum += f.mib
	}
	return fmt.Sprintf("%d of %d MiB filled", sum, published), meansFull(sum, published, programs), nil
}

// softLimitLeft deletes a pod with a soft limit, and looks at what those above promise then.
func softLimitLeft(ctx context.Context, r *run) error {
	const what = "a soft limit of 1024 MiB, after its pod was deleted"
	g, err := r.ground(ctx, "soft")
	if err != nil {
		return err
	}
	above := filepath.Dir(g.podDir)
	before, beforeErr := r.Limits.Get(above)
	if err := r.Limits.Set(g.leaf, 1024, 4096); err != nil {
		r.seen(what, "", "no answer: "+err.Error())
		return nil
	}
	if err := r.delete(ctx, g.pod); err != nil {
		return err
	}
	after, err := r.Limits.Get(above)
	if err = errors.Join(beforeErr, err); err != nil {
		r.seen(what, "no sums above: misc", err.Error())
		return nil
	}
	r.seen(what, meansSoftLeft(after.SoftMiB-before.SoftMiB), fmt.Sprintf("above: %s, before %s", after, before))
	return nil
}

// whoPays has a client of MPS hold memory, and looks at whose control group is charged.
func whoPays(ctx context.Context, r *run) error {
	const what, name = "a client of MPS v2 holds 1000 MiB: who is charged", "client"
	if err := r.apply(ctx, template(name, onGPU(shareOf("mps", limitedUnits, ""), r.gpu().Index))); err != nil {
		return err
	}
	if err := r.start(ctx, "pod with a share", pod{name: name, template: name}); err != nil {
		return err
	}
	root, err := unifiedRoot()
	if err != nil {
		return err
	}
	client, err := r.leaf(ctx, root, name, "main")
	if err != nil {
		return err
	}
	daemon, err := r.daemon(ctx)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", daemon.pid))
	if err != nil {
		return err
	}
	of := filepath.Join(root, unifiedPath(string(content)))
	// By the driver's own table nothing is counted before there is a limit.
	for _, dir := range []string{client, of} {
		if err := r.Limits.Set(dir, 0, r.gpu().MemoryMiB); err != nil {
			r.seen(what, "", "no answer: "+err.Error())
			return nil
		}
	}
	f, p, err := r.fill(ctx, name, "main", "device", 1000)
	if err != nil {
		return err
	}
	defer p.End()
	pays, clientErr := r.Limits.Get(client)
	other, daemonErr := r.Limits.Get(of)
	if err := errors.Join(clientErr, daemonErr, r.Limits.Set(of, 0, NoLimit)); err != nil {
		r.seen(what, "", "no answer: "+err.Error())
		return nil
	}
	r.seen(what, meansMPS(pays.UsedMiB, other.UsedMiB), fmt.Sprintf("%s; client: %s; daemon: %s", f, pays, other))
	return nil
}
