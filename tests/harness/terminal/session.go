// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Open makes a pseudo terminal of a size: program is the end that a program has, user the other.
func Open(columns, rows int) (user, program *os.File, err error) {
	user, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open a pseudo terminal: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, user.Close())
		}
	}()
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("unlock the pseudo terminal: %w", err)
	}
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, nil, fmt.Errorf("ask which pseudo terminal it is: %w", err)
	}
	name := fmt.Sprintf("/dev/pts/%d", number)
	program, err = os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open the program's end of the pseudo terminal: %w", err)
	}
	if err := resize(program, columns, rows); err != nil {
		return nil, nil, errors.Join(err, program.Close())
	}
	return user, program, nil
}

func resize(terminal *os.File, columns, rows int) error {
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows),
		Col: uint16(columns)}); err != nil {
		return fmt.Errorf("give %s %d columns and %d rows: %w", terminal.Name(), columns, rows, err)
	}
	return nil
}

// Session is a program in a terminal.
type Session struct {
	command *exec.Cmd
	screen  *Screen
	user    *os.File
	shown   chan error
}

// Start starts a command in a terminal, whose screen this is.
func Start(command *exec.Cmd, screen *Screen) (*Session, error) {
	user, program, err := Open(screen.columns, screen.rows)
	if err != nil {
		return nil, err
	}
	command.Stdin, command.Stdout, command.Stderr = program, program, program
	// In a session of its own the terminal is the command's: Ctrl-C reaches it.
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = command.Start()
	if err := errors.Join(err, program.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s in a terminal: %w", command, err), user.Close())
	}
	s := &Session{command, screen, user, make(chan error, 1)}
	go func() {
		_, err := io.Copy(screen, user)
		if errors.Is(err, unix.EIO) { // so a terminal says that no program has it any more
			err = nil
		}
		s.shown <- err
	}()
	return s, nil
}

// Type has the user type a text.
func (s *Session) Type(text string) error {
	if _, err := io.WriteString(s.user, text); err != nil {
		return fmt.Errorf("type %q: %w", text, err)
	}
	return nil
}

// Resize gives the terminal another size, of which the program is told.
func (s *Session) Resize(columns, rows int) error {
	s.screen.Resize(columns, rows)
	return resize(s.user, columns, rows)
}

// Wait waits until the program has ended, and all that it wrote is shown.
func (s *Session) Wait() error {
	err := s.command.Wait()
	shown := <-s.shown
	if shown != nil {
		shown = fmt.Errorf("show what %s writes: %w", s.command, shown)
	}
	return errors.Join(err, shown, s.user.Close())
}
