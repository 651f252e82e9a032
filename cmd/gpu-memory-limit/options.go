// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/internal/ocihook"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/memlimit"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/podcgroup"
)

// options are the program's arguments. pkg/node/isolation writes them into CDI specs.
type options struct {
	library, root, kubelet, ledger, claim, share string
	containers                                   int
	only, lifted                                 bool
	gpus                                         []limited
}

// limited is a GPU of which the container has a share.
type limited struct {
	memlimit.Target
	mib int64
	// index is the GPU's likely place in NVML's order.
	index int
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("gpu-memory-limit", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.library, "library", "", "the NVML library")
	f.StringVar(&o.root, "cgroup-root", memlimit.DefaultRoot, "where control groups are mounted")
	f.StringVar(&o.kubelet, "kubelet-root", "", "the control group of all pods, below cgroup-root")
	f.StringVar(&o.ledger, "ledger", "", "directory of what is set")
	f.StringVar(&o.claim, "claim", "", "UID of the claim")
	f.StringVar(&o.share, "share", "", "tells the share from others")
	f.IntVar(&o.containers, "containers", 0, "how many containers may have the share, 0 for any number")
	f.BoolVar(&o.only, "only", false, "the claim has no other share")
	f.BoolVar(&o.lifted, "lifted", false, "the limits are switched off")
	if err := f.Parse(args); err != nil {
		return o, fmt.Errorf("arguments %q: %w", args, err)
	}
	o.root = filepath.Clean(o.root)
	for _, arg := range f.Args() {
		gpu, err := parseGPU(arg)
		if err != nil {
			return o, err
		}
		o.gpus = append(o.gpus, gpu)
	}
	return o, nil
}

// parseGPU reads UUID=MIB/MEMORY@INDEX. Specs of earlier versions have no index.
func parseGPU(arg string) (limited, error) {
	gpu, at, has := strings.Cut(arg, "@")
	index, atErr := strconv.ParseUint(at, 10, 31)
	if !has {
		atErr = nil
	}
	uuid, amounts, _ := strings.Cut(gpu, "=")
	share, memory, _ := strings.Cut(amounts, "/")
	own, err := strconv.ParseInt(share, 10, 64)
	all, allErr := strconv.ParseInt(memory, 10, 64)
	if uuid == "" || errors.Join(err, allErr, atErr) != nil || own < 1 || all < 1 {
		return limited{}, fmt.Errorf("argument %q is not UUID=MIB/MEMORY@INDEX", arg)
	}
	return limited{memlimit.Target{UUID: uuid, MemoryMiB: all}, own, int(index)}, nil
}

var errTwoShares = errors.New("it would have two shares with limits of their own, of which only one would hold: ask " +
	"for all that the container needs in one request of one claim")

// alone reports arguments with which nothing would be limited, and another share of the
// container: the hook of each is there. The kubelet asks the driver about no pod that joins
// a claim.
func (o options) alone(c ocihook.Container, program string) error {
	if o.library == "" || o.kubelet == "" || o.ledger == "" || o.claim == "" || o.share == "" || len(o.gpus) == 0 {
		return errors.New("its CDI spec is not complete: restart gpu-kubelet-plugin on the node, which writes it again")
	}
	if o.lifted {
		return nil
	}
	for _, h := range c.Hooks {
		if len(h.Args) < 2 || filepath.Base(h.Args[0]) != program || h.Args[1] != "set" {
			continue
		}
		other, err := parse(h.Args[2:])
		if err != nil || other.share != o.share && !other.lifted {
			return errTwoShares
		}
	}
	return nil
}

// start is the container as it starts with its share of a GPU.
func (o options) start(leaf podcgroup.Leaf, container string, mib int64) memlimit.Start {
	return memlimit.Start{
		Entry: memlimit.Entry{Pod: leaf.Pod, PodDir: leaf.PodDir, Dir: leaf.Dir, Container: container,
			Claim: types.UID(o.claim), Share: o.share, MiB: mib, Lifted: o.lifted},
		OnlyShare: o.only, MaxContainers: o.containers,
	}
}
