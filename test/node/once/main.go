//go:build unix

// Command once runs a program, and finds out whether another of its name runs.
//
//	once FOLDER NAME PROGRAM [ARG...]
//
// It writes a line to FOLDER/NAME for each time that it runs, and one to
// FOLDER/clash where somebody holds FOLDER/NAME.lock. The lock is held for as long
// as the program, or anything that it has started, is there: the kernel lets go of
// it, however they end.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "once:", err)
		os.Exit(100)
	}
}

func run(folder, name string, args []string) error {
	// Without O_CLOEXEC the program has it, too.
	fd, err := syscall.Open(filepath.Join(folder, name+".lock"), syscall.O_CREAT|syscall.O_RDWR, 0o666)
	if err != nil {
		return err
	}
	if syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		if err := add(filepath.Join(folder, "clash"), name); err != nil {
			return err
		}
	}
	if err := add(filepath.Join(folder, name), "run"); err != nil {
		return err
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	return syscall.Exec(program, args, os.Environ())
}

// add adds a line to a file.
func add(path, line string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(f, line); err != nil {
		return err
	}
	return f.Close()
}
