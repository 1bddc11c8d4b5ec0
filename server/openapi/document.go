package openapi

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/munnerz/goautoneg"
)

const mediaJSON = "application/json"

// media are the protobuf media types of a kind of document: the one that is
// answered, and the ones that may be asked for.
type media struct {
	answered string
	asked    []string
}

// Compat: clients still ask with an "@", which is not allowed in a media type
// and which mime.ParseMediaType refuses; the answer is named without it.
var (
	mediaV2 = &media{
		answered: "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
		asked: []string{
			"application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
			"application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
		},
	}
	mediaV3 = &media{
		answered: "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
		asked: []string{
			"application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
			"application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
		},
	}
)

// document is one document in its encodings. Encodings are made when they are
// first asked for and kept as gzip, about a tenth of their size: nearly every
// client takes them so, and for the others they are expanded again.
type document struct {
	hash  string
	media *media // nil when there is only JSON
	path  string // for documents whose URLs carry a hash
	json  func() ([]byte, error)
	proto func() ([]byte, error)
	made  atomic.Bool
}

// newDocument returns a document that render makes in JSON and that convert
// turns from JSON into protobuf.
func newDocument(hash string, m *media, path string, render func() ([]byte, error), convert func([]byte) ([]byte, error)) *document {
	d := &document{hash: hash, media: m, path: path}
	d.json = sync.OnceValues(func() ([]byte, error) {
		b, err := render()
		if err != nil {
			return nil, fmt.Errorf("make OpenAPI document: %w", err)
		}
		d.made.Store(true)
		return compress(b), nil
	})
	d.proto = sync.OnceValues(func() ([]byte, error) {
		b, err := d.json()
		if err != nil {
			return nil, err
		}
		if b, err = expand(b); err != nil {
			return nil, err
		}
		if b, err = convert(b); err != nil {
			return nil, fmt.Errorf("encode OpenAPI document: %w", err)
		}
		return compress(b), nil
	})
	return d
}

// or returns an earlier document in place of d if that has been made and is the
// same; it may be nil. One that has not been made would hold on to the list
// that it is to be made from.
func (d *document) or(earlier *document) *document {
	if earlier != nil && earlier.made.Load() && earlier.hash == d.hash {
		return earlier
	}
	return d
}

// url is where the document is found for as long as it stays what it is.
func (d *document) url() string { return d.path + "?hash=" + url.QueryEscape(d.hash) }

// serve answers with the encoding that the client prefers.
//
// Compat: a URL with a hash can be cached for ever. With the hash of another
// edition it leads to the present one.
func (d *document) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Add("Vary", "Accept")
	h.Add("Vary", "Accept-Encoding")
	contentType, encode := d.negotiate(r.Header.Get("Accept"))
	if encode == nil {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	h.Set("Content-Type", contentType)
	etag := strconv.Quote(d.hash)
	h.Set("Etag", etag)
	if hash := r.URL.Query().Get("hash"); hash != "" && d.path != "" {
		if hash != d.hash {
			http.Redirect(w, r, d.url(), http.StatusMovedPermanently)
			return
		}
		h.Set("Cache-Control", "public, immutable")
		h.Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	if known(r.Header.Get("If-None-Match"), etag) {
		h.Del("Content-Type")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body, err := encode()
	if err == nil && !acceptsGzip(r.Header.Get("Accept-Encoding")) {
		body, err = expand(body)
	} else if err == nil {
		h.Set("Content-Encoding", "gzip")
	}
	if err != nil {
		for _, name := range []string{"Etag", "Cache-Control", "Expires"} {
			h.Del(name)
		}
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client has gone
}

// negotiate returns the media type to answer with and what encodes it; nil
// when nothing acceptable can be had.
func (d *document) negotiate(accept string) (string, func() ([]byte, error)) {
	if accept == "" || d.media == nil {
		return mediaJSON, d.json
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		name := clause.Type + "/" + clause.SubType
		switch {
		case name == mediaJSON, name == "*/*", name == "application/*":
			return mediaJSON, d.json
		case slices.Contains(d.media.asked, name):
			return d.media.answered, d.proto
		}
	}
	return "", nil
}

// known says whether etag is among those of an If-None-Match header.
func known(header, etag string) bool {
	for tag := range strings.SplitSeq(header, ",") {
		tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
		if tag == etag || tag == "*" {
			return true
		}
	}
	return false
}

// acceptsGzip says whether an Accept-Encoding header takes gzip.
func acceptsGzip(header string) bool {
	for clause := range strings.SplitSeq(header, ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(clause), ";")
		if name = strings.TrimSpace(name); name != "gzip" && name != "*" {
			continue
		}
		q, found := strings.CutPrefix(strings.TrimSpace(params), "q=")
		weight, err := strconv.ParseFloat(q, 64)
		return !found || (err == nil && weight > 0)
	}
	return false
}

func compress(b []byte) []byte {
	var out bytes.Buffer
	// Speed over size: the first request waits for this.
	z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	_, _ = z.Write(b) // a bytes.Buffer takes everything
	_ = z.Close()
	return bytes.Clone(out.Bytes())
}

func expand(b []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}
