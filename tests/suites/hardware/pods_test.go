// SPDX-License-Identifier: Apache-2.0

//go:build hardware

package hardware

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
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
	more, privileged bool
	// enforced has the stand-in for CUDA obey the compute mode of a simulated GPU.
	enforced bool
}

func (p pod) object() *corev1.Pod {
	o := harness.Pod(p.name, here.node)
	o.Spec.HostNetwork, o.Spec.TerminationGracePeriodSeconds = true, ptr.To(int64(1))
	c := &o.Spec.Containers[0]
	c.Image, c.ImagePullPolicy = here.image, corev1.PullIfNotPresent
	c.Env = []corev1.EnvVar{{Name: "CUDAPROBE_LIBRARY", Value: here.driver.CUDA}}
	c.SecurityContext = &corev1.SecurityContext{Privileged: &p.privileged}
	if p.uid != 0 {
		c.SecurityContext.RunAsUser, c.SecurityContext.RunAsGroup = &p.uid, &p.uid
	}
	if p.enforced && here.simulated != "" {
		const dir = "/simulated-state"
		o.Spec.Volumes = []corev1.Volume{{Name: "state", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(here.simulated, sim.StateDir)}}}}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "state", MountPath: dir}}
		c.Env = append(c.Env, corev1.EnvVar{Name: "SIMULATED_STATE", Value: filepath.Join(dir, here.gpu().UUID)})
	}
	for i := 0; i+1 < len(p.limits); i += 2 {
		if c.Resources.Limits == nil {
			c.Resources.Limits = corev1.ResourceList{}
		}
		c.Resources.Limits[corev1.ResourceName(p.limits[i])] = resource.MustParse(p.limits[i+1])
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
	s.check(what, "Running", "Running", true)
}

// claim is the claim of a pod, which may have been made for its limits.
func (s *step) claim(ctx context.Context, name string) (*resourceapi.ResourceClaim, error) {
	p, err := here.Client.CoreV1().Pods(s.ns.Name).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	claim := ""
	for _, status := range p.Status.ResourceClaimStatuses {
		claim = ptr.Deref(status.ResourceClaimName, "")
	}
	if extended := p.Status.ExtendedResourceClaimStatus; extended != nil {
		claim = extended.ResourceClaimName
	}
	return here.Client.ResourceV1().ResourceClaims(s.ns.Name).Get(ctx, claim, metav1.GetOptions{})
}

// devices are the devices that a pod's claim was allocated.
func (s *step) devices(name string) string {
	s.Helper()
	c, err := s.claim(s.Context(), name)
	if err != nil || c.Status.Allocation == nil {
		s.Fatalf("the claim of pod %s is not allocated: %v", name, err)
	}
	var names []string
	for _, result := range c.Status.Allocation.Devices.Results {
		names = append(names, result.Device)
	}
	return strings.Join(names, ", ")
}

// stream runs a program in a container.
func (s *step) stream(pod, container string, argv []string, in io.Reader, out, messages io.Writer) error {
	request := here.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(s.ns.Name).Name(pod).
		SubResource("exec").VersionedParams(&corev1.PodExecOptions{Container: container, Command: argv, Stdin: true,
		Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewSPDYExecutor(here.Config, "POST", request.URL())
	if err != nil {
		return err
	}
	return executor.StreamWithContext(s.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: messages})
}

// exec runs a program in a pod with this as its standard input, and returns what it prints, also where it fails.
func (s *step) exec(pod, input string, argv ...string) (string, error) {
	var out harness.Output
	err := s.stream(pod, "main", argv, strings.NewReader(input), &out, &out)
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
		err := s.stream(pod, container, append([]string{"/cudaprobe"}, args...), fromTest, toTest, &p.messages)
		p.ended <- err
		_ = errors.Join(toTest.Close(), fromTest.Close())
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
	if err != nil {
		s.Fatal(err)
	}
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
func (s *step) spin(seconds int, pods ...string) []view {
	s.Helper()
	var programs []*program
	for _, name := range pods {
		p, err := s.launch(name, "main", "spin", strconv.Itoa(seconds))
		if err != nil {
			s.Fatal(err)
		}
		programs = append(programs, p)
	}
	for _, p := range programs {
		p.goOn()
	}
	var views []view
	for _, p := range programs {
		answer, err := p.line()
		if err != nil {
			s.Fatal(err)
		}
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
	const variable = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	limit := here.capMiB(units)
	told, want := s.ns.GPUEnv(s.T, pod, "main")[variable], fmt.Sprintf("0=%dM", limit)
	s.check("limit in the container's environment", want, told, told == want)
	v := s.meminfo(pod)
	s.check("free memory, as a CUDA program sees it", fmt.Sprintf("at most %d MiB", limit),
		fmt.Sprintf("%s: %d MiB below the limit (CUDA context)", v, limit-v.freeMiB), v.freeMiB <= limit)
	for _, try := range []struct {
		mib  int64
		want string
	}{{limit / 2, granted}, {limit + 1, outOfMemory}} {
		answer := s.cuda(pod, "alloc", fmt.Sprint(try.mib))
		s.check(fmt.Sprintf("allocation of %d MiB", try.mib), try.want, answer, answer == try.want)
	}
}
