// Package crash kills a storing process, and cuts the disk under it, and looks
// at what is left.
//
// A storm is a child process in which writers commit as fast as they can and
// say on standard output what was acknowledged. What a writer commits follows
// from its name and a counter, so whoever reads the folder afterwards knows
// what each object must hold.
package crash

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"sync"
	"time"

	"setpoint.dev/setpoint/store"
)

// Shape of a storm.
const (
	Writers = 32
	keys    = 8 // objects per writer
)

// Ack is an acknowledged commit: the n-th of a writer, at a revision, known to
// be durable at a time.
type Ack struct {
	Writer int
	N      int
	Rev    store.Revision
	At     time.Time
}

// deletes says whether the n-th commit of a writer deletes its object.
func deletes(n int) bool { return n%11 == 10 && !sets(n) }

// sets says whether the n-th commit of a writer writes its pair of objects,
// which lie in two tables and must never differ.
func sets(n int) bool { return n%5 == 4 }

func key(writer, n int) string { return fmt.Sprintf("w%02d/%d", writer, n%keys) }

// value is what the n-th commit of a writer stores: text that carries its own
// checksum, a little under 2 KiB.
func value(writer, n int) (text []byte, revAt int) {
	body := fmt.Sprintf("%d %d %s", writer, n, strings.Repeat("setpoint", 240-n%16))
	const head = `{"rev":"`
	return fmt.Appendf(nil, `%s","sum":%d,"body":"%s"}`, head, crc32.ChecksumIEEE([]byte(body)), body), len(head)
}

// parse reads a value back; ok is false when it is torn.
func parse(text []byte, rev store.Revision) (writer, n int, ok bool) {
	var sum uint32
	var at store.Revision
	head, body, found := strings.Cut(string(text), `,"body":"`)
	if !found {
		return 0, 0, false
	}
	body = strings.TrimSuffix(body, `"}`)
	if _, err := fmt.Sscanf(head, `{"rev":"%d","sum":%d`, &at, &sum); err != nil || at != rev || crc32.ChecksumIEEE([]byte(body)) != sum {
		return 0, 0, false
	}
	_, err := fmt.Sscanf(body, "%d %d", &writer, &n)
	return writer, n, err == nil
}

func operations(writer, n int) []store.Op {
	op := store.Op{Resource: "things", Key: key(writer, n)}
	op.Value, op.RevAt = value(writer, n)
	op.Index = store.Index{Labels: map[string]string{"writer": fmt.Sprint(writer)}, Owners: []string{fmt.Sprint("owner-", n%7)}}
	switch {
	case deletes(n):
		return []store.Op{{Resource: "things", Key: key(writer, n), Delete: true, RevAt: -1}}
	case sets(n):
		a, b := op, op
		a.Resource, b.Resource = "left", "right"
		a.Key, b.Key = fmt.Sprintf("w%02d", writer), fmt.Sprintf("w%02d", writer)
		return []store.Op{a, b}
	default:
		return []store.Op{op}
	}
}

// Storm writes to the store until ctx ends or a commit fails, each writer from
// the number that start gives for it, and says to out what was
// acknowledged, one line each.
func Storm(ctx context.Context, s *store.Store, start func(writer int) int, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex // guards out
	// say tells of an acknowledgement before the writer goes on, so that at
	// most one commit of each writer is there untold.
	say := func(a Ack) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := fmt.Fprintf(out, "%d %d %d %d\n", a.Writer, a.N, a.Rev, a.At.UnixNano())
		return err
	}
	var writers sync.WaitGroup
	for w := range Writers {
		writers.Go(func() {
			for n := start(w); ctx.Err() == nil; n++ {
				rev, err := s.Commit(ctx, store.Provenance{User: fmt.Sprint("writer-", w), Verb: "storm"}, operations(w, n)...)
				if _, missing := errors.AsType[*store.ConflictError](err); missing && deletes(n) {
					continue
				}
				if err == nil {
					err = say(Ack{Writer: w, N: n, Rev: rev, At: time.Now()})
				}
				if err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	writers.Wait()
	return context.Cause(ctx)
}

// ReadAcks reads what a storm said, up to its end; a last line that was cut
// off is left out.
func ReadAcks(r io.Reader) []Ack {
	var acks []Ack
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return acks
		}
		var a Ack
		var nanos int64
		if _, err := fmt.Sscanf(line, "%d %d %d %d\n", &a.Writer, &a.N, &a.Rev, &nanos); err == nil {
			a.At = time.Unix(0, nanos)
			acks = append(acks, a)
		}
	}
}
