// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// limitedUnits leave room for half of them beside a CUDA context.
const limitedUnits = 4

// limited is for each mode that limits memory, by the name of its class, and of one that
// limits compute a percentage.
func limited(class, cores string) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if err := r.apply(ctx, template("limited", onGPU(shareOf(class, limitedUnits, cores), r.gpu().Index))); err != nil {
			return err
		}
		what := fmt.Sprintf("pod with a share of %d GiB", limitedUnits)
		if err := r.start(ctx, what, pod{name: "limited", template: "limited"}); err != nil {
			return err
		}
		return r.checkLimit(ctx, "limited", limitedUnits)
	}
}

func legacyLimited(ctx context.Context, r *run) error {
	p := pod{name: "legacy", limits: map[string]string{"aliyun.com/gpu-mem": fmt.Sprint(limitedUnits)}}
	if err := r.start(ctx, fmt.Sprintf("pod with aliyun.com/gpu-mem: %d", limitedUnits), p); err != nil {
		return err
	}
	return r.checkLimit(ctx, p.name, limitedUnits)
}

// Without a server for all users the second would wait until the first has left, which it
// does not before the second is ready.
func twoUsers(ctx context.Context, r *run) error {
	if err := r.apply(ctx, template("one", onGPU(shareOf("mps", 2, ""), r.gpu().Index))); err != nil {
		return err
	}
	pods := []pod{{name: "a", template: "one", uid: 1001}, {name: "b", template: "one", uid: 1002}}
	if err := r.start(ctx, "pods of uid 1001 and uid 1002 on one GPU", pods...); err != nil {
		return err
	}
	views, err := r.spin(ctx, 3, "a", "b")
	if err != nil {
		return err
	}
	ok := true
	for _, v := range views {
		ok = ok && v.rate > 0 && v.freeMiB <= r.capMiB(2)
	}
	r.check("their programs at the same time", fmt.Sprintf("both get on, with at most %d MiB free", r.capMiB(2)),
		fmt.Sprintf("%s, %d MiB free; %s, %d MiB free", views[0], views[0].freeMiB, views[1], views[1].freeMiB), ok)
	return nil
}

// With what a container has of the daemon, even root cannot tell it to quit.
func cannotQuit(ctx context.Context, r *run) error {
	if err := r.apply(ctx, template("one", onGPU(shareOf("mps", 2, ""), r.gpu().Index))); err != nil {
		return err
	}
	if err := r.start(ctx, "pod of root", pod{name: "root", template: "one"}); err != nil {
		return err
	}
	before, err := r.MPS.Status(r.gpu().UUID)
	if err != nil {
		return err
	}
	// How it ends does not matter.
	said, _ := r.Kubectl.Exec(ctx, "root", "quit\n", "nvidia-cuda-mps-control")
	after, err := r.MPS.Status(r.gpu().UUID)
	if err != nil {
		return err
	}
	r.check(
		`"quit" by the control program in the container`,
		"refused",
		said,
		after.Restarts == before.Restarts && strings.Contains(said, "privilege"),
	)
	return r.checkLimit(ctx, "root", 2)
}

// daemonKilled kills the GPU's daemon while a client is busy. Nothing may run unlimited.
func daemonKilled(ctx context.Context, r *run) error {
	index := r.gpu().Index
	if err := r.apply(ctx, template("one", onGPU(shareOf("mps", 2, ""), index))); err != nil {
		return err
	}
	if err := r.start(ctx, "pod with a share", pod{name: "before", template: "one"}); err != nil {
		return err
	}
	before, err := r.MPS.Status(r.gpu().UUID)
	if err != nil {
		return err
	}
	client, err := r.Kubectl.Start(ctx, "before", probe, "spin", "5")
	if err != nil {
		return err
	}
	defer client.End()
	if err := client.GoOn(); err != nil {
		return err
	}
	daemon, err := r.daemon(ctx)
	if err != nil {
		return err
	}
	killed := time.Now()
	if err := kill(daemon); err != nil {
		return err
	}
	if err := r.create(ctx, pod{name: "after", template: "one"}); err != nil {
		return err
	}
	if err := r.awaitDaemon(ctx, before.Restarts+1); err != nil {
		return err
	}
	r.check("the daemon, after its end by SIGKILL", "serves again", "serves again", true)
	r.took(killed)
	if err := r.Kubectl.WaitRunning(ctx, r.Patience, "after"); err != nil {
		return err
	}
	r.check("pod that was created while it was down", "Running", "Running", true)
	r.took(killed)
	answer, err := client.Answer()
	if err != nil {
		answer = err.Error()
	}
	r.seen("the client that was busy", "fails at its next kernel", answer)
	return r.checkLimit(ctx, "after", 2)
}

// computeShared has programs with a quarter and three quarters of the GPU busy at once.
func computeShared(ctx context.Context, r *run) error {
	const small, large = 25, 75
	index := r.gpu().Index
	if err := r.apply(ctx,
		template("all", onGPU(shareOf("core-mem", limitedUnits, "100"), index)),
		template("small", onGPU(shareOf("core-mem", limitedUnits, fmt.Sprint(small)), index)),
		template("large", onGPU(shareOf("core-mem", limitedUnits, fmt.Sprint(large)), index))); err != nil {
		return err
	}
	if err := r.start(ctx, "pod with 100 % of the compute", pod{name: "all", template: "all"}); err != nil {
		return err
	}
	alone, err := r.spin(ctx, 3, "all")
	if err != nil {
		return err
	}
	whole := alone[0].rate
	r.seen("throughput with 100 %, alone", "", alone[0].String())
	if err := r.delete(ctx, "all"); err != nil {
		return err
	}
	if err := r.start(ctx, fmt.Sprintf("pods with %d %% and %d %%", small, large), pod{name: "small",
		template: "small"}, pod{name: "large", template: "large"}); err != nil {
		return err
	}
	views, err := r.spin(ctx, 4, "small", "large")
	if err != nil {
		return err
	}
	for i, percent := range []float64{small, large} {
		observed := views[i].rate / whole * 100
		r.check(fmt.Sprintf("throughput with %g %%, beside the other", percent), fmt.Sprintf("%g %%", percent),
			fmt.Sprintf("%.1f %%: %s", observed, views[i]), observed > percent/2)
	}
	ratio := views[1].rate / views[0].rate
	r.check("the larger over the smaller", "at least 1.5 times", fmt.Sprintf("%.2f times", ratio), ratio >= 1.5)
	return nil
}

func legacyCores(ctx context.Context, r *run) error {
	limits := map[string]string{
		"aliyun.com/gpu-mem":             fmt.Sprint(limitedUnits),
		"aliyun.com/gpu-core.percentage": "20",
	}
	if err := r.start(ctx, "pod with gpu-mem and gpu-core.percentage: 20", pod{name: "legacy",
		limits: limits}); err != nil {
		return err
	}
	env, err := r.environment(ctx, "legacy")
	if err != nil {
		return err
	}
	const variable = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	r.check(variable, "20", env[variable], env[variable] == "20")
	return r.checkLimit(ctx, "legacy", limitedUnits)
}
