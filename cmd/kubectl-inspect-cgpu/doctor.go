// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/gpushare/dra-driver-gpushare/pkg/inspect/doctor"
)

// errFindings is that a doctor found something: it was printed, and is the exit code.
var errFindings = errors.New("something is not in order")

// exitFindings is the exit code then; 1 is that the program could not do its work.
const exitFindings = 2

// newDoctor is the command that looks for what is not in order.
func newDoctor(o *options) *cobra.Command {
	return o.subcommand(&cobra.Command{
		Use:   "doctor",
		Short: "Look for what is not in order with the driver, and say what to do",
		Long: "Look for what is not in order with the driver: its pods and their versions, nodes that offer no GPUs or " +
			"others than their label says, device plugins, unhealthy GPUs, DeviceClasses, admission policies, stuck claims, " +
			"legacy pods (which ask for GPUs as on ACK, by aliyun.com/gpu-mem) that were not converted. It changes nothing, " +
			"and sees what the API server shows: what policies say of pods and claims that wait it asks by dry runs.\n" +
			"The exit code is 0 if nothing has to be done, 2 if something was found, 1 if it could not look.",
		Example: "  kubectl inspect cgpu doctor\n" +
			"  kubectl inspect cgpu doctor -o json    # for programs: {\"checks\": [...], \"findings\": [...]}",
		RunE: func(c *cobra.Command, _ []string) error { return o.doctor(c.Context()) },
	}, "", outputJSON)
}

func (o *options) doctor(ctx context.Context) error {
	reader, err := o.reader()
	if err != nil {
		return err
	}
	snapshot, err := reader.Snapshot(ctx)
	if err != nil {
		return err
	}
	return o.printReport(doctor.Examine(snapshot))
}

func (o *options) printReport(r *doctor.Report) error {
	if err := o.printNoting(r, r.Print, nil); err != nil {
		return err
	}
	if !r.Sound() {
		return errFindings
	}
	return nil
}
