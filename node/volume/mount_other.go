//go:build !linux

package volume

import (
	"errors"
	"io/fs"
	"os"
)

func mayMount() bool { return false }

func mountTmpfs(string, int64) error { return errors.ErrUnsupported }

func mountHugePages(string, string) error { return errors.ErrUnsupported }

func isMount(string) (bool, error) { return false, nil }

func bindPart(*os.Root, string, fs.FileInfo, string) error { return errors.ErrUnsupported }

func unmountBelow(string) error { return nil }
