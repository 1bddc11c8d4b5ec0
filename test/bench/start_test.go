package bench_test

import (
	"testing"
	"time"
)

// settled is how long after it is ready a server's memory is looked at.
const settled = 5 * time.Second

// started is what a start cost: all processes of a server added up.
type started struct {
	wall, cpu time.Duration
	rss, anon int // KiB
}

// BenchmarkStart measures from exec to a /readyz that answers 200 on an empty
// folder, and memory a while later, beside kube-apiserver and etcd when these
// are given.
func BenchmarkStart(b *testing.B) {
	binary := buildSetpoint(b)
	var ours, theirs []started
	for range rounds {
		ours = append(ours, startSetpoint(b, binary))
		if hasPeer() {
			theirs = append(theirs, startPeer(b))
		}
	}
	b.ReportMetric(0, "ns/op")
	report(b, "", ours)
	if len(theirs) == 0 {
		b.Log("no peer: give -kube-apiserver and -etcd to measure beside them")
		return
	}
	report(b, "peer-", theirs)
}

func report(b *testing.B, who string, all []started) {
	b.Helper()
	pick := func(of func(started) float64) float64 {
		var values []float64
		for _, s := range all {
			values = append(values, of(s))
		}
		return median(values)
	}
	b.ReportMetric(pick(func(s started) float64 { return float64(s.wall.Milliseconds()) }), who+"ready-ms")
	b.ReportMetric(pick(func(s started) float64 { return float64(s.cpu.Milliseconds()) }), who+"ready-cpu-ms")
	b.ReportMetric(pick(func(s started) float64 { return float64(s.rss) / 1024 }), who+"idle-MiB")
	b.ReportMetric(pick(func(s started) float64 { return float64(s.anon) / 1024 }), who+"idle-anon-MiB")
}

func startSetpoint(b *testing.B, binary string) started {
	b.Helper()
	return measure(b, setpointServer(b, binary))
}

func startPeer(b *testing.B) started {
	b.Helper()
	return measure(b, peerServer(b))
}

// measure starts a server, waits until it is ready, and ends it.
func measure(b *testing.B, s *server) started {
	b.Helper()
	begun := time.Now()
	s.start(b)
	defer s.stop()
	at := started{wall: time.Since(begun), cpu: s.cpu(b)}
	time.Sleep(settled)
	at.rss, at.anon = s.memory(b, "VmRSS:"), s.memory(b, "RssAnon:")
	return at
}
