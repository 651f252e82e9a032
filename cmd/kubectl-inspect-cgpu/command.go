// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/gpushare/dra-driver-gpushare/internal/version"
	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/cluster"
	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

// Requests to the API server per second, and in a burst: reading a large cluster is
// some twenty pages of lists.
const (
	apiQPS   = 50
	apiBurst = 100
)

// options are what the user asks for.
type options struct {
	config        *genericclioptions.ConfigFlags
	node          string
	details       bool
	output        string
	bars          string
	color         string
	use           string
	watch         bool
	allNamespaces bool
	width         string
	// terminal is where the output goes to.
	terminal terminal
	streams  genericiooptions.IOStreams
}

// terminal is the one that the output goes to, if it goes to one.
type terminal struct {
	is bool
	// colors is whether it shows colours, and the user has nothing against them.
	colors bool
	// size is how large it is now, 0 where that is not known.
	size func() (columns, rows int)
}

// newCommand returns the command and what its flags will be parsed into.
func newCommand(streams genericiooptions.IOStreams, to terminal) (*cobra.Command, *options) {
	streams.ErrOut = text.Writer{Out: streams.ErrOut}
	o := &options{config: genericclioptions.NewConfigFlags(true), terminal: to, streams: streams}
	o.config.CacheDir = nil // nothing is discovered, so nothing is cached
	c := &cobra.Command{
		Use:         "kubectl-inspect-cgpu [NODE]",
		Version:     version.String(),
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl inspect cgpu"},
		Short:       "Show which part of which GPU is allocated to whom",
		Long: "Show how much memory of each GPU is allocated, in GiB, and on nodes in mode core_mem how much compute, in " +
			"percent of a GPU.\n" +
			"A GPU that is allocated as a whole counts with all its memory.",
		Example: "  kubectl inspect cgpu                    # a line for each node\n" +
			"  kubectl inspect cgpu -d NODE            # the pods on the GPUs of a node\n" +
			"  kubectl inspect cgpu -n team-a          # the pods of a namespace, and their GPUs\n" +
			"  kubectl inspect cgpu -o json            # all of it, for programs\n" +
			"  kubectl inspect cgpu explain pod/train  # why a pod waits, or what it has\n" +
			"  kubectl inspect cgpu doctor             # what is not in order with the driver\n" +
			"  kubectl inspect cgpu plan -f train.yaml # whether the pods of manifests would find their GPUs",
		Args:              oneNodeAtMost,
		SilenceUsage:      true,
		SilenceErrors:     true,
		ValidArgsFunction: o.completeNode,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.node = args[0]
			}
			return o.run(c.Context())
		},
	}
	c.SetOut(streams.Out)
	c.SetErr(streams.ErrOut)
	flags := c.Flags()
	o.config.AddFlags(flags)
	flags.Lookup("namespace").Usage = "list the pods of this namespace, and what they hold of each GPU"
	flags.BoolVarP(&o.details, "details", "d", false, "list the pods on each node and what they hold of each GPU")
	flags.StringVarP(&o.output, "output", "o", "", "wide (adds modes and GPU models), json or yaml")
	flags.BoolVarP(&o.watch, "watch", "w", false, "print again whenever something changes")
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "list the pods of all namespaces, also where "+
		"--namespace names one")
	flags.StringVar(&o.bars, "bars", "auto", "draw how full each GPU is: always, never, or auto, which is in a "+
		"terminal and without --output")
	flags.StringVar(&o.use, "use", auto, "show what is used of the GPUs, which is in the metrics of the nodes: always, "+
		"never, or auto, which is in a terminal, without --output and for few nodes")
	flags.StringVar(&o.width, "width", "auto", "how many columns the table may take before each GPU gets a line: a "+
		"number, 0 for any, or auto, which is those of the terminal and any elsewhere")
	// Whether colours are wanted is asked for by all commands.
	c.PersistentFlags().StringVar(&o.color, "color", auto, "colours: always, never, or auto, which is in a terminal "+
		"unless NO_COLOR is set")
	o.completeFlags(c)
	// A node may have the name of a command only where that is one of this plugin's own.
	c.CompletionOptions.DisableDefaultCmd = true
	c.AddCommand(newExplain(o), newDoctor(o), newPlan(o), newBundle(o), newUsage(o), newRightsize(o),
		newDefragment(o))
	return c, o
}

// subcommand adds to a command the flags that all commands have: those that select a cluster, with this usage of
// --namespace unless it is empty, and --output for these forms, if there are any.
func (o *options) subcommand(c *cobra.Command, namespace string, forms ...string) *cobra.Command {
	c.SilenceUsage, c.SilenceErrors = true, true
	if c.Args == nil {
		c.Args, c.ValidArgsFunction = cobra.NoArgs, cobra.NoFileCompletions
	}
	flags := c.Flags()
	o.config.AddFlags(flags)
	if namespace != "" {
		flags.Lookup("namespace").Usage = namespace
	}
	o.completeNamespaces(c)
	if len(forms) == 0 {
		return c
	}
	flags.StringVarP(&o.output, "output", "o", "", strings.Join(forms, " or "))
	register(c, "output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp))
	known := forms[0]
	if len(forms) > 1 {
		known = "one of " + strings.Join(forms, ", ")
	}
	c.PreRunE = func(*cobra.Command, []string) error {
		if o.output != "" && !slices.Contains(forms, o.output) {
			return fmt.Errorf("--output %s: not %s", o.output, known)
		}
		return nil
	}
	return c
}

func oneNodeAtMost(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("%d nodes are named (%s): name one, or none for all", len(args), strings.Join(args, ", "))
	}
	return nil
}

func (o *options) run(ctx context.Context) error {
	p, err := o.printer()
	if err != nil {
		return err
	}
	reader, err := o.reader()
	if err != nil {
		return err
	}
	usage, err := o.usage(reader)
	if err != nil {
		return err
	}
	if o.watch {
		return o.follow(ctx, reader, usage, p)
	}
	reader.Bound = o.showsLost()
	in, err := reader.Read(ctx)
	if err != nil {
		return err
	}
	if usage != nil {
		usage.Fill(ctx, &in)
	}
	return p.print(in)
}

// useMost is on how many nodes it is looked for what is used where nobody asks for that, useEvery
// how often while somebody watches: that it changes is told by nobody.
const (
	useMost  = 20
	useEvery = 30 * time.Second
)

// usage reads what is used; nil where that is not shown.
func (o *options) usage(reader cluster.Reader) (*cluster.Usage, error) {
	shown, err := chosen("use", o.use, o.terminal.is && o.output == "")
	if !shown {
		return nil, err
	}
	usage := &cluster.Usage{Reader: reader}
	if o.use == auto {
		usage.Most = useMost
	}
	return usage, nil
}

// showsLost reports whether the table shows what is lost of free GPUs: not where it is, byte by byte, the known tool's.
func (o *options) showsLost() bool {
	return o.output == outputJSON || o.output == outputYAML || !o.lists() && (o.terminal.is || o.output == "wide")
}

func (o *options) reader() (cluster.Reader, error) {
	config, err := o.config.ToRESTConfig()
	if err != nil {
		return cluster.Reader{}, fmt.Errorf("find out how to reach the cluster: %w", err)
	}
	config.QPS, config.Burst = apiQPS, apiBurst
	// As kubectl prints them: policies warn of what is planned.
	config.WarningHandler = rest.NewWarningWriter(o.streams.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+
		runtime.ContentTypeJSON
	clock := &cluster.Clock{}
	config.Wrap(clock.Wrap)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return cluster.Reader{}, fmt.Errorf("make the API client: %w", err)
	}
	// The namespace of the context is as good as one that is named: it is asked
	// for where other namespaces may not be read.
	namespace, _, err := o.config.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return cluster.Reader{}, fmt.Errorf("find out the namespace: %w", err)
	}
	return cluster.Reader{Client: client, Clock: clock, Node: o.node, Namespace: namespace}, nil
}

// lists reports whether pods are listed: whoever names a namespace wants to see its pods.
func (o *options) lists() bool { return o.details || o.allNamespaces || o.namespace() != "" }

// namespace is the one whose pods are listed, metav1.NamespaceAll for all.
func (o *options) namespace() string {
	if o.allNamespaces {
		return metav1.NamespaceAll
	}
	return *o.config.Namespace
}
