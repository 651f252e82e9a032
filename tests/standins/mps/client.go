// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
)

// ask gives the daemon each line of commands, and writes what it answers.
func ask(pipes string, commands io.Reader, answers io.Writer) error {
	connection, err := net.Dial("unix", filepath.Join(pipes, privilegedName))
	if err != nil {
		connection, err = net.Dial("unix", filepath.Join(pipes, socketName))
	}
	if err != nil {
		return fmt.Errorf("cannot find the MPS control daemon process: %w", err)
	}
	defer connection.Close()
	reader := bufio.NewReader(connection)
	lines := bufio.NewScanner(commands)
	for lines.Scan() {
		if _, err := fmt.Fprintln(connection, lines.Text()); err != nil {
			return err
		}
		answer, err := reader.ReadString(endOfAnswer[0])
		if err != nil {
			return errors.Join(errors.New("the daemon ended before it answered"), err)
		}
		if _, err := io.WriteString(answers, strings.TrimSuffix(answer, endOfAnswer)); err != nil {
			return err
		}
	}
	return lines.Err()
}
