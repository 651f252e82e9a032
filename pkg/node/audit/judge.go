// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/deviceplugin"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// slackMiB is how much more than its grant a container may hold before it is said, for
// each of its processes and at least twice: what NVML counts for a process is by some
// MiB more than what limits count (12 MiB beyond a CUDA context, as measured).
const slackMiB = 32

// Judgement is what follows from an Input.
type Judgement struct {
	// Findings are in order, by pod. They are those of this moment: see Tracker.
	Findings []Finding
	// Claims are those of a Snapshot.
	Claims []ClaimUse
}

// Judge compares what processes hold with what their containers were granted. A grant is its
// claim's: containers that share one may hold no more of it together than each alone.
func Judge(input Input) Judgement {
	in := judge{Input: input, claims: make(map[claimName][]Claim, len(input.Claims))}
	for _, c := range input.Claims {
		name := claimName{c.Namespace, c.Name}
		in.claims[name] = append(in.claims[name], c)
	}
	var out Judgement
	for _, use := range in.GPUs {
		holders, unowned := in.holders(use)
		out.Findings = append(out.Findings, unowned...)
		for _, h := range holders {
			in.container(h, &out)
		}
		for _, s := range sharesOf(holders) {
			out.Findings = append(out.Findings, s.findings(in.MPSOverheadMiB)...)
		}
	}
	slices.SortFunc(out.Findings, compareFindings)
	slices.SortFunc(out.Claims, func(a, b ClaimUse) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
			cmp.Compare(a.Container, b.Container), cmp.Compare(a.Index, b.Index))
	})
	return out
}

// judge is an Input in which claims are found by their names: several where one was created again while what the one
// before has is held.
type judge struct {
	Input
	claims map[claimName][]Claim
}

type claimName struct{ namespace, name string }

// holder is a container with processes on a GPU.
type holder struct {
	who Pod
	// pod is nil where it is gone, and known by the records of its claims only.
	pod *corev1.Pod
	// container is its name; empty where the pod's status does not have it yet, or any more.
	// Then it is judged by the grants of all of the pod's containers.
	container string
	use       gpu.Use
	processes []gpu.Process
	granted   granted
	// place is the control group of the first of the processes. counted is what the driver
	// counts for it; nil where it limits nothing there.
	place   Place
	counted *int64
}

// holders finds the containers with processes on the GPU, and the findings of processes that
// are in no known pod.
func (in judge) holders(use gpu.Use) (holders []*holder, unowned []Finding) {
	for _, process := range use.Processes {
		owner, known := in.Owners[process.PID]
		if !known {
			continue
		}
		pod, place := in.find(owner)
		h := &holder{pod: pod, use: use, place: place}
		if pod != nil {
			h.who, h.container = Pod{pod.Namespace, pod.Name, pod.UID}, containerName(pod, place.Container)
		} else if h.who, h.granted = in.recorded(place.Pod, use.UUID); len(h.granted.grants) == 0 {
			if f, is := in.unowned(use, process, owner, place.Pod); is {
				unowned = addOnce(unowned, f)
			}
			continue
		}
		i := slices.IndexFunc(holders, func(o *holder) bool { return o.who == h.who && o.container == h.container })
		if i < 0 {
			i = len(holders)
			holders = append(holders, h)
			if pod != nil {
				h.granted = in.granted(h)
			}
		}
		holders[i].processes = append(holders[i].processes, process)
	}
	return in.count(holders, use), unowned
}

// addOnce adds the finding unless another process of the same program has it.
func addOnce(findings []Finding, f Finding) []Finding {
	if slices.ContainsFunc(findings, func(other Finding) bool { return other.key() == f.key() }) {
		return findings
	}
	return append(findings, f)
}

// unowned is the finding of a process that is in no known pod.
func (in judge) unowned(use gpu.Use, process gpu.Process, owner Owner, uid types.UID) (Finding, bool) {
	// The server of MPS holds what its clients use; they are listed themselves. The name alone proves nothing of a
	// process in a pod.
	server := owner.NamedMPSServer() && (uid == "" || owner.OfSupervisor)
	if !in.Offered[use.Index] || server {
		return Finding{}, false
	}
	whose := "belongs to no pod"
	if uid != "" {
		whose = fmt.Sprintf("is of the pod with UID %s, which is not known and was granted nothing of it", uid)
	}
	return Finding{Kind: NoPod, Index: use.Index, UUID: use.UUID, Program: cmp.Or(owner.Program, string(uid)),
		Message: fmt.Sprintf("process %d (%s) on %s %s; it holds %s", process.PID, cmp.Or(owner.Program, "unknown"),
			use.Name(), whose, amount(process.MemoryMiB))}, true
}

func amount(mib int64) string {
	if mib == gpu.UnknownMemory {
		return "an unknown amount of memory"
	}
	return fmt.Sprintf("%d MiB", mib)
}

// containerName is the name of the container that the runtime knows by that ID; empty where
// the pod's status does not have it yet.
func containerName(pod *corev1.Pod, id string) string {
	if id == "" {
		return ""
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses,
		pod.Status.EphemeralContainerStatuses} {
		for _, status := range statuses {
			if _, known, _ := strings.Cut(status.ContainerID, "://"); known == id {
				return status.Name
			}
		}
	}
	return ""
}

// container judges one container on one GPU; sharing judges how much it holds.
func (in judge) container(h *holder, out *Judgement) {
	granted := h.granted
	if len(granted.grants) == 0 {
		if f, is := in.withoutGrant(h); is {
			out.Findings = append(out.Findings, f)
		}
		return
	}
	use := ClaimUse{Namespace: h.who.Namespace, Pod: h.who.Name, Container: h.container,
		Claim: strings.Join(granted.claims, ","), Index: h.use.Index, UUID: h.use.UUID, UsedMiB: h.usedMiB(),
		GrantedMiB: granted.mib(), SMPercent: h.smPercent(), Processes: len(h.processes)}
	if h.pod == nil {
		in.gone(h, use, out)
		return
	}
	out.Claims = append(out.Claims, use)
	if f, is := h.pastLimit(); is {
		out.Findings = append(out.Findings, f)
	}
	if f, is := in.manySlots(h); is {
		out.Findings = append(out.Findings, f)
	}
	if in.TellsMPS && h.use.TellsMPS && granted.limited() && granted.byMPS() {
		i := slices.IndexFunc(h.processes, func(p gpu.Process) bool { return !p.MPSClient })
		if i >= 0 {
			out.Findings = append(out.Findings, h.finding(BesideMPS,
				"has process %d, by the node's number, on GPU %d beside "+
					"MPS, where nothing limits it", h.processes[i].PID, h.use.Index))
		}
	}
}

// withoutGrant is the finding of a container that was granted nothing of the GPU.
func (in judge) withoutGrant(h *holder) (Finding, bool) {
	if !in.Offered[h.use.Index] || in.ExemptNamespaces[h.who.Namespace] {
		return Finding{}, false
	}
	f := h.finding(NoGrant, "has %s on %s, of which no claim grants it anything; it holds %s", h.count(), h.use.Name(),
		amount(h.usedMiB()))
	f.Unread, f.AsksPlugin = h.granted.unread, deviceplugin.Holds(h.pod)
	return f, true
}

func (h *holder) finding(kind Kind, format string, args ...any) Finding {
	who := fmt.Sprintf("container %q ", h.container)
	if h.container == "" {
		who = "a container "
	}
	_, mirror := h.pod.Annotations[corev1.MirrorPodAnnotationKey]
	return Finding{Kind: kind, Pod: h.who, Container: h.container,
		Index: h.use.Index, UUID: h.use.UUID, Message: who + fmt.Sprintf(format, args...), MayEvict: !mirror}
}

// count notes what the driver counts for the holders' control groups, and adds containers of
// which it tells no processes, as where those are in PID namespaces of their own.
func (in judge) count(holders []*holder, use gpu.Use) []*holder {
	for _, c := range in.Counted[use.UUID] {
		i := slices.IndexFunc(holders, func(h *holder) bool {
			return h.place.Pod == c.Pod &&
				h.place.Container == c.Container
		})
		if i >= 0 {
			holders[i].counted = &c.MiB
			continue
		}
		pod := in.Pods[c.Pod]
		if pod == nil || c.MiB == 0 || c.Container == "" {
			continue
		}
		h := &holder{pod: pod, use: use, who: Pod{pod.Namespace, pod.Name, pod.UID}, counted: &c.MiB,
			container: containerName(pod, c.Container), place: Place{Pod: c.Pod, Container: c.Container}}
		if h.granted = in.granted(h); len(h.granted.grants) > 0 {
			holders = append(holders, h)
		}
	}
	return holders
}

// usedMiB is what the container holds: what the driver counts for its control group or, where
// that is more or nothing is counted, for its processes.
func (h *holder) usedMiB() int64 {
	sum := h.ofProcesses()
	if h.counted != nil {
		return max(sum, *h.counted)
	}
	return sum
}

// ofProcesses is what the driver tells of the processes.
func (h *holder) ofProcesses() int64 {
	var sum int64
	for _, p := range h.processes {
		sum += max(0, p.MemoryMiB)
	}
	return sum
}

// pastLimit is the finding of a container that holds more than its limit counts.
func (h *holder) pastLimit() (Finding, bool) {
	held := h.ofProcesses()
	if h.counted == nil || held <= *h.counted+slackMiB*int64(max(2, len(h.processes))) {
		return Finding{}, false
	}
	f := h.finding(PastLimit, "holds %d MiB of GPU %d in %s, of which the driver counts %d MiB against its limit", held,
		h.use.Index, h.count(), *h.counted)
	f.MayEvict = false
	return f, true
}

func (h *holder) smPercent() *int {
	sum, known := 0, false
	for _, p := range h.processes {
		if p.SMPercent != nil {
			sum, known = sum+*p.SMPercent, true
		}
	}
	if !known {
		return nil
	}
	return new(min(100, sum))
}

func (h *holder) count() string {
	if len(h.processes) == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", len(h.processes))
}

// granted is what a container was granted of a GPU.
type granted struct {
	namespace string
	grants    []claim.Grant
	// claims are the names of the claims by which it was, in order.
	claims []string
	// unread are claims of the pod of which nothing is recorded.
	unread []string
}

// granted finds what the container was granted of the GPU; of one whose name is not known,
// what all of the pod's containers were.
func (in judge) granted(h *holder) granted {
	out := granted{namespace: h.who.Namespace}
	for _, c := range claim.Containers(h.pod) {
		for _, u := range c.Uses {
			prepared := in.claims[claimName{h.who.Namespace, u.Claim}]
			if len(prepared) == 0 {
				out.unread = append(out.unread, u.Claim)
			}
			if h.container != "" && c.Name != h.container {
				continue
			}
			for _, p := range prepared {
				out.add(p, c.Used(p.Name, p.Grants), h.use.UUID)
			}
		}
	}
	slices.Sort(out.unread)
	out.unread = slices.Compact(out.unread)
	return out
}

// add adds those of the claim's grants that the container uses and that are on the GPU, with
// those that count as one with them.
func (out *granted) add(c Claim, used []claim.Grant, uuid string) {
	used = grantsOn(uuid, used)
	if len(used) == 0 {
		return
	}
	if !slices.Contains(out.claims, c.Name) {
		out.claims = append(out.claims, c.Name)
		slices.Sort(out.claims)
	}
	for _, g := range grantsOn(uuid, c.Grants) {
		mine := slices.ContainsFunc(used, g.SameContainer)
		if mine && !slices.ContainsFunc(out.grants, g.SameResult) {
			out.grants = append(out.grants, g)
		}
	}
}

func grantsOn(uuid string, grants []claim.Grant) []claim.Grant {
	var out []claim.Grant
	for _, g := range grants {
		if g.GPU.UUID == uuid {
			out = append(out, g)
		}
	}
	return out
}

// limited reports whether there is a limit that the container is to keep to: it has no whole
// GPU, is no administrator's, and nobody entitled to it has lifted its limits.
func (g granted) limited() bool {
	return !slices.ContainsFunc(g.grants, func(g claim.Grant) bool {
		return !g.Mode.Shared() || g.Admin || g.Config.IsolationDisabled()
	})
}

func (g granted) byMPS() bool {
	return slices.ContainsFunc(g.grants, func(g claim.Grant) bool { return mode.ByMPS(g.Isolation) })
}

// mib is the memory that was granted. Units are rounded once, as they are for limits.
func (g granted) mib() int64 {
	sum := g.grants[0]
	sum.Units = 0
	for _, grant := range g.grants {
		if !grant.Mode.Shared() {
			return grant.GPU.MemoryMiB
		}
		sum.Units += grant.Units
	}
	return sum.CapMiB()
}
