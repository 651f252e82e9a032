// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
)

// plugin is the driver's program that is on each node.
const plugin = "gpu-kubelet-plugin"

// programs are those that the driver is installed with, and their service accounts.
var programs = []string{plugin, "gpu-compat-controller", "gpu-mps-supervisor"}

// Driver knows the driver's own programs. Its label alone anybody can give, and then all that
// they run would be in the archive.
type Driver struct{ namespaces map[string]bool }

// DriverOf finds out where the driver is: where its plugin is, which is privileged and runs
// under the plugin's service account.
func DriverOf(s *doctor.Snapshot) Driver {
	d := Driver{map[string]bool{}}
	add := func(labels metav1.Object, spec *corev1.PodSpec) {
		if ofDriver(labels) && spec.ServiceAccountName == plugin && IsPrivileged(spec) {
			d.namespaces[labels.GetNamespace()] = true
		}
	}
	for _, o := range s.DaemonSets {
		add(o, &o.Spec.Template.Spec)
	}
	for _, o := range s.Pods {
		add(o, &o.Spec)
	}
	return d
}

// IsPrivileged reports whether one of the pod's containers is privileged.
func IsPrivileged(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool {
		return c.SecurityContext != nil && ptr.Deref(c.SecurityContext.Privileged, false)
	})
}

// Namespaces are those that the driver is in.
func (d Driver) Namespaces() []string { return slices.Sorted(maps.Keys(d.namespaces)) }

// Owns reports whether an object with pods of the spec, or a pod itself, is the driver's.
func (d Driver) Owns(o metav1.Object, spec *corev1.PodSpec) bool {
	return ofDriver(o) && d.namespaces[o.GetNamespace()] && slices.Contains(programs, spec.ServiceAccountName)
}

// ofDriver reports whether an object has the label of those that the driver is installed with.
func ofDriver(object metav1.Object) bool { return object.GetLabels()[labelName] == driverName }

// redacted stands for a value that is left out.
const redacted = "(left out)"

var (
	// secret is what names of settings and arguments have whose values are.
	secret = regexp.MustCompile(`(?i)secret|token|pass|pwd|dsn|credential|key|auth`)
	// login is the part of a URL that says who asks, and the password.
	login = regexp.MustCompile(`://[^\s/@]*:[^\s/]*@`)
)

// valueOf is the value of a setting, without what is secret of it.
func valueOf(name, value string) string {
	if value != "" && secret.MatchString(name) {
		return redacted
	}
	return login.ReplaceAllString(value, "://"+redacted+"@")
}

// arguments are those of a command, without what is secret of them.
func arguments(all []string) []string {
	out := slices.Clone(all)
	for i, argument := range out {
		name, value, is := strings.Cut(argument, "=")
		flag := strings.HasPrefix(argument, "-")
		switch {
		case flag && is:
			out[i] = name + "=" + valueOf(name, value)
		case !flag && i > 0 && strings.HasPrefix(all[i-1], "-") && !strings.Contains(all[i-1], "="):
			out[i] = valueOf(all[i-1], argument)
		default:
			out[i] = valueOf("", argument)
		}
	}
	return out
}
