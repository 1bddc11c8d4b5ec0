//go:build linux

package process

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"setpoint.dev/setpoint/node/process/image"
)

func TestStopSignals(t *testing.T) {
	for name, test := range map[string]struct {
		asked runtimeapi.Signal
		image string
		want  string
	}{
		"nobody says":         {want: "15"},
		"the image":           {image: "SIGQUIT", want: "3"},
		"the image, short":    {image: "quit", want: "3"},
		"a number":            {image: "10", want: "10"},
		"the container first": {asked: runtimeapi.Signal_SIGUSR2, image: "SIGQUIT", want: "12"},
		"real time":           {asked: runtimeapi.Signal_SIGRTMINPLUS3, want: "37"},
		"real time, down":     {asked: runtimeapi.Signal_SIGRTMAXMINUS14, want: "50"},
		"first and last":      {asked: runtimeapi.Signal_SIGRTMAX, want: "64"},
		"of systemd":          {image: "SIGRTMIN+3", want: "37"},
		"no such signal":      {image: "SIGNONE", want: `failed to parse stop signal "SIGNONE"`},
		"a number too great":  {image: "65", want: `failed to parse stop signal "65"`},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := stopSignal(&runtimeapi.ContainerConfig{StopSignal: test.asked}, image.Process{StopSignal: test.image})
			got := fmt.Sprint(n)
			if err != nil {
				got = err.Error()
			}
			if !strings.HasSuffix(got, test.want) {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
	for value, name := range runtimeapi.Signal_name {
		if value == 0 {
			continue
		}
		if n, ok := signalNumber(name); !ok || n < 1 || n > realTimeMax {
			t.Errorf("%s is signal %d", name, n)
		}
	}
}

func TestCommand(t *testing.T) {
	of := image.Process{Entrypoint: []string{"/entry", "-x"}, Cmd: []string{"by", "default"}}
	for name, test := range map[string]struct {
		command, args, want []string
	}{
		"the image's":   {nil, nil, []string{"/entry", "-x", "by", "default"}},
		"arguments":     {nil, []string{"a"}, []string{"/entry", "-x", "a"}},
		"a command":     {[]string{"c"}, nil, []string{"c"}},
		"both":          {[]string{"c"}, []string{"a"}, []string{"c", "a"}},
		"empty command": {[]string{}, []string{"a"}, []string{"/entry", "-x", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := command(&runtimeapi.ContainerConfig{Command: test.command, Args: test.args}, of)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
