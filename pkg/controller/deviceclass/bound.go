// SPDX-License-Identifier: Apache-2.0

package deviceclass

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
)

// How many models and MIG profiles have classes, of a node and in all. What a ResourceSlice says is the word of one
// node's plugin, or of whoever has its token, and each model is up to seven classes that the whole cluster sees.
const (
	modelsOfNode, modelsMost     = 8, 128
	profilesOfNode, profilesMost = 32, 256
)

// bounded returns what is published of the models and MIG profiles that are to have classes, and says by node what is
// left out. Those that have classes come before others, for claims rely on them. Classes whose GPUs are gone count as
// long as they are there, so that no node has others made in turn.
func bounded(published []*view.Slice, classes []*resourceapi.DeviceClass) (kept []*view.Slice, over map[string]string) {
	models, profiles := map[string]bool{}, map[string]bool{}
	for _, class := range classes {
		switch {
		case !managed(class):
		case model(class) != "":
			models[model(class)] = true
		default:
			profiles[class.Name] = true
		}
	}
	isModel := func(name string) bool { return models[name] }
	isProfile := func(name string) bool { return profiles[deviceclasses.ProfileClassName(name)] }
	byNode := map[string][]*view.Slice{}
	for _, slice := range published {
		byNode[slice.Node] = append(byNode[slice.Node], slice)
	}
	for _, of := range byNode {
		kept = append(kept, only(of, first(modelNames(of), isModel, modelsOfNode, modelsOfNode),
			first(view.Profiles(of), isProfile, profilesOfNode, profilesOfNode))...)
	}
	ofModels := first(modelNames(kept), isModel, modelsMost, modelsMost-len(models))
	ofProfiles := first(view.Profiles(kept), isProfile, profilesMost, profilesMost-len(profiles))
	over = map[string]string{}
	for node, of := range byNode {
		left := len(without(modelNames(of), ofModels)) + len(without(view.Profiles(of), ofProfiles))
		if left > 0 {
			over[node] = fmt.Sprintf("The node publishes %d GPU models and MIG profiles that have no DeviceClass: there are "+
				"classes for %d models and %d profiles of a node at most, and for %d and %d in all. Does the node have such GPUs?",
				left, modelsOfNode, profilesOfNode, modelsMost, profilesMost)
		}
	}
	return only(kept, ofModels, ofProfiles), over
}

// first returns most of the names, those of which has is true before others, of which there is room for so many.
func first(names []string, has func(string) bool, most, room int) []string {
	var there, others []string
	for _, name := range names {
		if has(name) {
			there = append(there, name)
		} else {
			others = append(others, name)
		}
	}
	there = there[:min(len(there), most)]
	return append(there, others[:max(0, min(len(others), room, most-len(there)))]...)
}

func modelNames(published []*view.Slice) []string {
	var names []string
	for _, m := range view.Models(published) {
		names = append(names, m.Name)
	}
	return names
}

func without(names, others []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(others, name) })
}

// only are the slices with the GPUs and MIG instances of these models and profiles, as far as classes use them.
func only(published []*view.Slice, models, profiles []string) []*view.Slice {
	out := make([]*view.Slice, 0, len(published))
	for _, slice := range published {
		some := &view.Slice{Node: slice.Node}
		for _, g := range slice.GPUs {
			if slices.Contains(models, g.Model) {
				some.GPUs = append(some.GPUs, g)
			}
		}
		for _, profile := range slice.Profiles {
			if slices.Contains(profiles, profile) {
				some.Profiles = append(some.Profiles, profile)
			}
		}
		out = append(out, some)
	}
	return out
}
