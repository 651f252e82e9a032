// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/standins/sim"
)

// pod is a pod whose containers wait for programs to be run in them.
type pod struct {
	name string
	// template is that of its claim, if it has one.
	template string
	// limits are those of a pod as on ACK: names and amounts in turn.
	limits []string
	// uid is the user of its containers; 0 is root.
	uid int64
	// more is a second container, "second".
	more bool
	// enforced has the stand-in for CUDA obey the compute mode of a simulated GPU.
	enforced bool
}

func (p pod) object() *corev1.Pod {
	o := harness.Pod(p.name, here.node)
	o.Spec.HostNetwork, o.Spec.TerminationGracePeriodSeconds = true, ptr.To(int64(1))
	c := &o.Spec.Containers[0]
	c.Image, c.ImagePullPolicy = here.image, corev1.PullIfNotPresent
	c.Env = []corev1.EnvVar{{Name: "CUDAPROBE_LIBRARY", Value: here.driver.CUDA}}
	if p.uid != 0 {
		c.SecurityContext = &corev1.SecurityContext{RunAsUser: &p.uid, RunAsGroup: &p.uid}
	}
	if p.enforced && here.simulated != "" {
		const dir = "/simulated-state"
		o.Spec.Volumes = []corev1.Volume{{Name: "state", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(here.simulated, sim.StateDir)}}}}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "state", MountPath: dir}}
		c.Env = append(c.Env, corev1.EnvVar{Name: "SIMULATED_STATE", Value: filepath.Join(dir, here.gpu().UUID)})
	}
	for i := 0; i+1 < len(p.limits); i += 2 {
		harness.Limit(corev1.ResourceName(p.limits[i]), p.limits[i+1])(o)
	}
	if p.more {
		second := c.DeepCopy()
		second.Name = "second"
		o.Spec.Containers = append(o.Spec.Containers, *second)
	}
	if p.template != "" {
		harness.FromTemplate(p.template)(o)
	}
	return o
}

// template makes a ResourceClaimTemplate with a request.
func (s *step) template(name string, request resourceapi.DeviceRequest) {
	s.Helper()
	s.ns.Template(s.T, name, harness.Requests(request))
}

// share is a request for a share of the GPU that the tests are about, by the name of its mode in DeviceClasses.
func share(class string, units int64, cores int) resourceapi.DeviceRequest {
	amounts := []string{"memory", fmt.Sprintf("%dGi", units)}
	if cores > 0 {
		amounts = append(amounts, "cores", strconv.Itoa(cores))
	}
	return harness.Capped(class, here.gpu().Index, amounts...)
}

func (s *step) create(pods ...pod) {
	s.Helper()
	for _, p := range pods {
		s.ns.Create(s.T, p.object())
	}
}

// start makes pods, waits until they run, and has a row for it.
func (s *step) start(what string, pods ...pod) {
	s.Helper()
	s.clock()
	s.create(pods...)
	for _, p := range pods {
		s.ns.WaitRunning(s.T, p.name)
	}
	s.came(what, "Running")
}

// shared starts pods with a share each.
func (s *step) shared(what, class string, units int64, cores int, pods ...pod) {
	s.Helper()
	s.template(pods[0].name, share(class, units, cores))
	for i := range pods {
		pods[i].template = pods[0].name
	}
	s.start(what, pods...)
}

// whole starts a pod with a claim for so many GPUs.
func (s *step) whole(what string, count int, p pod) {
	s.Helper()
	p.template = p.name
	s.template(p.name, harness.Exclusive("gpu", int64(count)))
	s.start(what, p)
}

// devices are the devices that a pod's claim was allocated.
func (s *step) devices(name string) string {
	s.Helper()
	var names []string
	for _, result := range s.ns.ClaimOf(s.T, name).Status.Allocation.Devices.Results {
		names = append(names, result.Device)
	}
	return strings.Join(names, ", ")
}

// exec runs a program in a pod with this as its standard input, and returns what it prints, also where it fails.
func (s *step) exec(pod, input string, argv ...string) (string, error) {
	var out harness.Output
	err := s.ns.Stream(s.Context(), pod, "main", argv,
		remotecommand.StreamOptions{Stdin: strings.NewReader(input), Stdout: &out, Stderr: &out})
	return out.String(), err
}

// program is a CUDA program (testdata/cudaprobe.c) that says "ready", waits for lines, and answers in lines.
type program struct {
	name     string
	input    *io.PipeWriter
	output   *bufio.Scanner
	messages harness.Output
	// ended has why it ended.
	ended chan error
}

// launch starts a CUDA program in a container, and returns when it has a context on the GPU.
func (s *step) launch(pod, container string, args ...string) (*program, error) {
	fromTest, input := io.Pipe()
	output, toTest := io.Pipe()
	p := &program{name: fmt.Sprintf("/cudaprobe %s in pod %s", strings.Join(args, " "), pod), input: input,
		output: bufio.NewScanner(output), ended: make(chan error, 1)}
	go func() {
		p.ended <- s.ns.Stream(s.Context(), pod, container, append([]string{"/cudaprobe"}, args...),
			remotecommand.StreamOptions{Stdin: fromTest, Stdout: toTest, Stderr: &p.messages})
		// An end of the input, and no error, for what still reads it and would log that.
		_ = errors.Join(toTest.Close(), input.Close())
	}()
	// One that waits for a line is let go.
	s.Cleanup(func() { _ = p.input.Close() })
	line, err := p.line()
	if err == nil && line != "ready" {
		err = fmt.Errorf("%s said %q before it was ready", p.name, line)
	}
	return p, err
}

func (p *program) line() (string, error) {
	if p.output.Scan() {
		return p.output.Text(), nil
	}
	return "", fmt.Errorf("%s said nothing: %w: %s", p.name, <-p.ended, strings.TrimSpace(p.messages.String()))
}

// goOn lets it do what it is for.
func (p *program) goOn() { _, _ = io.WriteString(p.input, "\n") }

// next lets it go on, and waits for what it says.
func (p *program) next() (string, error) {
	p.goOn()
	return p.line()
}

// running is launch for what has to run.
func (s *step) running(pod string, args ...string) *program {
	s.Helper()
	p, err := s.launch(pod, "main", args...)
	s.must(err)
	return p
}

// try runs a CUDA program in a pod to its answer.
func (s *step) try(pod string, args ...string) (string, error) {
	p, err := s.launch(pod, "main", args...)
	if err != nil {
		return "", err
	}
	return p.next()
}

// cuda is try for what has to run.
func (s *step) cuda(pod string, args ...string) string {
	s.Helper()
	answer, err := s.try(pod, args...)
	s.must(err)
	return answer
}

// What the program answers to an allocation.
const (
	granted     = "granted"
	outOfMemory = "CUDA_ERROR_OUT_OF_MEMORY"
)

// view is what a CUDA program sees of its GPU.
type view struct {
	freeMiB, totalMiB, sms int64
	rate                   float64 // kernels per second, of a program that spins
}

func (s *step) view(answer string) view {
	s.Helper()
	var v view
	if n, err := fmt.Sscanf(answer, "free %d total %d sms %d rate %f", &v.freeMiB, &v.totalMiB, &v.sms, &v.rate); n < 3 {
		s.Fatalf("the CUDA program said %q: %v", answer, err)
	}
	return v
}

func (v view) String() string {
	if v.rate == 0 {
		return fmt.Sprintf("%d of %d MiB free, %d SMs", v.freeMiB, v.totalMiB, v.sms)
	}
	return fmt.Sprintf("%.1f kernels/s on %d SMs", v.rate, v.sms)
}

func (s *step) meminfo(pod string) view {
	s.Helper()
	return s.view(s.cuda(pod, "meminfo"))
}

// runs checks that a CUDA program runs in a pod.
func (s *step) runs(what, pod string) {
	s.Helper()
	v := s.meminfo(pod)
	s.check(what, "runs", v.String(), v.totalMiB > 0)
}

// spin has programs in pods busy at the same time, for so many seconds.
func (s *step) spin(seconds int, pods ...string) (views []view) {
	s.Helper()
	var programs []*program
	for _, name := range pods {
		programs = append(programs, s.running(name, "spin", strconv.Itoa(seconds)))
	}
	for _, p := range programs {
		p.goOn()
	}
	for _, p := range programs {
		answer, err := p.line()
		s.must(err)
		views = append(views, s.view(answer))
	}
	return views
}

// hasGPUs checks how many GPUs' device nodes a container has.
func (s *step) hasGPUs(pod string, want int) {
	s.Helper()
	got := s.ns.GPUNodes(s.T, pod, "main")
	s.check("device nodes of GPUs in the container", strconv.Itoa(want),
		fmt.Sprintf("%d: %s", len(got), strings.Join(got, " ")), len(got) == want)
}

// isLimited checks that a pod's programs are held to a share of so many GiB: by what they are told, and by what they
// can allocate.
func (s *step) isLimited(pod string, units int64) {
	s.Helper()
	limit := here.capMiB(units)
	s.same("limit in the container's environment", fmt.Sprintf("0=%dM", limit),
		s.ns.GPUEnv(s.T, pod, "main")[memoryVariable])
	v := s.meminfo(pod)
	s.check("free memory, as a CUDA program sees it", fmt.Sprintf("at most %d MiB", limit),
		fmt.Sprintf("%s: %d MiB below the limit (CUDA context)", v, limit-v.freeMiB), v.freeMiB <= limit)
	s.allocates(pod, limit/2, granted)
	s.allocates(pod, limit+1, outOfMemory)
}

func (s *step) allocates(pod string, mib int64, want string) {
	s.Helper()
	s.same(fmt.Sprintf("allocation of %d MiB", mib), want, s.cuda(pod, "alloc", fmt.Sprint(mib)))
}
