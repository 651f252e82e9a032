// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/cdi"
	"github.com/gpushare/dra-driver-gpushare/internal/preparetest"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/isolation"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/prepare"
	"github.com/gpushare/dra-driver-gpushare/pkg/node/state"
)

// What a worker tells, one to a line, followed by the claim's UID where it is
// about a claim. What it does not get to tell, because it is killed first, may
// have happened or not.
const (
	sayStarted     = "started"
	sayRecovered   = "recovered" // it waits for a line before it goes on
	sayPreparing   = "preparing"
	sayPrepared    = "prepared"
	sayRefused     = "refused" // the claim does not fit beside the others
	sayUnpreparing = "unpreparing"
	sayUnprepared  = "unprepared"
	sayFailed      = "failed"
)

const (
	pool            = "n1/gpu"
	newGPUs         = 2
	gpuMiB          = 16130
	claimsPerWorker = 12
)

// nodeDir is a node's disk as the plugin sees it.
type nodeDir string

func (d nodeDir) cdi() string { return filepath.Join(string(d), "cdi") }

// preparer is what the plugin makes at its start.
func (d nodeDir) preparer(onDamaged func(context.Context, state.Damaged)) (*prepare.Preparer, error) {
	store, err := state.Open(string(d), "n1")
	if err != nil {
		return nil, err
	}
	// Nothing was lost before the test began.
	if err := store.SetComplete(); err != nil {
		return nil, err
	}
	p := prepare.New(prepare.Options{
		Pool: pool, Store: preparetest.Store{Store: store}, Specs: cdi.Dir(d.cdi()), BootID: "boot",
		Isolation: isolation.NewRegistry(isolation.Config{}),
		Cluster:   preparetest.Cluster{}, Node: preparetest.Node{}, Listener: preparetest.Listener{OnDamaged: onDamaged},
	})
	machine := &gpu.Machine{}
	for i := range newGPUs {
		machine.GPUs = append(machine.GPUs, gpu.GPU{Index: i, UUID: fmt.Sprintf("GPU-%d", i), MemoryMiB: gpuMiB})
	}
	p.SetInventory(&prepare.Inventory{Machine: machine, Base: preparetest.Base("")})
	return p, nil
}

// worker is the life of the child process: it recovers the node as the plugin
// does at its start, and then prepares and unprepares claims at random until it
// is killed or its input ends.
type worker struct {
	preparer *prepare.Preparer
	claims   []*resourceapi.ResourceClaim
	random   *rand.Rand
	tell     func(what, about string)
}

func runWorker(ctx context.Context, dir nodeDir, name string, seed uint64, in io.Reader, out io.Writer) error {
	w := &worker{
		claims: claimsOf(name),
		random: rand.New(rand.NewPCG(seed, 0)),
		tell:   func(what, about string) { fmt.Fprintln(out, what, about) },
	}
	w.tell(sayStarted, "")
	var err error
	w.preparer, err = dir.preparer(func(_ context.Context, d state.Damaged) { w.tell(sayFailed, d.Error()) })
	if err != nil {
		return err
	}
	if err := w.preparer.Recover(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	w.tell(sayRecovered, "")
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return nil
	}
	for {
		if err := w.step(ctx); err != nil {
			return err
		}
	}
}

func (w *worker) step(ctx context.Context) error {
	c := w.claims[w.random.IntN(len(w.claims))]
	uid := string(c.UID)
	if w.random.IntN(2) == 0 {
		w.tell(sayUnpreparing, uid)
		if err := w.preparer.Unprepare(ctx, c.UID); err != nil {
			return fmt.Errorf("unprepare %s: %w", uid, err)
		}
		w.tell(sayUnprepared, uid)
		return nil
	}
	w.tell(sayPreparing, uid)
	_, err := w.preparer.Prepare(ctx, c)
	switch {
	case err == nil:
		w.tell(sayPrepared, uid)
	case strings.Contains(err.Error(), "promised twice"):
		w.tell(sayRefused, uid)
	default:
		return fmt.Errorf("prepare %s: %w", uid, err)
	}
	return nil
}

// claimsOf are a worker's claims. Together they ask for several times what there
// is: shares of 1 to 6 GiB of either GPU, and whole GPUs.
func claimsOf(worker string) []*resourceapi.ResourceClaim {
	var claims []*resourceapi.ResourceClaim
	for i := range claimsPerWorker {
		uid := fmt.Sprintf("%s-%d", worker, i)
		result := resourceapi.DeviceRequestAllocationResult{
			Request: "gpu", Driver: v1alpha1.DriverName, Pool: pool, Device: fmt.Sprintf("gpu-%d", i%newGPUs),
		}
		if units := int64(i / newGPUs); units > 0 {
			result.Device += "-share"
			result.ShareID = ptr.To(types.UID(uid + "-share"))
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
				v1alpha1.CapMemory: *resource.NewQuantity(units*devices.GiB, resource.BinarySI),
				v1alpha1.CapSlots:  resource.MustParse("1"),
			}
		}
		claims = append(claims, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: uid, UID: types.UID(uid)},
			Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
				Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{result}},
			}},
		})
	}
	return claims
}

// workerMain is the child process' main function.
func workerMain(arguments string) int {
	var name, dir string
	var seed uint64
	if _, err := fmt.Sscanf(arguments, "%s %d %q", &name, &seed, &dir); err != nil {
		fmt.Println(sayFailed, "arguments", arguments, err)
		return 1
	}
	err := runWorker(context.Background(), nodeDir(dir), name, seed, os.Stdin, os.Stdout)
	if err != nil {
		fmt.Println(sayFailed, err)
		return 1
	}
	return 0
}
