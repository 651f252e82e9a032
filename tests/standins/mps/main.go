// SPDX-License-Identifier: Apache-2.0

// Command mpsstandin stands in for nvidia-cuda-mps-control on simulated nodes,
// as far as gpu-mps-supervisor and tests use it. It serves no CUDA program and
// limits nothing, and is in no image.
//
//	mpsstandin -f [--multiuser-server]   the daemon, in the foreground
//	mpsstandin                           commands from standard input, to the daemon
//	mpsstandin -server                   a server of the daemon, which starts it
//
// As with the real one, CUDA_MPS_PIPE_DIRECTORY says which daemon, and
// CUDA_MPS_LOG_DIRECTORY where it writes control.log. A connection to the
// daemon's socket that gives no command stays open until the daemon ends, so a
// program can stand in for a client of it.
//
// Three words are the stand-in's own, for what stands in for a CUDA program: "client" makes
// its connection one of a client of the server, "fault" has that client end the programs of
// all, and "synchronize" tells whether it is lost (clients.go).
//
// Under the name nvidia-smi it stands in for that, as far as the plugin uses it (smi.go).
//
// Its server has a context on each simulated GPU (tests/standins/sim/contexts) of the daemon, which
// are those in CUDA_VISIBLE_DEVICES, and does nothing with them. Limits are kept, by server
// and device, and none is enforced.
//
// It has to be built without cgo: a simulated driver root has no C library.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if filepath.Base(os.Args[0]) == "nvidia-smi" {
		exit(smi(os.Args[1:]))
	}
	foreground := flag.Bool("f", false, "be the daemon")
	flag.Bool("multiuser-server", false, "serve clients of all users; this one always does")
	asServer := flag.Bool("server", false, "be a server of the cards in CUDA_VISIBLE_DEVICES until standard input ends")
	flag.Parse()
	act := func() error { return run(*foreground) }
	if *asServer {
		act = func() error { return beServer(os.Getenv("CUDA_VISIBLE_DEVICES"), os.Stdin, os.Stdout) }
	}
	exit(act())
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(foreground bool) error {
	pipes := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if pipes == "" {
		return errors.New("CUDA_MPS_PIPE_DIRECTORY must be set to start or to communicate with the MPS control daemon")
	}
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if foreground {
		return serve(pipes, os.Getenv("CUDA_MPS_LOG_DIRECTORY"), os.Getenv("CUDA_VISIBLE_DEVICES"))
	}
	return ask(pipes, os.Stdin, os.Stdout)
}
