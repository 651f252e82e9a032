// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"k8s.io/utils/ptr"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/ack"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

const (
	nodeName  = "n1"
	namespace = "default"
	group     = "/apis/resource.k8s.io/v1"
)

func kubeconfigOf(url string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: rest
clusters: [{name: rest, cluster: {server: %q}}]
contexts: [{name: rest, context: {cluster: rest, user: rest}}]
users: [{name: rest, user: {token: rest}}]
`, url)
}

// api imitates what the plugin asks of an API server. Nothing changes that the plugin does not write.
type api struct {
	node   *corev1.Node
	claims map[string]*resourceapi.ResourceClaim

	mu     sync.Mutex
	slices []resourceapi.ResourceSlice
	// watchers are told of the plugin's ResourceSlices.
	watchers []chan resourceapi.ResourceSlice
	version  int
}

func newAPI() *api {
	return &api{
		node: &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "n1", ResourceVersion: "1",
				Labels: map[string]string{ack.NodeLabelSchedule: string(mode.Share)}},
		},
		claims: map[string]*resourceapi.ResourceClaim{}, version: 1,
	}
}

// addClaims makes claims that have a share each, in turn on the GPUs.
func (a *api) addClaims(count, gpus int) []*drapb.Claim {
	var out []*drapb.Claim
	for i := range count {
		name := fmt.Sprintf("claim-%d", i)
		claim := &resourceapi.ResourceClaim{
			TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, ResourceVersion: "1",
				UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))},
			Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
				Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "share." + v1alpha1.DriverName}}}}},
		}
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{
				Request: "gpu", Driver: v1alpha1.DriverName, Pool: v1alpha1.PoolName(nodeName),
				Device: devices.DeviceName(i%gpus, mode.Share), ShareID: ptr.To(claim.UID),
				ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{
					v1alpha1.CapMemory: resource.MustParse("1Gi"), v1alpha1.CapCores: resource.MustParse("0"),
					v1alpha1.CapSlots: resource.MustParse("1"),
				},
			}},
		}}
		a.claims[name] = claim
		out = append(out, &drapb.Claim{Namespace: namespace, Name: name, Uid: string(claim.UID)})
	}
	return out
}

// ServeHTTP implements [http.Handler].
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query, path := r.URL.Query(), r.URL.Path
	name := path[strings.LastIndex(path, "/")+1:]
	claim := a.claims[strings.TrimSuffix(path, "/status")[strings.LastIndex(strings.TrimSuffix(path, "/status"), "/")+1:]]
	switch {
	case path == "/version":
		answer(w, http.StatusOK, map[string]string{"major": "1", "minor": "37", "gitVersion": "v1.37.1"})
	case query.Get("sendInitialEvents") != "":
		// Clients list then, and watch.
		answer(w, http.StatusUnprocessableEntity, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
	case query.Get("watch") != "":
		own := strings.HasSuffix(path, "/resourceslices") && !strings.Contains(query.Get("fieldSelector"), "driver!=")
		a.watch(w, r, own)
	case path == "/api/v1/nodes/"+nodeName:
		answer(w, http.StatusOK, a.node)
	case path == "/api/v1/nodes":
		answer(w, http.StatusOK, corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Node{*a.node}})
	case claim != nil:
		answer(w, http.StatusOK, claim)
	case strings.HasPrefix(path, group+"/resourceslices") && r.Method != http.MethodGet:
		a.write(w, r)
	case r.Method == http.MethodGet && name == "resourceslices":
		a.list(w, query.Get("fieldSelector"))
	case r.Method == http.MethodGet && name == "resourceclaims":
		answer(w, http.StatusOK, a.claimList())
	case r.Method == http.MethodGet && name == "pods":
		answer(w, http.StatusOK, corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
			ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
	case r.Method == http.MethodPost && name == "events":
		if object := decode(r); object != nil {
			answer(w, http.StatusCreated, object)
		}
	default:
		answer(w, http.StatusNotFound, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
	}
}

func (a *api) claimList() resourceapi.ResourceClaimList {
	list := resourceapi.ResourceClaimList{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1",
		Kind: "ResourceClaimList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	for _, c := range a.claims {
		list.Items = append(list.Items, *c)
	}
	return list
}

func (a *api) list(w http.ResponseWriter, selector string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := resourceapi.ResourceSliceList{TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1",
		Kind: "ResourceSliceList"}, ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(a.version)}}
	if !strings.Contains(selector, "driver!=") {
		list.Items = slices.Clone(a.slices)
	}
	answer(w, http.StatusOK, list)
}

func (a *api) write(w http.ResponseWriter, r *http.Request) {
	slice, ok := decode(r).(*resourceapi.ResourceSlice)
	if !ok {
		answer(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusSuccess})
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	slice.TypeMeta = metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"}
	slice.ResourceVersion = fmt.Sprint(a.version)
	if slice.Name == "" {
		slice.Name = fmt.Sprintf("%s%d", slice.GenerateName, a.version)
	}
	slice.UID = types.UID(slice.Name)
	if r.URL.Query().Get("dryRun") == "" {
		a.slices = append(slices.DeleteFunc(a.slices, func(s resourceapi.ResourceSlice) bool { return s.Name == slice.Name }),
			*slice)
		for _, c := range a.watchers {
			c <- *slice
		}
	}
	answer(w, http.StatusOK, slice)
}

// watch tells of the plugin's slices, or of nothing, until the client has gone.
func (a *api) watch(w http.ResponseWriter, r *http.Request, own bool) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	told := make(chan resourceapi.ResourceSlice, 100)
	if own {
		a.mu.Lock()
		a.watchers = append(a.watchers, told)
		a.mu.Unlock()
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case slice := <-told:
			object, err := json.Marshal(slice)
			if err != nil {
				return
			}
			event, err := json.Marshal(metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: object}})
			if err != nil {
				return
			}
			_, _ = w.Write(event)
			_ = flush.Flush()
		}
	}
}

func decode(r *http.Request) runtime.Object {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil
	}
	return object
}

func answer(w http.ResponseWriter, status int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// Who does not wait for the answer needs none.
	_ = json.NewEncoder(w).Encode(object)
}
