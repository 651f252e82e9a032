// SPDX-License-Identifier: Apache-2.0

// Command kubernetes is etcd, the Kubernetes control plane, kubelet and kubectl
// in one executable. The name it is started by (a symbolic link) chooses which
// one it is, and each runs as a process of its own.
//
// One executable instead of six because most of what they link is the same:
// one link step and some 150 MB on disk instead of six and some 480 MB.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // CronJob time zones, as upstream's own mains have them.

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	personalities := map[string]func(){
		"etcd":                    func() { etcdmain.Main(os.Args) },
		"kube-apiserver":          func() { serve(apiserver.NewAPIServerCommand()) },
		"kube-controller-manager": func() { serve(controllermanager.NewControllerManagerCommand()) },
		"kube-scheduler":          func() { serve(scheduler.NewSchedulerCommand()) },
		"kubelet":                 func() { serve(kubelet.NewKubeletCommand(context.Background())) },
		"kubectl":                 runKubectl,
	}
	name := filepath.Base(os.Args[0])
	run, ok := personalities[name]
	if !ok {
		names := make([]string, 0, len(personalities))
		for n := range personalities {
			names = append(names, n)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "started as %q: start it through a link named one of: %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	run()
}

func serve(command *cobra.Command) {
	os.Exit(cli.Run(command))
}

// runKubectl reads the verbosity before it makes the command, because making
// it already logs and reads .kuberc.
func runKubectl() {
	if _, err := logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)); err != nil {
		fmt.Fprintf(os.Stderr, "kubectl: set log verbosity: %v\n", err)
	}
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}
