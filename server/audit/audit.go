// Package audit writes down what was asked, by whom, and with what outcome.
//
// In come requests as they begin, answer and end; out go lines of JSON, each
// an event of audit.k8s.io/v1, to a file that is rotated or to standard
// output. A policy file of upstream's format says how much is told of which
// request; without one it is Metadata for all.
//
// Requests hand finished lines to a queue of bounded size that one goroutine
// writes. When the queue is full a request waits for a moment and then goes on
// without its event, which is counted and logged as lost: a slow disk costs
// events, not requests. Lines of one request are in order.
//
// Bodies of secrets, config maps, token reviews and token requests are told
// only under rules that name the resource, whatever a catch-all rule says. A
// token in a token review or request is not told under any rule.
package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/runtime"
	internal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Config says where the log goes and what is in it. Path is needed.
type Config struct {
	// PolicyFile holds the policy; "" means Metadata for every request.
	PolicyFile string
	// Path is the file to write to; - is standard output.
	Path string
	// MaxSize is the megabytes at which the file is rotated, MaxBackups how
	// many old files are kept and MaxAge for how many days. 0 means 100
	// megabytes, and any number and age.
	MaxSize, MaxBackups, MaxAge int
	// Logger hears of lost events; nil means slog.Default.
	Logger *slog.Logger
	// Dropped is told of each lost event; it may be nil.
	Dropped func()
}

// The queue of lines that wait to be written.
const (
	queueLines = 10_000
	queueBytes = 64 << 20
	// patience is how long a request waits for room in a full queue.
	patience = 50 * time.Millisecond
	// complainEvery is how often the loss of events is logged at most.
	complainEvery = 10 * time.Second
)

// Log is the audit log.
type Log struct {
	cfg Config
	out io.WriteCloser
	// all decides about requests, named about those for private resources.
	all, named audit.PolicyRuleEvaluator
	encoder    runtime.Encoder
	lines      chan []byte
	room       *semaphore.Weighted // of lines, in bytes
	lost       atomic.Int64
	complained atomic.Int64 // when, in Unix nanoseconds
}

// Open reads the policy and opens the log. Run closes it.
func Open(cfg Config) (*Log, error) {
	if cfg.Path == "" {
		return nil, errors.New("audit: no path to write to")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	rules := &internal.Policy{Rules: []internal.PolicyRule{{Level: internal.LevelMetadata}}}
	if cfg.PolicyFile != "" {
		var err error
		if rules, err = policy.LoadPolicyFromFile(cfg.PolicyFile); err != nil {
			return nil, fmt.Errorf("audit: %w", err)
		}
	}
	l := &Log{
		cfg: cfg, all: policy.NewPolicyRuleEvaluator(rules), named: policy.NewPolicyRuleEvaluator(namedOnly(rules)),
		encoder: audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion),
		lines:   make(chan []byte, queueLines), room: semaphore.NewWeighted(queueBytes),
	}
	if cfg.Path == "-" {
		l.out = stdout{os.Stdout}
		return l, nil
	}
	// Rotation opens the file at the first event; that it cannot should be
	// known now.
	f, err := os.OpenFile(cfg.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	l.out = &lumberjack.Logger{Filename: cfg.Path, MaxSize: cfg.MaxSize, MaxBackups: cfg.MaxBackups, MaxAge: cfg.MaxAge}
	return l, nil
}

// stdout is not closed with the log.
type stdout struct{ io.Writer }

func (stdout) Close() error { return nil }

// private are the resources whose bodies a rule has to name.
func private(a authorizer.Attributes) bool {
	switch a.GetAPIGroup() + "/" + a.GetResource() {
	case "/secrets", "/configmaps", "authentication.k8s.io/tokenreviews":
		return true
	case "/serviceaccounts":
		return a.GetSubresource() == "token"
	}
	return false
}

// namedOnly is a policy under which rules that name no resources tell no
// bodies.
func namedOnly(p *internal.Policy) *internal.Policy {
	p = p.DeepCopy()
	for i := range p.Rules {
		rule := &p.Rules[i]
		named := len(rule.Resources) > 0
		for _, r := range rule.Resources {
			named = named && len(r.Resources) > 0 && !slices.Contains(r.Resources, "*")
		}
		if !named && internal.LevelMetadata.Less(rule.Level) {
			rule.Level = internal.LevelMetadata
		}
	}
	return p
}

// Run writes until ctx ends, then what is still waiting, and closes the log.
func (l *Log) Run(ctx context.Context) error {
	for {
		select {
		case line := <-l.lines:
			l.write(line)
			continue
		case <-ctx.Done():
		}
		for {
			select {
			case line := <-l.lines:
				l.write(line)
				continue
			default:
			}
			break
		}
		if err := l.out.Close(); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		return nil
	}
}

func (l *Log) write(line []byte) {
	_, err := l.out.Write(line)
	l.room.Release(weight(line))
	if err != nil {
		l.drop(err)
	}
}

// weight is the part of the queue that a line takes; lines of the least weight
// fill the channel exactly.
func weight(line []byte) int64 { return max(int64(len(line)), queueBytes/queueLines+1) }

// ProcessEvents implements audit.Sink.
func (l *Log) ProcessEvents(events ...*internal.Event) bool {
	kept := true
	for _, e := range events {
		line, err := runtime.Encode(l.encoder, e)
		if err == nil {
			err = l.enqueue(line)
		}
		if err != nil {
			l.drop(err)
			kept = false
		}
	}
	return kept
}

var errFull = errors.New("the queue is full")

func (l *Log) enqueue(line []byte) error {
	n := weight(line)
	if !l.room.TryAcquire(n) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if l.room.Acquire(ctx, n) != nil {
			return errFull
		}
	}
	l.lines <- line // there is room for every line that has its weight
	return nil
}

// drop counts a lost event.
func (l *Log) drop(why error) {
	lost := l.lost.Add(1)
	if l.cfg.Dropped != nil {
		l.cfg.Dropped()
	}
	now, last := time.Now().UnixNano(), l.complained.Load()
	if now-last > int64(complainEvery) && l.complained.CompareAndSwap(last, now) {
		l.cfg.Logger.Error("audit events are lost", "error", why, "lost", lost)
	}
}
