package env

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// maxFile is how much of a file with variables is read.
const maxFile = 1 << 20

// file finds a variable in a file of a volume. The file is opened so that no
// link in the volume leads out of it.
func (m *maker) file(ref *corev1.FileKeySelector) (string, bool, error) {
	if m.in.VolumePath == nil {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	dir, err := m.in.VolumePath(ref.VolumeName)
	if err != nil {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", ref.VolumeName)
	}
	text, err := read(dir, ref.Path)
	if err != nil {
		return "", false, errors.New("couldn't parse env file")
	}
	value, err := Parse(text, ref.Key)
	switch {
	case err != nil:
		return "", false, errors.New("couldn't parse env file")
	case value != "":
		return value, true, nil
	case is(ref.Optional):
		return "", false, nil
	}
	return "", false, fmt.Errorf("environment variable key %q not found in file %q", ref.Key, filepath.Join(dir, ref.Path))
}

func read(dir, path string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	f, err := root.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	return string(text), err
}

// Parse returns the value of key in a file of lines NAME='value'. A value runs
// to the next single quote, over several lines if need be, and is taken as it
// is; a comment may follow it. Blank lines and lines that begin with # count
// for nothing. NAME= 'value' is an empty value, as in a shell.
func Parse(text, key string) (string, error) {
	for number := 1; text != ""; {
		line, rest, _ := strings.Cut(text, "\n")
		line = strings.TrimLeft(line, " \t")
		if line == "" || line == "\r" || line[0] == '#' {
			text = rest
			number++
			continue
		}
		name, value, found := strings.Cut(line, "=")
		switch {
		case !found:
			return "", fmt.Errorf("invalid environment variable format at line %d: missing '='", number)
		case name == "":
			return "", fmt.Errorf("invalid environment variable format at line %d: empty variable name", number)
		case strings.TrimRight(name, " \t") != name:
			return "", fmt.Errorf("invalid environment variable format at line %d: whitespace before '=' is not allowed", number)
		case value != strings.TrimLeft(value, " \t"):
			if name == key {
				return "", nil
			}
			text = rest
			number++
			continue
		case !strings.HasPrefix(value, "'"):
			return "", fmt.Errorf("invalid environment variable format at line %d: value must be enclosed in single quotes", number)
		}
		_, quoted, _ := strings.Cut(text, "'")
		value, rest, found = strings.Cut(quoted, "'")
		if !found {
			return "", fmt.Errorf("invalid environment variable format starting at line %d: unclosed single quote", number)
		}
		number += strings.Count(value, "\n") + 1
		after, next, _ := strings.Cut(rest, "\n")
		if after = strings.TrimLeft(strings.TrimSuffix(after, "\r"), " \t"); after != "" && after[0] != '#' {
			return "", fmt.Errorf("invalid environment variable format at line %d: unexpected content after closing quote", number-1)
		}
		if name == key {
			return value, nil
		}
		text = next
	}
	return "", nil
}
