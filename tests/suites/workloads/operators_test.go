// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package workloads

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/internal/expect"
	"github.com/gpushare/dra-driver-gpushare/tests/harness"
	"github.com/gpushare/dra-driver-gpushare/tests/harness/component"
)

// sparkLabel is on the pods that Spark makes for its operator, whose webhook changes those.
const sparkLabel = "sparkoperator.k8s.io/launched-by-spark-operator"

// operatorGiB is what each pod of demo/operators asks for.
const operatorGiB = 4

// The manifests of docs/training.md: the pods that each operator makes of its object have a GPU and the limit of their
// share. They are made here by the operator's rules, as read; lane operators has the real ones that can be built.
func TestPodsOfOperators(t *testing.T) {
	tests := map[string]func(*unstructured.Unstructured) []corev1.PodSpec{
		"inferenceservice": podSpecs,
		"jobset":           podSpecs,
		"leaderworkerset":  podSpecs,
		"pytorchjob":       podSpecs,
		"raycluster":       podSpecs,
		"sparkapplication": podsOfSpark,
		"trainjob":         podsOfTrainer,
		"workflow":         podsOfArgo,
	}
	manifests, err := filepath.Glob(filepath.Join(checkout, "demo", "operators", "*.yaml"))
	if err != nil || len(manifests) != len(tests) {
		t.Fatalf("demo/operators has %q (%v), and %d are tested", manifests, err, len(tests))
	}
	for name, made := range tests {
		t.Run(name, func(t *testing.T) {
			ns := cluster.Namespace(t)
			if name == "sparkapplication" {
				addLimits(t, ns)
			}
			var all []corev1.PodSpec
			for _, object := range objectsOf(t, filepath.Join(checkout, "demo", "operators", name+".yaml")) {
				if object.GetKind() == "ResourceClaimTemplate" {
					var template resourceapi.ResourceClaimTemplate
					into(t, object.Object, &template)
					ns.Template(t, template.Name, template.Spec.Spec)
					continue
				}
				all = append(all, made(object)...)
			}
			with := 0
			for i, spec := range all {
				pod := harness.Pod(fmt.Sprint("pod-", i), mpsNode)
				if name == "sparkapplication" {
					pod.Labels = map[string]string{sparkLabel: "true"}
				}
				pod.Spec.ResourceClaims = spec.ResourceClaims
				pod.Spec.Containers[0].Resources = spec.Containers[0].Resources
				ns.Run(t, pod)
				asks := len(spec.Containers[0].Resources.Claims)+len(spec.Containers[0].Resources.Limits) > 0
				if !asks && name != "sparkapplication" {
					continue // the head of Ray
				}
				with++
				grants := ns.Granted(t, pod.Name)
				if len(grants) != 1 || grants[0].Units != operatorGiB {
					t.Fatalf("a pod of %s was granted %+v, want %d GiB of a GPU", name, grants, operatorGiB)
				}
				ns.SeesItsGPUs(t, pod.Name, "main", grants)
				want := fmt.Sprintf("0=%dM", gpuMiB*operatorGiB/gpuGiB)
				if got := ns.GPUEnv(t, pod.Name, "main")["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"]; got != want {
					t.Errorf("a pod of %s has the limit %q, want %q", name, got, want)
				}
			}
			if with == 0 {
				t.Errorf("no pod of %s asks for a GPU", name)
			}
		})
	}
}

// objectsOf are those of a manifest.
func objectsOf(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, object := range component.Read(t, file) {
		all = append(all, &unstructured.Unstructured{Object: object})
	}
	return all
}

func into(t *testing.T, from map[string]any, to any) {
	t.Helper()
	expect.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(from, to))
}

// podSpecs are those that an object has anywhere.
func podSpecs(object *unstructured.Unstructured) []corev1.PodSpec {
	return specsIn(object.Object)
}

func specsIn(value any) []corev1.PodSpec {
	var found []corev1.PodSpec
	switch value := value.(type) {
	case map[string]any:
		if _, has := value["containers"]; has {
			var spec corev1.PodSpec
			if runtime.DefaultUnstructuredConverter.FromUnstructured(value, &spec) == nil {
				return []corev1.PodSpec{spec}
			}
		}
		for _, inner := range value {
			found = append(found, specsIn(inner)...)
		}
	case []any:
		for _, inner := range value {
			found = append(found, specsIn(inner)...)
		}
	}
	return found
}

// podsOfTrainer puts resourcesPerNode into the container “node” of a runtime's pods.
func podsOfTrainer(object *unstructured.Unstructured) []corev1.PodSpec {
	if object.GetKind() != "TrainJob" {
		return nil
	}
	perNode, _, _ := unstructured.NestedMap(object.Object, "spec", "trainer", "resourcesPerNode")
	return specsIn(map[string]any{"containers": []any{map[string]any{"name": "node", "resources": perNode}}})
}

// podsOfArgo have a template's container.
func podsOfArgo(object *unstructured.Unstructured) []corev1.PodSpec {
	var all []corev1.PodSpec
	templates, _, _ := unstructured.NestedSlice(object.Object, "spec", "templates")
	for _, template := range templates {
		fields, _ := template.(map[string]any)
		all = append(all, specsIn(map[string]any{"containers": []any{fields["container"]}})...)
	}
	return all
}

// podsOfSpark ask for no GPU: Spark makes them before the webhook of its operator sees them.
func podsOfSpark(*unstructured.Unstructured) []corev1.PodSpec {
	return []corev1.PodSpec{{Containers: []corev1.Container{{Name: "spark-kubernetes-executor"}}}}
}

// addLimits is the part of Spark's webhook that matters here: it adds the limit of demo/operators/sparkapplication.yaml
// to pods with Spark's label.
func addLimits(t *testing.T, ns *harness.Namespace) {
	t.Helper()
	application := objectsOf(t, filepath.Join(checkout, "demo", "operators", "sparkapplication.yaml"))[0]
	name, _, _ := unstructured.NestedString(application.Object, "spec", "executor", "gpu", "name")
	quantity, found, err := unstructured.NestedFieldNoCopy(application.Object, "spec", "executor", "gpu", "quantity")
	if err != nil || !found {
		t.Fatalf("the SparkApplication has no quantity of GPUs: %v", err)
	}
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/spec/containers/0/resources",
		"value": map[string]any{"limits": map[string]string{name: fmt.Sprint(quantity)}}}})
	expect.NoError(t, err)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "no AdmissionReview", http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, Patch: patch,
			PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review) // the API server refuses the pod if it reads less
	}))
	t.Cleanup(server.Close)

	configurations := cluster.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err = configurations.Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "spark-" + ns.Name},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "limits.spark.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      ptr.To(server.URL),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
					Resources: []string{"pods"}},
			}},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns.Name}},
			ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{sparkLabel: "true"}},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}, metav1.CreateOptions{})
	expect.NoError(t, err)
	t.Cleanup(func() {
		if err := configurations.Delete(harness.Context(t), "spark-"+ns.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	probed := harness.Pod("probe", mpsNode)
	probed.Labels = map[string]string{sparkLabel: "true"}
	harness.Eventually(t, "the API server to ask the webhook", func(ctx context.Context) error {
		admitted, err := ns.Admitted(ctx, probed)
		if err == nil && len(admitted.Spec.ResourceClaims) == 0 {
			err = errors.New("the pod has no claim")
		}
		return err
	})
}
