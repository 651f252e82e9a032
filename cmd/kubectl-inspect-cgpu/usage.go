// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/consumption"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/rightsize"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/series"
)

// periodOptions are where the series of a period are, and how long it is.
type periodOptions struct{ prometheus, tokenFile, since string }

// length is how long the period is.
func (p *periodOptions) length() (time.Duration, error) {
	since, err := model.ParseDuration(p.since)
	if err != nil || since == 0 {
		return 0, fmt.Errorf("--since %s: not a duration such as 24h or 7d", p.since)
	}
	return time.Duration(since), nil
}

// newUsage makes the command usage.
func newUsage(o *options) *cobra.Command {
	var p periodOptions
	var by string
	c := &cobra.Command{
		Use:   "usage",
		Short: "Show who has how much GPU memory, and uses how much of it",
		Long: "Show how many GiB of GPU memory namespaces, workloads or pods have, how many they use now, and used at the " +
			"most since their nodes' plugins started. With --prometheus: the GiB-hours of a period, and what the largest pod " +
			"had, used 99 % of the time, and used at the most.\n" +
			"What is used is in the metrics of the nodes (port 8480), or those that Prometheus has of them.",
		Example: "  kubectl inspect cgpu usage\n" +
			"  kubectl inspect cgpu usage --by namespace\n" +
			"  kubectl inspect cgpu usage --prometheus http://localhost:9090 --since 7d -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			if p.prometheus == "" && (c.Flags().Changed("since") || p.tokenFile != "") {
				return errors.New("nodes know of now alone: name a Prometheus with --prometheus")
			}
			return o.showUsage(c.Context(), consumption.By(by), p)
		},
	}
	o.readsUsers(c, &p, "24h")
	c.Flags().StringVar(&by, "by", string(consumption.ByWorkload), "add up by "+strings.Join(consumption.Ways(), ", "))
	register(c, "by", cobra.FixedCompletions(consumption.Ways(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// readsUsers gives a command what both have.
func (o *options) readsUsers(c *cobra.Command, p *periodOptions, since string) {
	o.subcommand(c, "show this namespace alone", outputJSON)
	flags := c.Flags()
	flags.StringVar(&p.prometheus, "prometheus", "", "the URL of a Prometheus that scrapes the driver, such as "+
		"http://localhost:9090")
	flags.StringVar(&p.tokenFile, "prometheus-token-file", "", "a file with the bearer token that it wants")
	flags.StringVar(&p.since, "since", since, "how far back to look, such as 24h or 7d; needs --prometheus")
}

func (o *options) showUsage(ctx context.Context, by consumption.By, p periodOptions) error {
	if !slices.Contains(consumption.Ways(), string(by)) {
		return fmt.Errorf("--by %s: not one of %s", by, strings.Join(consumption.Ways(), ", "))
	}
	known, err := o.readUsers(ctx, p)
	if err != nil {
		return err
	}
	report := consumption.Sum(known.Shares(o.namespace()), by)
	report.Since, report.Notes = known.Since, known.Notes
	return o.printNoting(report, report.Print, report.Notes)
}

// readUsers reads the cluster and what is used, of now, or of a period where Prometheus is named.
func (o *options) readUsers(ctx context.Context, p periodOptions) (consumption.Known, error) {
	var none consumption.Known
	since, err := p.length()
	if err != nil {
		return none, err
	}
	var prometheus *series.Reader
	if p.prometheus != "" {
		if prometheus, err = series.NewReader(p.prometheus, p.tokenFile); err != nil {
			return none, err
		}
	}
	reader, err := o.reader()
	if err != nil {
		return none, err
	}
	reader.Bound = true
	in, err := reader.Read(ctx)
	if err != nil {
		return none, err
	}
	if prometheus == nil {
		(&cluster.Usage{Reader: reader}).Fill(ctx, &in)
		return consumption.Know(in, nil, ""), nil
	}
	period, err := prometheus.Period(ctx, since, o.namespace())
	if err != nil {
		return none, err
	}
	return consumption.Know(in, &period, p.since), nil
}

// newRightsize makes the command rightsize.
func newRightsize(o *options) *cobra.Command {
	var p periodOptions
	var headroom string
	c := &cobra.Command{
		Use:   "rightsize --prometheus URL",
		Short: "Say how much GPU memory each workload needs, by its peak, and how to write that",
		Long: "Compare the GPU memory of each workload that has pods with the most that they used, say whether to shrink, " +
			"grow or keep it, and print the patch that does. It changes nothing. It does not advise on workloads that were " +
			"seen for less than a day, and does not size whole GPUs and MIG instances.",
		Example: "  kubectl inspect cgpu rightsize --prometheus http://localhost:9090 --since 7d --headroom 30%",
		RunE:    func(c *cobra.Command, _ []string) error { return o.rightsize(c.Context(), headroom, p) },
	}
	o.readsUsers(c, &p, "7d")
	c.Flags().StringVar(&headroom, "headroom", "20%", "the part of its peak that a workload is to have more")
	return c
}

func (o *options) rightsize(ctx context.Context, headroom string, p periodOptions) error {
	percent, isPercent := strings.CutSuffix(headroom, "%")
	more, err := strconv.ParseUint(percent, 10, 10)
	if err != nil || !isPercent {
		return fmt.Errorf("--headroom %s: not a part such as 20%%", headroom)
	}
	since, err := p.length()
	switch {
	case err != nil:
		return err
	case p.prometheus == "":
		return errors.New("nodes know no peaks of a day: name a Prometheus that scrapes the driver with --prometheus")
	case since < rightsize.LeastSeen:
		return fmt.Errorf("--since %s: nothing is advised on less than a day", p.since)
	}
	known, err := o.readUsers(ctx, p)
	if err != nil {
		return err
	}
	report := rightsize.Of(known, float64(more)/100, o.namespace())
	return o.printNoting(report, report.Print, report.Notes)
}
