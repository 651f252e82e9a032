// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/yaml"

	"github.com/gpushare/dra-driver-gpushare/deviceclasses"
	"github.com/gpushare/dra-driver-gpushare/internal/program"
	"github.com/gpushare/dra-driver-gpushare/pkg/apis/gpu/v1alpha1"
	"github.com/gpushare/dra-driver-gpushare/pkg/controller/deviceclass"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices"
	"github.com/gpushare/dra-driver-gpushare/pkg/devices/view"
	"github.com/gpushare/dra-driver-gpushare/pkg/gpu"
	"github.com/gpushare/dra-driver-gpushare/pkg/mode"
)

// managedByRepository is what printed classes say of who manages them. Applied over
// classes that the controller made, it takes those over; left out, the controller's
// label would stay.
const managedByRepository = "gitops"

func classesCommand() *cli.Command {
	return &cli.Command{
		Name:  "classes",
		Usage: "print the DeviceClasses of GPU models and MIG profiles as YAML, to be kept in a repository",
		Description: "Without --model it prints those that the cluster's GPUs have now. With it, it asks no cluster.\n" +
			"The controller leaves classes that are printed and applied alone, also those that it made before.",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "model",
				Usage: `GPU model, as nvidia-smi or the device attribute "model" writes it, such as "NVIDIA A10" (repeatable)`},
			&cli.StringSliceFlag{Name: "mode", Usage: "with --model: mode to print a class for (repeatable); by default all"},
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			models, profiles, err := modelsToPrint(ctx, c)
			if err != nil {
				return err
			}
			return printClasses(c.Root().Writer, models, profiles)
		},
	}
}

// modelsToPrint are the models of GPUs and the MIG profiles to print classes of.
func modelsToPrint(ctx context.Context, c *cli.Command) (models []view.Model, profiles []string, err error) {
	if c.Args().Present() {
		return nil, nil, fmt.Errorf("unexpected argument %q: name models with --model", c.Args().First())
	}
	names := c.StringSlice("model")
	if len(names) > 0 {
		models, err = modelsOfFlags(names, c.StringSlice("mode"))
		return models, nil, err
	}
	if c.IsSet("mode") {
		return nil, nil, fmt.Errorf("--mode goes with --model: of a cluster, the modes of its GPUs are printed")
	}
	return modelsOfCluster(ctx, c)
}

func modelsOfFlags(names, modes []string) ([]view.Model, error) {
	served, err := deviceclasses.ModesWithClass()
	if err != nil {
		return nil, err
	}
	wanted := served
	if len(modes) > 0 {
		wanted = nil
	}
	for _, name := range modes {
		if !slices.Contains(served, mode.Mode(name)) {
			return nil, fmt.Errorf("--mode %s: not one of %s", name, join(served))
		}
		wanted = append(wanted, mode.Mode(name))
	}
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	var models []view.Model
	for _, name := range names {
		// What the GPUs' device attribute says.
		name = devices.AttributeString(gpu.ModelOf(name))
		if name == "" {
			return nil, fmt.Errorf("--model is empty: name a GPU model, such as %q", "NVIDIA A10")
		}
		// nvidia-smi and the attribute may write one model differently.
		if !slices.ContainsFunc(models, func(m view.Model) bool { return m.Name == name }) {
			models = append(models, view.Model{Name: name, Modes: wanted})
		}
	}
	return models, nil
}

func join(modes []mode.Mode) string {
	var names []string
	for _, m := range modes {
		names = append(names, string(m))
	}
	return strings.Join(names, ", ")
}

func modelsOfCluster(ctx context.Context, c *cli.Command) ([]view.Model, []string, error) {
	config, err := clientConfig(c)
	if err != nil {
		return nil, nil, err
	}
	client, err := program.Client(config, apiQPS, apiBurst)
	if err != nil {
		return nil, nil, err
	}
	list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(resourceapi.ResourceSliceSelectorDriver, v1alpha1.DriverName).String(),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list the ResourceSlices of %s: %w", v1alpha1.DriverName, err)
	}
	var published []*view.Slice
	for i := range list.Items {
		published = append(published, view.Read(&list.Items[i]))
	}
	models, profiles := view.Models(published), view.Profiles(published)
	if len(models)+len(profiles) == 0 {
		return nil, nil, fmt.Errorf("no node of the cluster publishes GPUs of %s: name models with --model",
			v1alpha1.DriverName)
	}
	return models, profiles, nil
}

// printClasses prints all classes or none. It refuses two models of one name:
// whoever applies the output would have the classes of one of them.
func printClasses(w io.Writer, models []view.Model, profiles []string) error {
	classes, err := deviceclass.Catalogue(models, profiles)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	for i, class := range classes {
		if i > 0 && classes[i-1].Name == class.Name {
			return fmt.Errorf("DeviceClass %s would be for the models %q and %q: print one of them, and choose the other's "+
				"GPUs by a selector on the attribute model",
				class.Name, classes[i-1].Annotations[v1alpha1.AnnotationModel], class.Annotations[v1alpha1.AnnotationModel])
		}
		class.Labels[v1alpha1.LabelManagedBy] = managedByRepository
		content, err := yaml.Marshal(class)
		if err != nil {
			return fmt.Errorf("write DeviceClass %s as YAML: %w", class.Name, err)
		}
		out.WriteString("---\n")
		out.Write(content)
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("print the DeviceClasses: %w", err)
	}
	return nil
}
