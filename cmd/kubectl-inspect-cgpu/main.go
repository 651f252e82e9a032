// SPDX-License-Identifier: Apache-2.0

// Command kubectl-inspect-cgpu is a plugin of kubectl: "kubectl inspect cgpu" shows
// which part of which GPU is allocated to whom.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpushare/dra-driver-gpushare/pkg/text"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	c, _ := newCommand(streams, terminalOf(os.Stdout, os.Getenv))
	c.SetArgs(arguments(os.Args))
	if err := c.ExecuteContext(ctx); errors.Is(err, errFindings) {
		return exitFindings
	} else if err != nil {
		fmt.Fprintf(text.Writer{Out: os.Stderr}, "error: %v\n", err)
		return 1
	}
	return 0
}

// terminalOf is the terminal that a file is. Of the environment, COLUMNS is how wide it is to be
// taken for, NO_COLOR is for no colours (https://no-color.org), and so is a terminal that has none.
func terminalOf(file *os.File, environment func(string) string) terminal {
	fd := int(file.Fd())
	columns, err := strconv.Atoi(environment("COLUMNS"))
	if err != nil || columns < 0 {
		columns = 0
	}
	return terminal{
		is:     term.IsTerminal(fd),
		colors: environment("NO_COLOR") == "" && environment("TERM") != "dumb",
		size: func() (int, int) {
			width, height, err := term.GetSize(fd)
			if err != nil {
				return columns, 0
			}
			return cmp.Or(columns, width), height
		},
	}
}
