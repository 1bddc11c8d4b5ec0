// Package e2e lets Kubernetes' own conformance suite judge a server: it runs
// the specs that lists name with an e2e.test of the release, and says which
// passed. It is a module of its own, so that the product does not import the
// suite; build.sh builds e2e.test.
package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Read returns the names in lists, each once. Lines that begin with # are
// comments.
func Read(lists ...string) ([]string, error) {
	seen := map[string]bool{}
	var specs []string
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			return nil, err
		}
		for lines := bufio.NewScanner(strings.NewReader(string(data))); lines.Scan(); {
			if name := strings.TrimSpace(lines.Text()); name != "" && name[0] != '#' && !seen[name] {
				seen[name] = true
				specs = append(specs, name)
			}
		}
	}
	return specs, nil
}

// Result is how a spec ended.
type Result struct {
	Name  string
	State string // as ginkgo says it: passed, failed, timedout, skipped ...; "" when it was not run
	Took  time.Duration
	Why   string
}

// Runner runs specs. Every field but Extra and Progress is needed.
type Runner struct {
	E2E, Kubectl, Kubeconfig string
	// Out is a folder for logs and reports.
	Out string
	// Extra are arguments for e2e.test.
	Extra []string
	// Procs is how many e2e.test run at once, Batch how many specs one of them
	// is given: starting it takes seconds of processor time.
	Procs, Batch int
	// Bound is the time that a spec has.
	Bound time.Duration
	// Progress hears of every spec as it ends; nil tells nobody.
	Progress io.Writer

	mu      sync.Mutex // guards the fields below
	runs    int
	results map[string]Result
}

// Run runs specs until all have ended or ctx does, and returns how they ended
// in the order given. Those that must be alone come last, one at a time.
func (r *Runner) Run(ctx context.Context, specs []string) []Result {
	r.results = map[string]Result{}
	var together, alone []string
	for _, s := range specs {
		if strings.Contains(s, "[Serial]") || strings.Contains(s, "[Disruptive]") {
			alone = append(alone, s)
		} else {
			together = append(together, s)
		}
	}
	r.all(ctx, together, r.Procs)
	r.all(ctx, alone, 1)
	results := make([]Result, len(specs))
	for i, s := range specs {
		results[i] = r.results[s]
		results[i].Name = s
	}
	return results
}

func (r *Runner) all(ctx context.Context, specs []string, procs int) {
	batches := make(chan []string)
	var running sync.WaitGroup
	for range procs {
		running.Go(func() {
			for batch := range batches {
				r.batch(ctx, batch)
			}
		})
	}
	for len(specs) > 0 {
		n := min(r.Batch, len(specs))
		batches <- specs[:n]
		specs = specs[n:]
	}
	close(batches)
	running.Wait()
}

// batch gives some specs to one e2e.test. What that does not come to, because
// another used the time up, is run by itself.
func (r *Runner) batch(ctx context.Context, specs []string) {
	if ctx.Err() != nil {
		return
	}
	begun := time.Now()
	found, err := r.suite(ctx, specs)
	for _, s := range specs {
		result, ran := found[s]
		if !ran && len(specs) > 1 {
			r.batch(ctx, []string{s})
			continue
		}
		if !ran {
			result = Result{State: "failed", Took: time.Since(begun), Why: fmt.Sprintf("no report: %v", err)}
		}
		result.Name = s
		r.mu.Lock()
		r.results[s] = result
		if r.Progress != nil {
			_, _ = fmt.Fprintf(r.Progress, "%-8s %6.1fs  %s\n", result.State, result.Took.Seconds(), s) // nobody depends on it
		}
		r.mu.Unlock()
	}
}

// suite runs e2e.test once and returns the specs that its report has.
func (r *Runner) suite(ctx context.Context, specs []string) (map[string]Result, error) {
	r.mu.Lock()
	r.runs++
	base := filepath.Join(r.Out, fmt.Sprintf("run-%04d", r.runs))
	r.mu.Unlock()
	bound := r.Bound * time.Duration(len(specs))
	args := []string{
		"--kubeconfig=" + r.Kubeconfig, "--kubectl-path=" + r.Kubectl, "--ginkgo.no-color", "--ginkgo.silence-skips",
		"--ginkgo.timeout=" + bound.String(), "--ginkgo.grace-period=20s", "--ginkgo.json-report=" + base + ".json",
	}
	for _, s := range specs {
		args = append(args, "--ginkgo.focus="+regexp.QuoteMeta(s)+"$")
	}
	log, err := os.Create(base + ".log")
	if err != nil {
		return nil, err
	}
	// The suite ends a spec at the bound by itself; this is for where it cannot.
	ctx, cancel := context.WithTimeout(ctx, bound+time.Minute)
	defer cancel()
	suite := exec.CommandContext(ctx, r.E2E, append(args, r.Extra...)...)
	suite.Stdout, suite.Stderr = log, log
	suite.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	suite.Cancel = func() error { return syscall.Kill(-suite.Process.Pid, syscall.SIGKILL) }
	ended := suite.Run()
	report, err := os.ReadFile(base + ".json")
	if err != nil {
		return nil, errors.Join(ended, err, log.Close())
	}
	found, err := parse(report)
	return found, errors.Join(ended, err, log.Close())
}

// maxWhy bounds how much of a failure is told.
const maxWhy = 400

// parse reads the specs that were run from ginkgo's report.
func parse(report []byte) (map[string]Result, error) {
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeType, LeafNodeText, State string
			RunTime                           time.Duration
			Failure                           struct{ Message string }
		}
	}
	if err := json.Unmarshal(report, &suites); err != nil {
		return nil, err
	}
	found, ofSuite := map[string]Result{}, ""
	for _, suite := range suites {
		for _, s := range suite.SpecReports {
			why := strings.Join(strings.Fields(s.Failure.Message), " ")
			if len(why) > maxWhy {
				why = why[:maxWhy] + "…"
			}
			if s.LeafNodeType != "It" {
				if s.State == "failed" {
					ofSuite = why
				}
				continue
			}
			// What the focus leaves out is "skipped" after no time at all.
			if s.State == "pending" || s.State == "skipped" && s.RunTime == 0 && why == "" {
				continue
			}
			name := strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")
			found[name] = Result{State: s.State, Took: s.RunTime, Why: why}
		}
	}
	for name, f := range found {
		if f.State != "passed" && f.Why == "" {
			f.Why = ofSuite
			found[name] = f
		}
	}
	return found, nil
}
