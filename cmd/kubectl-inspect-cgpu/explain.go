// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/why"
	"github.com/gpushare/dra-driver-gpushare/pkg/scheduling"
)

// What is for programs.
const (
	outputJSON = "json"
	outputYAML = "yaml"
)

// The kinds of objects that can be asked about.
const (
	kindPod   = "pod"
	kindClaim = "claim"
)

// kindOf is the kind that somebody has written, in one of the ways to write it; empty if it is
// none.
func kindOf(written string) string {
	switch written {
	case kindPod, "pods", "po":
		return kindPod
	case kindClaim, "claims", "resourceclaim", "resourceclaims", "resourceclaims.resource.k8s.io":
		return kindClaim
	}
	return ""
}

// newExplain is the command that says why a pod or a claim waits, or what it has.
func newExplain(o *options) *cobra.Command {
	return o.subcommand(&cobra.Command{
		Use:   "explain pod/NAME | claim/NAME",
		Short: "Say why a pod or a claim waits for GPUs, or which it has",
		Long: "Say why a pod or a claim waits: the nodes and GPUs that were looked at, what each lacks now, and what " +
			"would help.\nWhether there is room is found out by the scheduler's own allocator, from what is published and " +
			"allocated now.\nOf a gang (PodGroup): how many of its pods find room at once, and how many have to.\n" +
			"Of a pod that has its GPUs: which, by which claim, how much of them, and what keeps it to that.",
		Example: "  kubectl inspect cgpu explain pod/train             # in the namespace of the context\n" +
			"  kubectl inspect cgpu explain pod/train -n team-a\n" +
			"  kubectl inspect cgpu explain claim/shared-gpu      # of a claim, and the pod that waits for it\n" +
			"  kubectl inspect cgpu explain pod/train -o json     # for programs: .headline, .fits, .nodes[].lacks",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: o.completeObject,
		RunE: func(c *cobra.Command, args []string) error {
			kind, name, err := objectOf(args)
			if err != nil {
				return err
			}
			return o.explain(c.Context(), kind, name)
		},
	}, "the namespace of the pod or claim; without it, that of the context", outputJSON, outputYAML)
}

// objectOf is the object that arguments name.
func objectOf(args []string) (kind, name string, err error) {
	text := strings.Join(args, "/")
	written, name, _ := strings.Cut(text, "/")
	kind = kindOf(written)
	if kind == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%q names neither a pod nor a claim: write pod/NAME or claim/NAME", strings.Join(args, " "))
	}
	return kind, name, nil
}

func (o *options) explain(ctx context.Context, kind, name string) error {
	reader, err := o.reader()
	if err != nil {
		return err
	}
	read := reader.PodAndCluster
	if kind == kindClaim {
		read = reader.ClaimAndCluster
	}
	in, err := read(ctx, name)
	if err != nil {
		return err
	}
	return o.printWhy(ctx, in)
}

func (o *options) printWhy(ctx context.Context, in why.Input) error {
	answer, err := why.Of(ctx, in)
	if err != nil {
		return err
	}
	return o.printNoting(answer, answer.Print, answer.Notes)
}

// completeObject lists the pods and claims of the namespace.
func (o *options) completeObject(c *cobra.Command, args []string, _ string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o.complete(c, objects)
}

// objects are the pods and claims that can be asked about.
func objects(ctx context.Context, reader cluster.Reader) ([]string, error) {
	options := metav1.ListOptions{TimeoutSeconds: ptr.To(int64(patience.Seconds()))}
	pods, err := reader.Client.CoreV1().Pods(reader.Namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	claims, err := reader.Client.ResourceV1().ResourceClaims(reader.Namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, pod := range pods.Items {
		if scheduling.AsksForDevices(&pod, scheduling.RequestsOf(&pod)) || pod.Status.ExtendedResourceClaimStatus != nil {
			names = append(names, kindPod+"/"+pod.Name)
		}
	}
	for _, claim := range claims.Items {
		if !ownedByPod(&claim) {
			names = append(names, kindClaim+"/"+claim.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// ownedByPod reports whether a claim was made for one pod, which is easier to ask about.
func ownedByPod(claim *resourceapi.ResourceClaim) bool {
	return slices.ContainsFunc(claim.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Pod" })
}
