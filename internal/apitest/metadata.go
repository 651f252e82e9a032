// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
)

// PatchingPods returns a client of metadata that patches pods of the server, and can nothing else: client-go's own fake
// does not tell the server who patches.
func PatchingPods(server *fake.Clientset) metadata.Interface { return podPatches{server: server} }

type podPatches struct {
	metadata.Getter
	server    *fake.Clientset
	namespace string
}

// Resource implements metadata.Interface.
func (p podPatches) Resource(schema.GroupVersionResource) metadata.Getter { return p }

// Namespace implements metadata.Getter.
func (p podPatches) Namespace(namespace string) metadata.ResourceInterface {
	p.namespace = namespace
	return p
}

// Patch implements metadata.ResourceInterface.
func (p podPatches) Patch(ctx context.Context, name string, of types.PatchType, patch []byte,
	options metav1.PatchOptions, subresources ...string) (*metav1.PartialObjectMetadata, error) {
	pod, err := p.server.CoreV1().Pods(p.namespace).Patch(ctx, name, of, patch, options, subresources...)
	if err != nil {
		return nil, err
	}
	return meta.AsPartialObjectMetadata(pod), nil
}
