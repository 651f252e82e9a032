// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpushare/dra-driver-gpushare/deployments/hardware/kube"
)

// The program that runs in containers (tests/suites/gpu/testdata/cudaprobe.c), and what it
// answers to an allocation.
const (
	probe       = "/cudaprobe"
	granted     = "granted"
	outOfMemory = "CUDA_ERROR_OUT_OF_MEMORY"
)

// view is what a CUDA program sees of its GPU.
type view struct {
	freeMiB, totalMiB, sms int64
	rate                   float64 // kernels per second, of a program that spins
}

func parseView(answer string) (view, error) {
	var v view
	n, err := fmt.Sscanf(answer, "free %d total %d sms %d rate %f", &v.freeMiB, &v.totalMiB, &v.sms, &v.rate)
	if n < 3 {
		return view{}, fmt.Errorf("the CUDA program said %q: %w", answer, err)
	}
	return v, nil
}

func (v view) String() string {
	if v.rate == 0 {
		return fmt.Sprintf("%d of %d MiB free, %d SMs", v.freeMiB, v.totalMiB, v.sms)
	}
	return fmt.Sprintf("%.1f kernels/s on %d SMs", v.rate, v.sms)
}

// cuda runs a CUDA program in a pod to its end and returns its answer.
func (r *run) cuda(ctx context.Context, pod string, args ...string) (string, error) {
	p, err := r.Kubectl.Start(ctx, pod, append([]string{probe}, args...)...)
	if err != nil {
		return "", err
	}
	defer p.End()
	if err := p.GoOn(); err != nil {
		return "", err
	}
	return p.Answer()
}

func (r *run) meminfo(ctx context.Context, pod string) (view, error) {
	answer, err := r.cuda(ctx, pod, "meminfo")
	if err != nil {
		return view{}, err
	}
	return parseView(answer)
}

// spin has programs in pods busy at the same time, for so many seconds.
func (r *run) spin(ctx context.Context, seconds int, pods ...string) ([]view, error) {
	var programs []*kube.Program
	defer func() {
		for _, p := range programs {
			p.End()
		}
	}()
	for _, pod := range pods {
		p, err := r.Kubectl.Start(ctx, pod, probe, "spin", strconv.Itoa(seconds))
		if err != nil {
			return nil, err
		}
		programs = append(programs, p)
	}
	for _, p := range programs {
		if err := p.GoOn(); err != nil {
			return nil, err
		}
	}
	var views []view
	for _, p := range programs {
		answer, err := p.Answer()
		if err != nil {
			return nil, err
		}
		v, err := parseView(answer)
		if err != nil {
			return nil, err
		}
		views = append(views, v)
	}
	return views, nil
}

// environment is that of a pod's container.
func (r *run) environment(ctx context.Context, pod string) (map[string]string, error) {
	out, err := r.Kubectl.Exec(ctx, pod, "", "/gpu-probe", "env")
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		env[name] = value
	}
	return env, nil
}

var deviceNode = regexp.MustCompile(`(?m)^/dev/nvidia[0-9]+ `)

// checkGPUs checks how many GPUs' device nodes a container has.
func (r *run) checkGPUs(ctx context.Context, pod string, want int) error {
	out, err := r.Kubectl.Exec(ctx, pod, "", "/gpu-probe", "devices")
	if err != nil {
		return err
	}
	got := deviceNode.FindAllString(out, -1)
	for i := range got {
		got[i] = strings.TrimSpace(got[i])
	}
	r.check(
		"device nodes of GPUs in the container",
		fmt.Sprint(want),
		fmt.Sprintf("%d: %s", len(got), strings.Join(got, " ")),
		len(got) == want,
	)
	return nil
}

// checkLimit checks that a pod's programs are held to a share of so many units: by what
// they are told, and by what they can allocate.
func (r *run) checkLimit(ctx context.Context, pod string, units int64) error {
	env, err := r.environment(ctx, pod)
	if err != nil {
		return err
	}
	limit := r.capMiB(units)
	const variable = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	r.check(
		"limit in the container's environment",
		fmt.Sprintf("0=%dM", limit),
		env[variable],
		env[variable] == fmt.Sprintf("0=%dM", limit),
	)

	v, err := r.meminfo(ctx, pod)
	if err != nil {
		return err
	}
	r.check("free memory, as a CUDA program sees it", fmt.Sprintf("at most %d MiB", limit),
		fmt.Sprintf("%s: %d MiB below the limit (CUDA context)", v, limit-v.freeMiB), v.freeMiB <= limit)
	for _, try := range []struct {
		mib  int64
		want string
	}{{limit / 2, granted}, {limit + 1, outOfMemory}} {
		answer, err := r.cuda(ctx, pod, "alloc", fmt.Sprint(try.mib))
		if err != nil {
			return err
		}
		r.check(fmt.Sprintf("allocation of %d MiB", try.mib), try.want, answer, answer == try.want)
	}
	return nil
}
