// SPDX-License-Identifier: Apache-2.0

// Package metafile makes the files by which containers learn what they were given, in the
// format and at the place that Kubernetes has for all drivers (KEP-5304). The amounts of a
// share are attributes there.
//
// The kubeletplugin helper can do this, too. It would take one more CDI spec for each
// request, and its files would outlive a claim that the kubelet does not ask to unprepare.
package metafile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/atomicfile"
	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
)

// Claim is a prepared claim.
type Claim struct {
	Namespace, Name string
	UID             types.UID
	// PodClaimName is what the pod calls the claim, if it was made of a template.
	PodClaimName string
	Grants       []claim.Grant
}

const (
	dirPerm  = 0o755
	filePerm = 0o644
)

// Dir is where the files of all claims are on the host: a directory for each claim, and in
// it a file for each request. It is the path by which the container runtime finds it. In the
// empty Dir nothing is written, and nothing is missing.
type Dir string

// Write writes the claim's files, and returns what mounts them in a container, by request.
// It is idempotent: a file that says the same stays.
func (d Dir) Write(c Claim) (map[string]*specs.Mount, error) {
	mounts := map[string]*specs.Mount{}
	if d == "" {
		return mounts, nil
	}
	for request, content := range contents(c) {
		path := d.path(c.UID, request)
		data, err := json.Marshal(content)
		if err != nil {
			return nil, fmt.Errorf("encode the device metadata of request %s: %w", request, err)
		}
		if err := os.MkdirAll(filepath.Dir(path), dirPerm); err != nil {
			return nil, fmt.Errorf("make the directory of device metadata: %w", err)
		}
		// Not synced: like the CDI spec it is written again from the claim's record. A plugin does so when it starts, while
		// containers of the claim may be starting.
		if err := atomicfile.Ensure(path, append(data, '\n'), filePerm); err != nil {
			return nil, fmt.Errorf("write the device metadata of request %s: %w", request, err)
		}
		mounts[request] = &specs.Mount{HostPath: path, ContainerPath: inContainer(c, request),
			Options: []string{"ro", "nosuid", "nodev", "noexec", "bind"}}
	}
	return mounts, nil
}

// Exists reports whether all of the claim's files are there.
func (d Dir) Exists(c Claim) (bool, error) {
	if d == "" {
		return true, nil
	}
	for request := range contents(c) {
		_, err := os.Stat(d.path(c.UID, request))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("look for the device metadata of claim %s: %w", c.UID, err)
		}
	}
	return true, nil
}

// Remove removes the claim's files; that there are none is no error.
func (d Dir) Remove(uid types.UID) error {
	if d == "" {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(string(d), string(uid))); err != nil {
		return fmt.Errorf("remove the device metadata of claim %s: %w", uid, err)
	}
	return nil
}

func (d Dir) path(uid types.UID, request string) string {
	return filepath.Join(string(d), string(uid), request+".json")
}

// inContainer is where a container finds the file of a request.
func inContainer(c Claim, request string) string {
	if c.PodClaimName != "" {
		return metadata.ResourceClaimTemplateFilePath(v1alpha1.DriverName, c.PodClaimName, request)
	}
	return metadata.ResourceClaimFilePath(v1alpha1.DriverName, c.Name, request)
}

// Request is the request by which containers know a grant: without the subrequest.
func Request(g claim.Grant) string { return resourceclaim.BaseRequestRef(g.Request) }

// contents are the files' contents, by request.
func contents(c Claim) map[string]*metadatav1beta1.DeviceMetadata {
	out := map[string]*metadatav1beta1.DeviceMetadata{}
	for _, result := range claim.Results(c.Grants) {
		request := Request(result[0])
		if out[request] == nil {
			out[request] = &metadatav1beta1.DeviceMetadata{
				TypeMeta: metav1.TypeMeta{APIVersion: metadatav1beta1.SchemeGroupVersion.String(), Kind: "DeviceMetadata"},
				ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name, UID: c.UID,
					Generation: 1},
				Requests: []metadatav1beta1.DeviceMetadataRequest{{Name: result[0].Request}},
			}
			if c.PodClaimName != "" {
				out[request].PodClaimName = &c.PodClaimName
			}
		}
		of := &out[request].Requests[0]
		of.Devices = append(of.Devices, metadatav1beta1.Device{Driver: v1alpha1.DriverName, Pool: result[0].Pool,
			Name: result[0].Device, Attributes: attributes(result)})
	}
	return out
}

// attributes are what the container is told of a device: which GPU or GPUs it is, and how
// much of it was granted.
func attributes(result []claim.Grant) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	out := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
	set := func(name resourceapi.QualifiedName, value string) {
		if value = devices.AttributeString(value); value != "" {
			out[name] = resourceapi.DeviceAttribute{StringValue: &value}
		}
	}
	number := func(name resourceapi.QualifiedName, value int64) {
		out[name] = resourceapi.DeviceAttribute{IntValue: &value}
	}
	g := result[0]
	set(v1alpha1.AttrMode, string(g.Mode))
	set(v1alpha1.AttrModel, g.GPU.Model)
	set(v1alpha1.AttrIsolation, g.Isolation)
	number(v1alpha1.AttrMemoryMiB, g.GPU.MemoryMiB)
	if len(result) == 1 {
		set(v1alpha1.AttrUUID, g.GPU.UUID)
		number(v1alpha1.AttrIndex, int64(g.GPU.Index))
		if i := g.GPU.MIG; i != nil {
			set(v1alpha1.AttrProfile, i.Profile)
			set(v1alpha1.AttrParentUUID, i.ParentUUID)
			number(v1alpha1.AttrPlacementStart, int64(i.Start))
			number(v1alpha1.AttrPlacementSize, int64(i.Size))
		}
	} else {
		var members []string
		for _, of := range result {
			members = append(members, strconv.Itoa(of.GPU.Index))
		}
		number(v1alpha1.AttrGPUCount, int64(len(result)))
		set(v1alpha1.AttrMembers, strings.Join(members, ","))
	}
	switch {
	case g.Admin:
	case g.Mode.Shared():
		number(v1alpha1.MetaGrantedMemoryMiB, g.CapMiB())
		if g.CoresPercent > 0 {
			number(v1alpha1.MetaGrantedCores, g.CoresPercent)
		}
	default:
		number(v1alpha1.MetaGrantedMemoryMiB, g.GPU.MemoryMiB)
	}
	return out
}
