// SPDX-License-Identifier: Apache-2.0

// Package kind tries demo/kind.sh: its checks and its order here, with programs that only note how they were called;
// what it installs by run.sh (lane kind), on a cluster of the tests.
package kind

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

const checkout = "../../.."

// answers are what the programs do beside noting their call, as parts of a shell script. All is in order with these.
var answers = map[string]string{
	"docker": `case $1 in
version) echo arm64 ;;
info) echo '[name=seccomp,profile=builtin name=cgroupns]' ;;
build) echo sha256:0123456789abcdef0123456789abcdef >"$3" ;;
esac`,
	"kind": `[ "$*" != "version -q" ] || echo 0.32.0`,
	"helm": `[ "$1" != version ] || echo v3.18.4`,
	"kubectl": `case "$*" in
*kubeletVersion*) echo v1.36.1 ;;
*" logs "*) echo "/dev/nvidia0" ;;
*apply*) cat >>"$NOTES/applied" ;;
esac`,
}

// note is a program that notes how it was called.
const note = `#!/bin/sh
echo "%s $*" >>"$NOTES/calls"
echo "$KUBECONFIG" >>"$NOTES/kubeconfigs"
%s
`

// with are answers that differ in some programs; one that is empty is not installed.
func with(changed map[string]string) map[string]string {
	all := maps.Clone(answers)
	maps.Copy(all, changed)
	return all
}

// ran is what a run of the script did.
type ran struct {
	status        int
	said, applied string
	// calls are those of the programs, in their order; kubeconfigs are the configurations that they were given.
	calls, kubeconfigs []string
}

// run starts a copy of the script, where no program is found but these and what each system has.
func run(t *testing.T, programs map[string]string, environment ...string) ran {
	t.Helper()
	dir, bin, notes := t.TempDir(), t.TempDir(), t.TempDir()
	expect.NoError(t, os.CopyFS(filepath.Join(dir, "demo"), os.DirFS(filepath.Join(checkout, "demo"))))
	for _, name := range []string{"cat", "cut", "date", "dirname", "grep", "mkdir", "sed", "sh", "tail"} {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(bin, name))
		}
		expect.NoError(t, err)
	}
	for name, answer := range programs {
		if answer == "" {
			continue
		}
		script := fmt.Sprintf(note, name, answer)
		expect.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755))
	}
	command := exec.CommandContext(t.Context(), filepath.Join(dir, "demo", "kind.sh"))
	command.Env = append([]string{"PATH=" + bin, "NOTES=" + notes}, environment...)
	said, err := command.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(notes, name))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(content)
	}
	kubeconfigs := strings.Fields(read("kubeconfigs"))
	slices.Sort(kubeconfigs)
	return ran{status: command.ProcessState.ExitCode(), said: string(said), applied: read("applied"),
		calls: strings.Split(read("calls"), "\n"), kubeconfigs: slices.Compact(kubeconfigs)}
}

func (r ran) called(prefix string) bool {
	return slices.ContainsFunc(r.calls, func(call string) bool { return strings.HasPrefix(call, prefix) })
}

func TestOrder(t *testing.T) {
	got := run(t, answers)
	if got.status != 0 || !strings.Contains(got.said, "Done in ") || !strings.Contains(got.said, "/dev/nvidia0\n") {
		t.Fatalf("exit status %d, and it said\n%s", got.status, got.said)
	}
	const driver, simulated = "localhost/dra-driver-gpushare:0123456789ab", "localhost/simulated-gpus:0123456789ab"
	steps := []string{"docker build", "docker tag", "kind create", "kind load", "kubectl label", "helm upgrade"}
	calls := slices.DeleteFunc(slices.Clone(got.calls), func(call string) bool {
		return !slices.ContainsFunc(steps, func(step string) bool { return strings.HasPrefix(call, step+" ") })
	})
	want := []string{
		"docker build --iidfile .build/kind/dra-driver-gpushare.id --file deployments/container/Dockerfile .",
		"docker tag sha256:0123456789abcdef0123456789abcdef " + driver,
		"docker build --iidfile .build/kind/simulated-gpus.id --file tests/standins/image/Dockerfile .",
		"docker tag sha256:0123456789abcdef0123456789abcdef " + simulated,
		"kind create cluster --name gpushare --wait 5m",
		"kind load docker-image " + driver + " " + simulated + " --name gpushare",
		"kubectl label node --all --overwrite ack.node.gpu.schedule=share",
		"helm upgrade --install dra-driver-gpushare deployments/helm/dra-driver-gpushare --namespace kube-system " +
			"--values demo/kind/values.yaml --set-string image.tag=0123456789ab",
	}
	expect.Equal(t, want, calls, "calls")
	for text, times := range map[string]int{"image: " + simulated: 2, "image: " + driver: 2, "value: v100x4": 1,
		"image: your-image": 0, "aliyun.com/gpu-mem: 3": 1, "deviceClassName: share.gpu.aliyun.com": 1} {
		if n := strings.Count(got.applied, text); n != times {
			t.Errorf("%q is applied %d times, want %d", text, n, times)
		}
	}
}

func TestVariables(t *testing.T) {
	got := run(t, answers, "KIND_IMAGE=kindest/node:v1.36.4", "MACHINE=dgx1", "GO_IMAGE=mirror/golang")
	if got.status != 0 || !strings.Contains(got.applied, "value: dgx1\n") ||
		!got.called("kind create cluster --name gpushare --wait 5m --image kindest/node:v1.36.4") ||
		!got.called("docker build --iidfile .build/kind/simulated-gpus.id --file tests/standins/image/Dockerfile "+
			"--build-arg GO_IMAGE=mirror/golang .") {
		t.Errorf("exit status %d, calls\n%s\nand it said\n%s", got.status, strings.Join(got.calls, "\n"), got.said)
	}
}

// The configuration of the reader's kubectl is left alone.
func TestOwnKubeconfig(t *testing.T) {
	got := run(t, answers, "KUBECONFIG=/readers/own")
	if got.status != 0 || len(got.kubeconfigs) != 1 || strings.Contains(got.kubeconfigs[0], "/readers/own") ||
		!strings.Contains(got.said, "export KUBECONFIG="+got.kubeconfigs[0]+"\n") {
		t.Errorf("exit status %d, the programs use %q, and it said\n%s", got.status, got.kubeconfigs, got.said)
	}
}

func TestGoesOnWithTheCluster(t *testing.T) {
	got := run(t, with(map[string]string{"kind": answers["kind"] + `
[ "$1 $2" != "get clusters" ] || printf 'other\ngpushare\n'`}))
	if got.status != 0 || got.called("kind create") || !got.called("kind export kubeconfig --name gpushare") {
		t.Errorf("exit status %d, calls\n%s", got.status, strings.Join(got.calls, "\n"))
	}
}

// Who lacks something is told all of it at once, before anything is built.
func TestRequirements(t *testing.T) {
	docker := func(arch, options string) map[string]string {
		return map[string]string{"docker": "case $1 in version) echo " + arch + " ;; info) echo '" + options + "' ;; esac"}
	}
	only := func(program, answer string) map[string]string { return map[string]string{program: answer} }
	for name, test := range map[string]struct {
		changed     map[string]string
		environment string
		want        []string
	}{
		"no docker":          {only("docker", ""), "", []string{"docker is missing"}},
		"no daemon":          {only("docker", "exit 1"), "", []string{"docker does not answer"}},
		"another processor":  {docker("riscv64", ""), "", []string{"docker runs on riscv64"}},
		"rootless":           {docker("amd64", "[name=rootless]"), "", []string{"docker is rootless"}},
		"no kind":            {only("kind", ""), "", []string{"kind is missing"}},
		"an old kind":        {only("kind", "echo 0.31.0"), "", []string{"kind 0.31.0 is too old, 0.32 or newer"}},
		"no version":         {only("kind", "exit 1"), "", []string{"kind without a version is too old"}},
		"something else":     {only("kind", "echo hello"), "", []string{"kind hello is too old"}},
		"Helm 2":             {only("helm", "echo v2.17.0"), "", []string{"helm v2.17.0 is too old, 3.0 or newer"}},
		"no kubectl":         {only("kubectl", ""), "", []string{"kubectl is missing"}},
		"an unknown machine": {nil, "MACHINE=v100x5", []string{"MACHINE=v100x5: there is no demo/machines/v100x5.yaml"}},
		"nothing but a shell": {map[string]string{"docker": "", "kind": "", "helm": "", "kubectl": ""}, "", []string{
			"docker is missing", "kind is missing", "helm is missing", "kubectl is missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := run(t, with(test.changed), test.environment)
			if n := strings.Count(got.said, "\n- "); got.status != 2 || n != len(test.want) {
				t.Errorf("exit status %d, want 2, and it said %d things, want %d:\n%s", got.status, n, len(test.want), got.said)
			}
			for _, want := range test.want {
				if !strings.Contains(got.said, "\n- "+want) {
					t.Errorf("want %q in\n%s", want, got.said)
				}
			}
			if got.called("docker build") || got.called("kind create") {
				t.Errorf("it has begun: %q", got.calls)
			}
		})
	}
}

func TestNewerVersions(t *testing.T) {
	for name, changed := range map[string]map[string]string{
		"kind":        {"kind": `[ "$*" != "version -q" ] || echo 0.34.0-alpha+0123456789abcd`},
		"kind 1":      {"kind": `[ "$*" != "version -q" ] || echo 1.0.0`},
		"Helm 4":      {"helm": `[ "$1" != version ] || echo v4.0.1`},
		"Kubernetes":  {"kubectl": strings.ReplaceAll(answers["kubectl"], "v1.36.1", "v1.40.0-rc.1")},
		"on an Intel": {"docker": strings.ReplaceAll(answers["docker"], "arm64", "amd64")},
	} {
		if got := run(t, with(changed)); got.status != 0 {
			t.Errorf("%s: exit status %d, and it said\n%s", name, got.status, got.said)
		}
	}
}

// A node image of kind's that is too old is told before the driver is installed.
func TestOldKubernetes(t *testing.T) {
	got := run(t, with(map[string]string{"kubectl": strings.ReplaceAll(answers["kubectl"], "v1.36.1", "v1.35.8")}))
	if got.status != 1 || got.called("helm upgrade") ||
		!strings.Contains(got.said, "The nodes run Kubernetes v1.35.8, and the driver needs 1.36 or newer") ||
		!strings.Contains(got.said, "kind delete cluster --name gpushare; KIND_IMAGE=") {
		t.Errorf("exit status %d, and it said\n%s", got.status, got.said)
	}
}

func TestFailedStep(t *testing.T) {
	failing := func(program, arguments string) map[string]string {
		return with(map[string]string{program: fmt.Sprintf(`case "$*" in %s) echo no space left; exit 1 ;; esac
%s`, arguments, answers[program])})
	}
	for step, programs := range map[string]map[string]string{
		"build the driver's image":    failing("docker", `"build "*`),
		"load the images":             failing("kind", `"load "*`),
		"install the driver":          failing("helm", `"upgrade "*`),
		"apply demo/first-claim.yaml": failing("kubectl", `*" wait "*`),
	} {
		got := run(t, programs)
		if got.status != 1 || !strings.Contains(got.said, "failed in step \""+step) ||
			!strings.Contains(got.said, "\n    no space left\n") || strings.Contains(got.said, "Done in") {
			t.Errorf("%s: exit status %d, and it said\n%s", step, got.status, got.said)
		}
	}
}

// A container engine has of the checkout what the Dockerfile copies, and no more.
func TestDockerfileCopiesWhatIsBuilt(t *testing.T) {
	const module = "github.com/gpushare/dra-driver-gpushare/"
	dockerfile, err := os.ReadFile(filepath.Join(checkout, "tests/standins/image/Dockerfile"))
	expect.NoError(t, err)
	var copied []string
	for line := range strings.Lines(string(dockerfile)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "COPY" {
			copied = append(copied, fields[1]+"/")
		}
	}
	packages, err := exec.CommandContext(t.Context(), "go", "list", "-C", checkout, "-deps",
		"./tests/standins/sim/simnode", "./tests/standins/mps").Output()
	expect.NoError(t, err)
	for _, path := range strings.Fields(string(packages)) {
		dir, ours := strings.CutPrefix(path, module)
		if ours && !slices.ContainsFunc(copied, func(top string) bool { return strings.HasPrefix(dir+"/", top) }) {
			t.Errorf("the Dockerfile copies %q, and the programs need %s", copied, dir)
		}
	}
}
