// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
)

// completer is the name by which kubectl starts a program to complete the arguments of
// this plugin (source: kubectl, pluginCompletion).
const completer = "kubectl_complete-inspect-cgpu"

// patience is how long somebody who pressed the tab key waits for names.
const patience = 3 * time.Second

// arguments are those that the command is to be run with: kubectl starts the completer
// with the words of the command line, the last one being what is to be completed.
func arguments(args []string) []string {
	if filepath.Base(args[0]) == completer {
		return append([]string{cobra.ShellCompRequestCmd}, args[1:]...)
	}
	return args[1:]
}

// completeNode lists the nodes on which the driver runs.
func (o *options) completeNode(c *cobra.Command, args []string, _ string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o.complete(c, func(ctx context.Context, reader cluster.Reader) ([]string, error) { return reader.Nodes(ctx) })
}

func (o *options) completeNamespace(c *cobra.Command, _ []string, _ string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	return o.complete(c, namespaces)
}

// complete lists names that are read of the cluster, as long as somebody waits for them.
func (o *options) complete(c *cobra.Command, names func(context.Context, cluster.Reader) ([]string, error)) (
	[]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(contextOf(c), patience)
	defer cancel()
	reader, err := o.reader()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	found, err := names(ctx, reader)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// namespaces lists all of them, in order.
func namespaces(ctx context.Context, reader cluster.Reader) ([]string, error) {
	list, err := reader.Client.CoreV1().Namespaces().List(ctx,
		metav1.ListOptions{TimeoutSeconds: ptr.To(int64(patience.Seconds()))})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, namespace := range list.Items {
		names = append(names, namespace.Name)
	}
	slices.Sort(names)
	return names, nil
}

// contextOf is the command's context; while it only completes there may be none.
func contextOf(c *cobra.Command) context.Context {
	if ctx := c.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}

// completeFlags has the flags completed that have few values.
func (o *options) completeFlags(c *cobra.Command) {
	for flag, complete := range map[string]cobra.CompletionFunc{
		"output": cobra.FixedCompletions([]cobra.Completion{"wide", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp),
		"bars":   cobra.FixedCompletions([]cobra.Completion{auto, always, never}, cobra.ShellCompDirectiveNoFileComp),
		"use":    cobra.FixedCompletions([]cobra.Completion{auto, always, never}, cobra.ShellCompDirectiveNoFileComp),
		"color":  cobra.FixedCompletions([]cobra.Completion{auto, always, never}, cobra.ShellCompDirectiveNoFileComp),
		"width":  cobra.FixedCompletions([]cobra.Completion{"auto", "0"}, cobra.ShellCompDirectiveNoFileComp),
	} {
		register(c, flag, complete)
	}
	o.completeNamespaces(c)
}

// completeNamespaces has --namespace completed.
func (o *options) completeNamespaces(c *cobra.Command) { register(c, "namespace", o.completeNamespace) }

func register(c *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := c.RegisterFlagCompletionFunc(flag, complete); err != nil {
		// There is no such flag, or it was registered before: what completes is lost,
		// nothing else.
		cobra.CompDebugln(err.Error(), true)
	}
}
