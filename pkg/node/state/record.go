// SPDX-License-Identifier: Apache-2.0

// Package state keeps what was prepared for each claim in one small file per
// claim, so that it survives the plugin and so that one bad file costs one
// claim and not the node.
package state

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpushare/dra-driver-gpushare/pkg/claim"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/usage"
)

// Versions of the record format. Fields may be added to a version; a field that
// changes its meaning needs a new version. Unknown fields are ignored, so that
// an older plugin reads what a newer one of the same version wrote.
//
// In Version 1 each grant is an allocation result of its own. In VersionSets
// those of a linked set of GPUs are one result. In VersionMIG a grant can be a MIG instance, which a
// plugin that does not know of them would take for a GPU that is gone. A record is written in the
// lowest version that can hold it, so that after a downgrade only claims for
// linked sets, or for MIG instances, cannot be read.
const (
	Version     = 1
	VersionSets = 2
	VersionMIG  = 3
	// VersionMadeMIG is for records of instances that are made for their claim: a plugin that does not know of them
	// would leave them where they are.
	VersionMadeMIG = 4
)

// Phase says how far the preparation of a claim has come.
type Phase string

// The phases.
const (
	// Preparing is written before the first effect. A record found in this
	// phase belongs to a preparation that was cut off and has to be undone.
	Preparing Phase = "Preparing"
	// Prepared is written after the last effect.
	Prepared Phase = "Prepared"
)

// Record is one claim's entry.
type Record struct {
	Version int   `json:"version"`
	Phase   Phase `json:"phase"`

	// UID, Namespace and Name identify the claim.
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`

	// BootID is the boot of the node in which the claim was prepared last. In
	// another boot none of its containers can be running.
	BootID string `json:"bootID,omitempty"`

	// Pods are the pods that were known to use the claim, by their UIDs. Records of
	// earlier versions lack them.
	Pods []types.UID `json:"pods,omitempty"`

	// PodNames are the names of those of the pods for which the claim was reserved when it
	// was prepared, for people. Records of earlier versions lack them.
	PodNames []string `json:"podNames,omitempty"`

	// PodClaimName is what pods call the claim, if it was made of a template. Records of
	// earlier versions lack it.
	PodClaimName string `json:"podClaimName,omitempty"`

	// Grants is what the claim holds.
	Grants []claim.Grant `json:"grants"`

	// Order lists the UUIDs of the GPUs in the order in which containers see
	// them; empty where that is left to CUDA.
	Order []string `json:"order,omitempty"`

	// CDISpec is the name of the CDI spec that the preparation writes; to undo
	// it is to remove that file.
	CDISpec string `json:"cdiSpec"`

	// Effects are what the preparation changes on the host beside the claim's own files, in
	// the order in which it does. Each is undone by its name. Records of earlier versions
	// lack them.
	Effects []Effect `json:"effects,omitempty"`
}

// Effect is a change of the host. Plugins that do not know the field leave it where it is: an
// effect for which that does harm needs a format version that they do not read.
type Effect struct {
	Name string `json:"name"`
	// GPU is the UUID of the GPU that it concerns, if any.
	GPU string `json:"gpu,omitempty"`
	// Instance is the MIG instance that is made of the GPU; nil for any other effect.
	Instance *MadeInstance `json:"instance,omitempty"`
}

// MadeInstance is how far a MIG instance is that is made for the claim.
type MadeInstance struct {
	gpu.Place
	// UUID is empty until the instance is there with its compute instance.
	UUID string `json:"uuid,omitempty"`
}

// Usage returns the record as the accounting sees it.
func (r Record) Usage() usage.Claim {
	return usage.Claim{Namespace: r.Namespace, Name: r.Name, UID: r.UID, Grants: r.Grants}
}

// version is the lowest that can hold the record.
func (r Record) version() int {
	version := Version
	if len(claim.Results(r.Grants)) < len(r.Grants) {
		version = VersionSets
	}
	for _, g := range r.Grants {
		switch {
		case g.GPU.MIG == nil:
		case g.GPU.MIG.Made:
			return VersionMadeMIG
		default:
			version = VersionMIG
		}
	}
	return version
}

// check reports what is wrong with a record that was read as the claim's.
func (r Record) check(uid types.UID) error {
	switch {
	case r.Version < Version || r.Version > VersionMadeMIG:
		return fmt.Errorf("it has format version %d, this plugin reads versions %d to %d", r.Version, Version,
			VersionMadeMIG)
	case r.Phase != Preparing && r.Phase != Prepared:
		return fmt.Errorf("it has the unknown phase %q", r.Phase)
	case r.UID != uid:
		return fmt.Errorf("it describes claim %q", r.UID)
	case r.Name == "" || r.Namespace == "":
		return errors.New("it does not say which claim it describes")
	case r.CDISpec == "":
		return errors.New("it does not say which CDI spec it stands for")
	case len(r.Grants) == 0:
		return errors.New("it holds no grants")
	}
	return nil
}
