// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func (c *candidate) String() string {
	claims, requests, devices, of, selectors, containers := c.asks()
	text := fmt.Sprintf("%d claims, %d requests, up to %d alternatives, %d devices, %d selectors", claims,
		requests, of, devices,
		selectors)
	if containers > 1 || len(c.Containers[0].Limits) > 0 {
		text += fmt.Sprintf(", %d containers", containers)
		for i, k := range c.Containers {
			if i < 3 && len(k.Limits) > 0 {
				text += fmt.Sprintf(" %s%v", k.Kind, k.Limits)
			}
		}
	}
	return text
}

// report writes what was found.
func (o *options) report(s *search) error {
	top := s.dearest(10)
	for _, f := range s.best {
		if f.cost.took() > 20*time.Millisecond && !f.cost.ended {
			if c, ok := s.costOf(f.candidate, f.target, 2); ok {
				f.cost = c
			}
		}
	}
	to := io.Writer(os.Stdout)
	if o.out != "" {
		file, err := os.Create(o.out)
		if err != nil {
			return err
		}
		defer file.Close() //nolint:errcheck // written to the end below
		to = file
	}
	var dear int
	fmt.Fprintf(to, "Seed %d, %d tries, %d of them admitted, %d nodes.\n\n", s.seed, s.tried, s.admittedCount,
		len(s.targets))
	fmt.Fprintln(to, "| machine | mode | node | dearest, ms of CPU | counted, ms | steps | devices looked at |"+
		" expressions (compiled) | pod |")
	fmt.Fprintln(to, "|---|---|---|---|---|---|---|---|---|")
	for _, t := range s.targets {
		f := s.best[t]
		if f == nil {
			continue
		}
		if o.bound > 0 && (f.cost.ended || f.cost.took() > o.bound) {
			dear++
		}
		fmt.Fprintf(to, "| %s | %s | %s | %s | %.1f | %d | %d | %d (%d) | %s |\n", t.machine, t.mode, t.state,
			f.cost.millis(),
			float64(f.cost.counted.Microseconds())/1000, f.cost.steps,
			f.cost.devices, f.cost.evaluated, f.cost.compiled, f.candidate)
	}
	fmt.Fprintf(to, "\nRefused:\n\n")
	for i, text := range slices.SortedFunc(maps.Keys(s.refusals), func(a,
		b string) int {
		return s.refusals[b] - s.refusals[a]
	}) {
		if i < 30 {
			fmt.Fprintf(to, "- %d: %s\n", s.refusals[text], strings.ReplaceAll(text, "\n", " "))
		}
	}
	fmt.Fprintf(to, "\nThe dearest:\n")
	for i, f := range top {
		fmt.Fprintf(to, "\n%d. On %s: %s; try %d. %s\n\n```yaml\n%s```\n", i+1, f.target, f.cost, f.try, f.candidate,
			shortened(f.candidate.manifests(fmt.Sprintf("dearest-%d", i+1))))
	}
	if o.pods != "" {
		var all []string
		for i, f := range top {
			all = append(all, fmt.Sprintf("# %s: %s\n%s", f.target, f.cost,
				f.candidate.manifests(fmt.Sprintf("dearest-%d", i+1))))
		}
		if err := os.WriteFile(o.pods, []byte(strings.Join(all, "---\n")), 0o644); err != nil {
			return err
		}
	}
	if dear > 0 {
		return fmt.Errorf("on %d of %d nodes a pod is admitted that takes the stock allocator more than %s", dear,
			len(s.targets),
			o.bound)
	}
	return nil
}

// shrinking is how long it may take to take off a pod what makes it no dearer.
const shrinking = 5 * time.Second

// dearest are so many pods, the dearest of those that ask for the same in other numbers.
func (s *search) dearest(most int) []*found {
	var out []*found
	seen := map[string]bool{}
	before := map[string]bool{}
	for _, f := range s.top {
		f := &found{f.candidate, f.target, f.cost, f.seed, f.try}
		if kind := f.candidate.kind(); before[kind] {
			continue
		} else {
			before[kind] = true
		}
		s.again(f, time.Now().Add(shrinking))
		if kind := f.candidate.kind(); !seen[kind] {
			seen[kind] = true
			out = append(out, f)
		}
		if len(out) == most {
			break
		}
	}
	return out
}

// kind is what a pod has in common with others that differ in numbers.
func (c *candidate) kind() string {
	claims, requests, devices, of, selectors, _ := c.asks()
	limits := map[string]bool{}
	for _, k := range c.Containers {
		for name := range k.Limits {
			limits[k.Kind+name] = true
		}
	}
	classes := map[string]bool{}
	for i := range c.Claims {
		for j := range c.Claims[i].Requests {
			for _, a := range alternatives(&c.Claims[i].Requests[j]) {
				classes[a.DeviceClassName] = true
			}
		}
	}
	return fmt.Sprint(claims > 1, requests > claims, devices > requests, of > 1, selectors > 0,
		slices.Sorted(maps.Keys(limits)),
		slices.Sorted(maps.Keys(classes)))
}

func (c cost) millis() string {
	if c.ended {
		return "> 300"
	}
	return fmt.Sprintf("%.1f", float64(c.cpu.Microseconds())/1000)
}

// manifests are the pod and its claims, with names that begin with prefix and in no namespace.
func (c *candidate) manifests(prefix string) string {
	var out []string
	write := func(object runtime.Object) {
		text, err := yaml.Marshal(object)
		if err != nil {
			text = []byte("# " + err.Error() + "\n")
		}
		out = append(out, string(text))
	}
	for i := range c.Claims {
		if c.refers(i, false) {
			t := c.template(i)
			t.Namespace, t.Name = "", prefix+"-"+t.Name
			write(t)
		}
		if c.refers(i, true) {
			claim := c.claim(i)
			claim.Namespace, claim.Name = "", prefix+"-"+claim.Name
			write(claim)
		}
	}
	p := c.pod()
	p.Namespace, p.Name = "", prefix
	for i := range p.Spec.ResourceClaims {
		for _, name := range []*string{p.Spec.ResourceClaims[i].ResourceClaimName,
			p.Spec.ResourceClaims[i].ResourceClaimTemplateName} {
			if name != nil {
				*name = prefix + "-" + *name
			}
		}
	}
	write(p)
	return strings.Join(out, "---\n")
}

// shortened is a text without the rest of its long lines and of what is very long.
func shortened(text string) string {
	lines := strings.Split(text, "\n")
	if len(lines) > 120 {
		lines = append(lines[:100], fmt.Sprintf("# … %d more lines", len(lines)-100), "")
	}
	for i, l := range lines {
		if len(l) > 160 {
			lines[i] = l[:150] + "…"
		}
	}
	return strings.Join(lines, "\n")
}
