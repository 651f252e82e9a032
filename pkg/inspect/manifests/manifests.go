// SPDX-License-Identifier: Apache-2.0

// Package manifests reads the manifests of users for kubectl inspect cgpu plan: what makes
// pods, and what these ask for.
package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/plan"
)

// groupDRA is the API group of claims; its older versions are read as far as they say the same
// as the one that the driver uses.
const groupDRA = "resource.k8s.io"

// Reader puts manifests together.
type Reader struct {
	// Namespace is that of objects that name none.
	Namespace string

	found   []found
	skipped []plan.Skipped
	// objects reports whether there were any.
	objects bool
}

// found is an object that was read. key is empty for an object without a name, put is nil for one that is skipped.
type found struct {
	key  string
	from plan.Source
	put  func(*plan.Manifests)
}

// Manifests are those that were read.
func (r *Reader) Manifests() plan.Manifests {
	m := plan.Manifests{Skipped: r.skipped}
	for _, f := range r.found {
		if f.put != nil {
			f.put(&m)
		}
	}
	return m
}

// Read reads the documents of a file, YAML or JSON. Errors name the file and the document.
func (r *Reader) Read(file string, in io.Reader) error {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(in))
	for n := 1; ; n++ {
		data, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		from := plan.Source{File: file, Document: n}
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		if err := r.document(from, data); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
	}
}

// document reads one document; one without anything in it is none.
func (r *Reader) document(from plan.Source, data []byte) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	json, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return oneLine(err)
	}
	if string(json) == "null" {
		return nil
	}
	return r.object(from, json)
}

// described is what all objects say of themselves.
type described struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name         string `json:"name"`
		GenerateName string `json:"generateName"`
		Namespace    string `json:"namespace"`
	} `json:"metadata"`
	Items []runtime.RawExtension `json:"items"`
}

// String names it, as in Deployment/train.
func (d *described) String() string {
	name := d.Metadata.Name
	if name == "" {
		name = d.Metadata.GenerateName
	}
	return d.Kind + "/" + name
}

func (r *Reader) object(from plan.Source, json []byte) error {
	if !bytes.HasPrefix(json, []byte("{")) {
		return errors.New("this is no Kubernetes object: it is no map with apiVersion and kind")
	}
	r.objects = true
	var d described
	if err := yaml.Unmarshal(json, &d); err != nil {
		return fmt.Errorf("this is no Kubernetes object: %w", oneLine(err))
	}
	if d.Kind == "" || d.APIVersion == "" {
		return errors.New("this is no Kubernetes object: it has no apiVersion or no kind")
	}
	if strings.HasSuffix(d.Kind, "List") && d.Items != nil {
		for i, item := range d.Items {
			if err := r.object(from, item.Raw); err != nil {
				return fmt.Errorf("item %d: %w", i+1, err)
			}
		}
		return nil
	}
	version, err := schema.ParseGroupVersion(d.APIVersion)
	if err != nil {
		return fmt.Errorf("%s: %w", &d, err)
	}
	if version.Group == groupDRA && version.Version == "v1beta2" {
		// The same fields as in v1.
		json = bytes.Replace(json, []byte(groupDRA+"/v1beta2"), []byte(groupDRA+"/v1"), 1)
		version.Version = resourceapi.SchemeGroupVersion.Version
	}
	kind := version.WithKind(d.Kind)
	if !scheme.Scheme.Recognizes(kind) {
		r.skip(from, &d, fmt.Sprintf("%s of %s is not known here: pods that it makes are not planned", d.Kind, d.APIVersion))
		return nil
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	object, _, err := decoder.Decode(json, &kind, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", &d, oneLine(err))
	}
	return r.add(from, &d, object)
}

func (r *Reader) skip(from plan.Source, d *described, why string) {
	r.skipped = append(r.skipped, plan.Skipped{Source: from, Object: d.String(), Why: why})
}

// remember keeps an object, in place of an earlier one of its name: to the API server, the later one is a change of it.
func (r *Reader) remember(from plan.Source, d *described, namespace string, put func(*plan.Manifests)) {
	key := ""
	if d.Metadata.Name != "" {
		key = d.APIVersion + " " + namespace + " " + d.String()
	}
	first := slices.IndexFunc(r.found, func(f found) bool { return key != "" && f.key == key })
	if first >= 0 {
		r.skip(r.found[first].from, d, "the one of "+from.String()+" takes its place")
		r.found = slices.Delete(r.found, first, first+1)
	}
	r.found = append(r.found, found{key, from, put})
}

// oneLine is an error on one line: those of decoders can have several.
func oneLine(err error) error {
	lines := slices.DeleteFunc(strings.Split(err.Error(), "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return errors.New(strings.Join(lines, " "))
}
