// SPDX-License-Identifier: Apache-2.0

package steps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
)

// destroyedInUse asks for what must be refused: a program uses the instance.
func (c Cut) destroyedInUse(ctx context.Context, r *run) error {
	const seconds = "10"
	if err := r.apply(ctx, template("instance", c.instance())); err != nil {
		return err
	}
	if err := r.start(ctx, "pod with a claim for "+c.Profile, pod{name: "busy", template: "instance"}); err != nil {
		return err
	}
	found, err := c.list(ctx, r, 1)
	if err != nil {
		return err
	}
	// From when it is ready it has a context on the instance.
	p, err := r.Kubectl.Start(ctx, "busy", probe, "spin", seconds)
	if err != nil {
		return err
	}
	defer p.End()
	if err := p.GoOn(); err != nil {
		return err
	}
	err = c.Instances.Destroy(ctx, found[0].GI)
	observed := "it was done"
	if err != nil {
		observed = err.Error()
	}
	r.check("its instance is destroyed while a CUDA program runs", gpu.ErrInstanceInUse.Error(), observed,
		errors.Is(err, gpu.ErrInstanceInUse))
	return nil
}

// moment is when the plugin is killed: as soon as the GPU's instances are like that.
type moment struct {
	what string
	is   func([]gpu.Instance) bool
}

var (
	someGI  = moment{"as soon as the GPU instance is there", func(i []gpu.Instance) bool { return len(i) > 0 }}
	someCI  = moment{"as soon as the compute instance is there", func(i []gpu.Instance) bool { return computed(i) > 0 }}
	noCI    = moment{"as soon as the compute instance is gone", func(i []gpu.Instance) bool { return computed(i) == 0 }}
	nothing = moment{"as soon as the GPU instance is gone", func(i []gpu.Instance) bool { return len(i) == 0 }}
)

func computed(instances []gpu.Instance) (n int) {
	for _, i := range instances {
		if i.UUID != "" {
			n++
		}
	}
	return n
}

// killed kills the plugin while it makes an instance, and again while it destroys it. In the end the pod runs and has
// the only instance, and then nothing is left.
func (c Cut) killed(making, destroying moment) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		if err := r.apply(ctx, template("instance", c.instance())); err != nil {
			return err
		}
		began := time.Now()
		err := c.killWhen(ctx, r, making, func(ctx context.Context) error {
			return r.create(ctx, pod{name: "killed", template: "instance"})
		})
		if err != nil {
			return err
		}
		if err := r.Kubectl.WaitRunning(ctx, long, "killed"); err != nil {
			return err
		}
		found, err := c.list(ctx, r, 1)
		if err != nil {
			return err
		}
		if _, err := c.of(ctx, r, "killed", found); err != nil {
			return err
		}
		r.check("gpu-kubelet-plugin is killed "+making.what, "the pod runs, with the only instance", names(found), true)
		r.took(began)

		began = time.Now()
		err = c.killWhen(ctx, r, destroying, func(ctx context.Context) error {
			_, err := r.Kubectl.Run(ctx, "delete", "pod", "killed", "--grace-period=1", "--wait=false")
			return err
		})
		if err != nil {
			return err
		}
		if err := r.Kubectl.WaitGone(ctx, long, "killed"); err != nil {
			return err
		}
		if _, err := c.list(ctx, r, 0); err != nil {
			return err
		}
		r.check("gpu-kubelet-plugin is killed "+destroying.what, "pod and instance are gone", "they are gone", true)
		r.took(began)
		return nil
	}
}

// look is how often the instances are looked at for a moment: the driver takes a second for an instance.
const look = 10 * time.Millisecond

// killWhen does something, kills the plugin at a moment of it, and waits until its successor serves.
func (c Cut) killWhen(ctx context.Context, r *run, when moment, do func(context.Context) error) error {
	plugin, victim, err := r.plugin(ctx)
	if err != nil {
		return err
	}
	if err := do(ctx); err != nil {
		return err
	}
	if err := c.await(ctx, r.Patience, when); err != nil {
		return err
	}
	if err := kill(victim); err != nil {
		return err
	}
	return r.awaitRestart(ctx, plugin)
}

func (c Cut) await(ctx context.Context, limit time.Duration, when moment) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s were not enough", limit))
	defer cancel()
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		instances, err := c.Instances.List(ctx)
		if err == nil && when.is(instances) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited to kill the plugin %s, and the instances are %q: %w", when.what, names(instances),
				errors.Join(context.Cause(ctx), err))
		case <-ticker.C:
		}
	}
}

// nothingLeft is the end of it all.
func (c Cut) nothingLeft(ctx context.Context, r *run) error {
	found, err := c.list(ctx, r, 0)
	if err != nil {
		return err
	}
	r.check("instances on the GPU, at the end", "0", fmt.Sprint(len(found)), len(found) == 0)
	return nil
}
