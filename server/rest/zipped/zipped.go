// Package zipped writes gzip answers in pieces.
//
// In come the pieces of an answer, or pieces that were compressed for an answer
// before; out goes one gzip stream of them all. A piece refers to nothing before
// it and ends at a whole byte, so it can stand in any stream.
package zipped

import (
	"bufio"
	"encoding/binary"
	"io"
	"sync"

	"github.com/klauspost/compress/flate"
)

// Piece is a piece that has been compressed. It does not change.
type Piece struct {
	deflated []byte
	sum      sum
}

// Size is how many bytes it is compressed to.
func (p *Piece) Size() int { return len(p.deflated) }

// Writer compresses. The first error of where it writes to ends all that
// follows: the client has gone.
type Writer struct {
	*press
	err  error
	sum  sum // of all pieces that are done
	part sum // of the piece at hand

	keeps bool // the piece at hand is kept, if it has at most bytes
	most  int
	kept  []byte
}

// head is of a stream that tells neither its name nor its time, written as fast
// as can be, on any system.
const head = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"

// press is what it takes to compress: the compressor, and room for what comes
// out of it in drops.
type press struct {
	z  *flate.Writer
	to *bufio.Writer
}

var presses = sync.Pool{New: func() any {
	z, _ := flate.NewWriter(nil, flate.BestSpeed) // a valid level
	return &press{z, bufio.NewWriterSize(nil, 32<<10)}
}}

// New begins a stream.
func New(to io.Writer) *Writer {
	w := &Writer{press: presses.Get().(*press)}
	w.to.Reset(to)
	w.send([]byte(head))
	w.z.Reset((*sender)(w))
	return w
}

// sender is where the compressor writes to.
type sender Writer

// Write implements io.Writer.
func (s *sender) Write(p []byte) (int, error) {
	w := (*Writer)(s)
	if w.keeps = w.keeps && len(w.kept)+len(p) <= w.most; w.keeps {
		w.kept = append(w.kept, p...)
	}
	w.send(p)
	return len(p), w.err
}

func (w *Writer) send(p []byte) {
	if w.err == nil {
		_, w.err = w.to.Write(p)
	}
}

// Write implements io.Writer: it adds to the piece at hand.
func (w *Writer) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	w.part.add(p)
	return w.z.Write(p)
}

// Keep has the piece at hand kept, unless it grows beyond some size.
func (w *Writer) Keep(most int) { w.keeps, w.most = true, most }

// Cut ends the piece at hand and begins another. It returns the piece if it was
// to be kept, nil otherwise.
func (w *Writer) Cut() *Piece {
	_ = w.z.Flush() // the error is in w
	w.z.Reset((*sender)(w))
	var p *Piece
	if w.keeps && w.err == nil {
		p = &Piece{w.kept, w.part}
	}
	w.sum, w.part, w.keeps, w.kept = w.sum.then(w.part), sum{}, false, nil
	return p
}

// Put writes a piece that is there. The piece at hand must be empty.
func (w *Writer) Put(p *Piece) {
	w.send(p.deflated)
	w.sum = w.sum.then(p.sum)
}

// Close ends the stream.
func (w *Writer) Close() {
	_ = w.z.Close() // the error is in w
	all := w.sum.then(w.part)
	w.send(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, all.crc), uint32(all.size))) //nolint:gosec // as much of it as there is room for
	_ = w.to.Flush()
	w.z.Reset(nil)
	w.to.Reset(nil)
	presses.Put(w.press)
	w.press = nil
}
