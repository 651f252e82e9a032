// SPDX-License-Identifier: Apache-2.0

// Command gpu-probe shows what a container got: its environment and the NVIDIA
// device nodes it sees. Without arguments it prints both and stays until it is
// told to stop, so that a pod with it keeps its cards.
//
// Called as python it does the same whatever the arguments: manifests that run a
// script need no other change than the image's.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const usage = `usage: gpu-probe            print environment and devices, then stay until SIGTERM
       gpu-probe once       print them and exit
       gpu-probe for TIME   print them, stay so long (as in 2s), print "done" and exit
       gpu-probe env        print the environment, sorted
       gpu-probe devices    print the NVIDIA device nodes
       gpu-probe stat PATH…  print type, mode and device numbers; fails where one is missing
       gpu-probe cat PATH…   print the contents
       gpu-probe open PATH…  open read-write and close again; fails where one cannot be
       gpu-probe reach MAJOR:MINOR…  make a device node and open it; fails where it may not be opened
       gpu-probe dial HOST:PORT…  connect by TCP; fails where one does not accept
       gpu-probe mounts     print what is mounted where
       gpu-probe exit CODE  exit with a status`

func main() {
	// Before anything is printed: who sees the output may send the signal.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)

	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == "python" {
		args = nil
	}
	code, err := run(os.Stdout, args, stop)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(out io.Writer, args []string, stop <-chan os.Signal) (code int, err error) {
	if len(args) == 0 {
		if err := show(out); err != nil {
			return 1, err
		}
		<-stop
		return 0, nil
	}
	switch command, rest := args[0], args[1:]; command {
	case "once":
		return 0, show(out)
	case "for":
		return showFor(out, rest, stop)
	case "env":
		return 0, printEnvironment(out)
	case "devices":
		return 0, printDevices(out, "/dev")
	case "stat":
		return 0, each(rest, func(path string) error { return printNode(out, path) })
	case "cat":
		return 0, each(rest, func(path string) error { return printFile(out, path) })
	case "open":
		return 0, each(rest, openAndClose)
	case "reach":
		return 0, each(rest, reach)
	case "dial":
		return 0, each(rest, dial)
	case "mounts":
		return 0, printFile(out, "/proc/self/mountinfo")
	case "exit":
		if len(rest) != 1 {
			return 2, errors.New(usage)
		}
		_, err := fmt.Sscan(rest[0], &code)
		return code, err
	default:
		return 2, errors.New(usage)
	}
}

// reach opens a character device by its numbers, whatever nodes the container has: what keeps it from that
// is its device cgroup.
func reach(numbers string) error {
	var major, minor uint32
	if _, err := fmt.Sscanf(numbers, "%d:%d", &major, &minor); err != nil {
		return fmt.Errorf("%s is not MAJOR:MINOR: %w", numbers, err)
	}
	path := filepath.Join(os.TempDir(), "gpu-probe-"+numbers)
	if err := os.MkdirAll(os.TempDir(), 0o755); err != nil {
		return err
	}
	// Both parts are small here: the kernel's encoding of the numbers is the old one.
	if err := syscall.Mknod(path, syscall.S_IFCHR|0o600, int(minor&0xff|major<<8|(minor&^0xff)<<12)); err != nil {
		return fmt.Errorf("make device node %s: %w", path, err)
	}
	defer os.Remove(path)
	return openAndClose(path)
}

// showFor says that it is done only where it has stayed as long as it was told.
func showFor(out io.Writer, args []string, stop <-chan os.Signal) (code int, err error) {
	if len(args) != 1 {
		return 2, errors.New(usage)
	}
	long, err := time.ParseDuration(args[0])
	if err != nil {
		return 2, err
	}
	if err := show(out); err != nil {
		return 1, err
	}
	select {
	case <-stop:
		return 0, nil
	case <-time.After(long):
	}
	_, err = fmt.Fprintln(out, "done")
	return 0, err
}

func show(out io.Writer) error {
	if err := printEnvironment(out); err != nil {
		return err
	}
	return printDevices(out, "/dev")
}

func printEnvironment(out io.Writer) error {
	environment := os.Environ()
	slices.Sort(environment)
	_, err := fmt.Fprintln(out, strings.Join(environment, "\n"))
	return err
}

// printDevices prints every file below dir that NVIDIA's driver makes, also
// those in directories such as nvidia-caps.
func printDevices(out io.Writer, dir string) error {
	matches, err := filepath.Glob(filepath.Join(dir, "nvidia*"))
	if err != nil {
		return err
	}
	for _, match := range matches {
		err := filepath.WalkDir(match, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			return printNode(out, path)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func printNode(out io.Writer, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	numbers := ""
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode()&os.ModeDevice != 0 {
		// The layout of Linux' dev_t in user space.
		major := (stat.Rdev>>8)&0xfff | (stat.Rdev>>32)&^0xfff
		minor := stat.Rdev&0xff | (stat.Rdev>>12)&^0xff
		numbers = fmt.Sprintf(" %d:%d", major, minor)
	}
	_, err = fmt.Fprintf(out, "%s %s%s\n", path, info.Mode(), numbers)
	return err
}

func printFile(out io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(out, file)
	return err
}

func openAndClose(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return file.Close()
}

func dial(address string) error {
	connection, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	return connection.Close()
}

func each(paths []string, f func(string) error) error {
	if len(paths) == 0 {
		return errors.New(usage)
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, f(path))
	}
	return errors.Join(errs...)
}
