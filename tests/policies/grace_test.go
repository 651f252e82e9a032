// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
)

// The option grace-limit bounds for how long pods with GPUs may take to end, however that is
// asked for, and touches nothing else.
func TestGraceOfPodsWithGPUsIsBounded(t *testing.T) {
	s := newServer(t)
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	createBy := func(username string, p *corev1.Pod) error {
		return s.validate(&user.DefaultInfo{Name: username}, p, nil)
	}
	create := func(p *corev1.Pod) error { return createBy("somebody", p) }
	remove := func(p *corev1.Pod, grace *int64) error {
		var options runtime.Object = &metav1.DeleteOptions{GracePeriodSeconds: grace}
		return s.Validate(t.Context(), admission.NewAttributesRecord(nil, p, corev1.SchemeGroupVersion.WithKind("Pod"),
			p.Namespace, p.Name, pods, "", admission.Delete, options, false, somebody))
	}
	evictBy := func(username, namespace string, grace *int64) error {
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "p"}}
		if grace != nil {
			eviction.DeleteOptions = &metav1.DeleteOptions{GracePeriodSeconds: grace}
		}
		return s.Validate(t.Context(), admission.NewAttributesRecord(eviction, nil,
			policyv1.SchemeGroupVersion.WithKind("Eviction"), namespace, "p", pods, "eviction", admission.Create,
			&metav1.CreateOptions{}, false, &user.DefaultInfo{Name: username}))
	}
	evict := func(namespace string, grace *int64) error { return evictBy("somebody", namespace, grace) }
	ending := func(namespace string, seconds int64, change ...func(*corev1.Pod)) *corev1.Pod {
		p := podOf(namespace, limited("c", ""))
		p.Spec.TerminationGracePeriodSeconds = &seconds
		for _, c := range change {
			c(p)
		}
		return p
	}
	claims := func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("t")}}
	}
	extended := func(name corev1.ResourceName) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{name: resource.MustParse("1")}}}}
		}
	}
	// What programs write that run on nodes with GPUs and use none, as mlrun's pipelines.
	none := func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{limited("c", "nvidia.com/gpu 0")} }
	// Of a DeviceClass' resource there may be a request without a limit.
	withoutLimit := func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers,
			requested("r", "deviceclass.resource.kubernetes.io/exclusive.gpu.aliyun.com 1"))
	}
	const year = 31536000
	const refused = "pods with GPUs may take 600 seconds to end in namespace team, and this states a grace period of "
	const typo = `the label gpu.aliyun.com/max-grace-seconds: "2h" of namespace patient-typo is not a whole number`
	for name, test := range map[string]struct {
		err     error
		refused string
	}{
		"a year":                     {create(ending(team, year, claims)), refused + "31536000"},
		"a second more":              {create(ending(team, 601, claims)), refused + "601"},
		"as much as may be":          {create(ending(team, 600, claims)), ""},
		"an extended resource":       {create(ending(team, year, extended("nvidia.com/gpu"))), refused},
		"a DeviceClass' resource":    {create(ending(team, year, extended("deviceclass.resource.kubernetes.io/x"))), refused},
		"a request without a limit":  {create(ending(team, year, withoutLimit)), refused},
		"deletion of such a pod":     {remove(ending(team, 30, withoutLimit), ptr.To(int64(year))), refused},
		"no GPUs":                    {create(ending(team, year)), ""},
		"a limit of no GPU":          {create(ending(team, year, none)), ""},
		"another resource":           {create(ending(team, year, extended("example.com/nic"))), ""},
		"a label that allows it":     {create(ending(patient, 7200, claims)), ""},
		"more than the label allows": {create(ending(patient, 7201, claims)), "may take 7200 seconds"},
		"a label that says nothing":  {create(ending(patientTypo, 300, claims)), typo},
		"that label, no long time":   {create(ending(patientTypo, 60, claims)), ""},
		"that label, without GPUs":   {create(ending(patientTypo, year)), ""},
		"deletion":                   {remove(ending(team, 30, claims), nil), ""},
		"deletion by force":          {remove(ending(team, 30, claims), ptr.To(int64(0))), ""},
		"deletion of a long-lived":   {remove(ending(team, year, claims), nil), ""},
		// A deletion that stated nothing has the pod's own period by the time it is admitted
		// (CheckGracefulDelete in Kubernetes' pkg/registry/core/pod).
		"as the API server fills it": {remove(ending(team, year, claims), ptr.To(int64(year))), ""},
		"filled in, unusable label":  {remove(ending(patientTypo, 300, claims), ptr.To(int64(300))), ""},
		"deletion by less":           {remove(ending(team, year, claims), ptr.To(int64(7200))), ""},
		"deletion by more":           {remove(ending(team, 900, claims), ptr.To(int64(901))), refused + "901"},
		"deletion in a year":         {remove(ending(team, 30, claims), ptr.To(int64(year))), refused + "31536000"},
		"deletion without GPUs":      {remove(ending(team, 30), ptr.To(int64(year))), ""},
		"eviction":                   {evict(team, nil), ""},
		"eviction in ten minutes":    {evict(team, ptr.To(int64(600))), ""},
		"eviction in a year":         {evict(team, ptr.To(int64(year))), refused + "31536000"},
		"eviction, unusable label":   {evict(patientTypo, ptr.To(int64(300))), typo},
		// An eviction does not say whether its pod has GPUs, and who empties a node states the pod's own period.
		"a drain in less than ten minutes": {evictBy(autoscaler, hasty, ptr.To(int64(300))), ""},
		"a drain, unusable label":          {evictBy(autoscaler, patientTypo, ptr.To(int64(300))), ""},
		"preemption":                       {evictBy(preemption, hasty, ptr.To(int64(600))), ""},
		"such a pod of the drainer's":      {createBy(autoscaler, ending(team, year, claims)), refused},
		"anybody's in five minutes":        {evict(hasty, ptr.To(int64(300))), "may take 120 seconds"},
	} {
		t.Run(name, func(t *testing.T) { expect.Error(t, test.err, test.refused) })
	}
}
