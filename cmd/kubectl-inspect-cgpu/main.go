// SPDX-License-Identifier: Apache-2.0

// Command kubectl-inspect-cgpu is a plugin of kubectl: "kubectl inspect cgpu" shows
// which part of which card is allocated to whom.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	c, _ := newCommand(streams, terminalOf(os.Stdout, os.Getenv("COLUMNS")))
	c.SetArgs(arguments(os.Args))
	if err := c.ExecuteContext(ctx); errors.Is(err, errFindings) {
		return exitFindings
	} else if err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		return 1
	}
	return 0
}

// terminalOf is the terminal that a file is; columns, if that is a number, is how wide it
// is to be taken for.
func terminalOf(file *os.File, columns string) terminal {
	fd := int(file.Fd())
	to := terminal{is: term.IsTerminal(fd)}
	if n, err := strconv.Atoi(columns); err == nil && n > 0 {
		to.columns = n
	} else if width, _, err := term.GetSize(fd); err == nil {
		to.columns = width
	}
	return to
}
