// Command measure runs every scenario of test/bench beside the peers, which it
// builds first, and writes the tables into a document.
//
// In come a folder for what is built, and a document with two marks in it; out
// come the tables of all scenarios between the marks, and plots beside them. Each
// scenario is one benchmark, whose servers take turns in one run, so that its
// ratios hold whatever else the machine does. One that fails is told of in its
// place, and does not keep the others from running.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// scenario is a benchmark and what it is called in the document.
type scenario struct {
	title, bench string
	args         []string
}

// scenarios are what is measured, in this order.
func (c config) scenarios() []scenario {
	return []scenario{
		{"Start and idle memory", "Start", nil},
		{"Memory with 10,000 pods", "Memory", []string{"-remembered", "10000"}},
		{"Built-in kinds", "Builtin", nil},
		{"Events to 10,000 watchers", "FanOut", []string{"-fan-out", "10000"}},
		{"Start of an informer", "Informers", []string{"-informed", c.informed}},
		{"Custom resources", "Custom", nil},
		{"Custom resource definitions", "Definitions", nil},
		{"Admission", "Admission", nil},
		{"Initializers", "Initializer", nil},
		{"Rollouts", "Rollout", nil},
		{"Garbage collection", "Garbage", nil},
		{"Scheduler", "Schedule", nil},
		{"Commits", "Commit", nil},
		{"Start of a pod", "PodStart", nil},
		{"Memory with 50 pods", "FiftyPods", nil},
		{"A noisy neighbour", "Neighbour", nil},
		{"Growth", "Growth", []string{"-growth", c.growth, "-plots", c.plots}},
		{"Soak", "Soak", []string{"-soak", c.soak.String()}},
	}
}

// config is what the flags say.
type config struct {
	bin, doc, plots, growth, informed string
	only                              *regexp.Regexp
	soak                              time.Duration
}

func main() { os.Exit(command()) }

// command runs what the arguments say and returns the exit code.
func command() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		return 1
	}
	return 0
}

// say tells how far it is, to who may not be listening any more.
func say(out io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(out, format, args...) }

func parse(args []string) (config, error) {
	var c config
	var only string
	f := flag.NewFlagSet("measure", flag.ContinueOnError)
	f.StringVar(&c.bin, "bin", "../../bin/peers", "folder for what is built; what is there is kept, but for setpoint")
	f.StringVar(&c.doc, "doc", "", "document that the tables are written into; none writes them nowhere")
	f.StringVar(&c.plots, "plots", "", "folder for plots; none makes none")
	f.StringVar(&only, "only", "", "scenarios to run, by a regular expression of their benchmarks' names; all when none is given")
	f.StringVar(&c.growth, "growth", "1000,10000,100000,500000", "numbers of objects to grow to")
	f.StringVar(&c.informed, "informed", "10000,100000", "numbers of objects that informers begin with")
	f.DurationVar(&c.soak, "soak", 15*time.Minute, "how long the soak lasts")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	var err error
	if c.only, err = regexp.Compile(only); err != nil {
		return c, err
	}
	if c.bin, err = filepath.Abs(c.bin); err != nil {
		return c, err
	}
	return c, nil
}

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	if err := c.build(ctx, out); err != nil {
		return err
	}
	var wanted []scenario
	for _, s := range c.scenarios() {
		if c.only.MatchString(s.bench) {
			wanted = append(wanted, s)
		}
	}
	var failed []error
	begun := time.Now()
	stamp := fmt.Sprintf("In the run of %s, %s/%s, %d processors.", begun.UTC().Format("2006-01-02 15:04"), runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	for i, s := range wanted {
		say(out, "[%d/%d] %s, %v so far\n", i+1, len(wanted), s.title, time.Since(begun).Round(time.Second))
		said, err := c.measure(ctx, s, out)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", s.title, err))
		}
		if ctx.Err() != nil {
			break // what is in the document stays
		}
		if c.doc != "" {
			failed = append(failed, write(c.doc, s.title, stamp+"\n\n"+section(said, err)))
		}
	}
	return errors.Join(failed...)
}

// build makes the peers, unless they are there, setpoint, and the benchmarks.
func (c config) build(ctx context.Context, out io.Writer) error {
	for i, args := range [][]string{
		{"../differential/build.sh", c.bin},
		{"go", "build", "-C", "../..", "-ldflags", "-s -w", "-o", filepath.Join(c.bin, "setpoint"), "./cmd/setpoint"},
		{"go", "test", "-c", "-o", filepath.Join(c.bin, "bench.test"), "."},
	} {
		say(out, "building %d/3: %s\n", i+1, strings.Join(args, " "))
		cmd := exec.CommandContext(ctx, args[0], args[1:]...) //nolint:gosec // a list of our own
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
	}
	return nil
}

// measure runs a scenario, shows what it says, and returns it.
func (c config) measure(ctx context.Context, s scenario, out io.Writer) (string, error) {
	args := append([]string{"-test.run", "^$", "-test.bench", "^Benchmark" + s.bench + "$", "-test.benchtime", "1x", "-test.timeout", "4h"}, s.args...)
	for flag, name := range map[string]string{
		"setpoint": "setpoint", "kube-apiserver": "kube-apiserver", "etcd": "etcd",
		"kube-controller-manager": "kube-controller-manager", "kube-scheduler": "kube-scheduler", "kubelet": "kubelet",
	} {
		args = append(args, "-"+flag, filepath.Join(c.bin, name))
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin, "bench.test"), args...) //nolint:gosec // what was just built
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&said, out), io.MultiWriter(&said, out)
	err := cmd.Run()
	return said.String(), err
}
