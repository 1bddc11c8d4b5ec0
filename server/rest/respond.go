package rest

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"setpoint.dev/setpoint/api/codec"
	"setpoint.dev/setpoint/api/initializers"
	"setpoint.dev/setpoint/server/rest/zipped"
	"setpoint.dev/setpoint/store"
)

// respond answers with one object.
func (c *call) respond(code int, o *store.Object) error {
	if form := c.form(o); form != nil {
		part, err := c.part(o)
		if err != nil {
			return err
		}
		f := frames.Get().(*frame)
		defer f.release()
		c.writeBody(code, f.put(form, c, part), []byte(form.End()))
		return nil
	}
	obj, err := c.stored(o)
	if err == nil && c.scales() {
		obj, err = c.scaleOf(obj)
	}
	if err != nil {
		return err
	}
	body, err := c.encodeObject(obj)
	if err != nil {
		return err
	}
	c.writeBody(code, body)
	return nil
}

// form puts the answer together from parts that are stored, or kept with what
// is stored; nil when the answer is made of the objects themselves.
func (c *call) form(of ...*store.Object) codec.Form {
	switch {
	case !c.fromParts(of...):
		return nil
	case c.resource.Custom == nil:
		return c.out.Form
	default:
		return codec.UntypedJSON{ListKind: c.resource.ListOf()}
	}
}

// fromParts says that the answer has a form. It allocates nothing, for watches
// that only pass on what others have written.
func (c *call) fromParts(of ...*store.Object) bool {
	if c.out.as != "" || c.out.pretty || c.groupVersion() != c.resource.Storage || c.scales() {
		return false
	}
	if c.resource.Custom == nil {
		return c.out.Form != nil
	}
	return c.out.MediaType == codec.JSON && !slices.ContainsFunc(of, func(o *store.Object) bool { return !c.byTheseRules(o) })
}

// part is a stored object's part of an answer: what is stored, or what was made
// of it when somebody first asked.
func (c *call) part(o *store.Object) ([]byte, error) {
	if c.out.Part == nil {
		return o.Value(), nil
	}
	return o.Derived(c.out.MediaType, func(o *store.Object) ([]byte, error) {
		obj, err := c.codec().DecodeVersioned(o.Value(), c.resource.StorageKind())
		if err != nil {
			return nil, err
		}
		return c.out.Part(obj)
	})
}

// encodeObject writes an object of the internal type as asked for.
func (c *call) encodeObject(obj runtime.Object) ([]byte, error) {
	version, speaks := c.spoken().GroupVersion(), c.codec()
	switch c.out.as {
	case "Table":
		t, err := c.table(obj)
		if err != nil {
			return nil, err
		}
		obj, version, speaks = t, c.out.metaVersion(), metaCodec()
	case "PartialObjectMetadataList":
		return nil, refused(fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%T)", obj))
	case "PartialObjectMetadata":
		p, err := c.partial(obj)
		if err != nil {
			return nil, err
		}
		obj, version, speaks = p, c.out.metaVersion(), metaCodec()
	}
	info, err := speaks.Media(c.out.MediaType)
	if err != nil {
		return nil, err
	}
	if c.out.pretty {
		return speaks.EncodePretty(info, obj, version)
	}
	return speaks.Encode(info, obj, version)
}

// partial is an object's metadata alone.
func (c *call) partial(obj runtime.Object) (*metav1.PartialObjectMetadata, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	p := meta.AsPartialObjectMetadata(m)
	p.SetGroupVersionKind(c.out.metaVersion().WithKind("PartialObjectMetadata"))
	if c.resource.Custom != nil { // otherwise the metadata carries them
		waits, err := initializers.Of(obj)
		if err != nil {
			return nil, err
		}
		return p, initializers.Set(p, waits)
	}
	return p, nil
}

// table is an object, or a list of them, as a table. How much of each object
// goes with its row is the client's choice.
func (c *call) table(obj runtime.Object) (*metav1.Table, error) {
	var options metav1.TableOptions
	if err := c.options(&options); err != nil {
		return nil, err
	}
	switch options.IncludeObject {
	case "", metav1.IncludeNone, metav1.IncludeMetadata, metav1.IncludeObject:
	default:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: includeObject: Invalid value: %q: must be 'Metadata', 'Object', 'None', or empty", options.IncludeObject))
	}
	columns := c.resource.Columns
	if c.scales() && c.sub.Scale.Columns != nil {
		columns = c.sub.Scale.Columns
	}
	t, err := columns.ConvertToTable(c.ctx, obj, &options)
	if err != nil {
		return nil, err
	}
	for i := range t.Rows {
		row := &t.Rows[i]
		switch options.IncludeObject {
		case metav1.IncludeNone:
			row.Object = runtime.RawExtension{}
		case metav1.IncludeObject:
			versioned, err := c.resource.Scheme.ConvertToVersion(row.Object.Object, c.spoken().GroupVersion())
			if err != nil {
				return nil, err
			}
			row.Object.Object = versioned
		default:
			p, err := c.partial(row.Object.Object)
			if err != nil {
				return nil, err
			}
			row.Object.Object = p
		}
	}
	if c.headed {
		t.ColumnDefinitions = nil
	}
	t.SetGroupVersionKind(c.out.metaVersion().WithKind("Table"))
	return t, nil
}

// respondList answers with a list.
func (c *call) respondList(p *page) error {
	m := metav1.ListMeta{ResourceVersion: strconv.FormatInt(int64(p.rev), 10), Continue: p.next, RemainingItemCount: p.remaining}
	if form := c.form(p.objects...); form != nil {
		return c.writeList(form, p, m)
	}
	body, err := c.makeList(p, m)
	if err != nil {
		return err
	}
	c.writeBody(http.StatusOK, body)
	return nil
}

// maxDecoded is how many bytes of stored objects are decoded at a time for lists
// that are not made of the bytes themselves. Decoded they take several times as
// much.
const maxDecoded = 64 << 20

// makeList makes a list of the objects themselves, when it is its turn: as many are
// made at a time as there is memory for, a larger one than that alone.
func (c *call) makeList(p *page, m metav1.ListMeta) ([]byte, error) {
	size := int64(0)
	for _, o := range p.objects {
		size += int64(len(o.Value()))
	}
	size = min(size, maxDecoded)
	if err := c.decoded.Acquire(c.ctx, size); err != nil {
		return nil, err
	}
	defer c.decoded.Release(size)
	list, err := c.internalList(p, m)
	if err != nil {
		return nil, err
	}
	return c.encodeInternalList(list, m)
}

// respondInternalList answers with a list of the kind's internal type.
func (c *call) respondInternalList(list runtime.Object, m metav1.ListMeta) error {
	body, err := c.encodeInternalList(list, m)
	if err != nil {
		return err
	}
	c.writeBody(http.StatusOK, body)
	return nil
}

func (c *call) encodeInternalList(list runtime.Object, m metav1.ListMeta) ([]byte, error) {
	switch c.out.as {
	case "PartialObjectMetadataList":
		return c.encodePartialList(list, m)
	case "PartialObjectMetadata":
		return nil, refused(fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (%T)", list))
	}
	return c.encodeObject(list)
}

func (c *call) encodePartialList(of runtime.Object, m metav1.ListMeta) ([]byte, error) {
	list := &metav1.PartialObjectMetadataList{ListMeta: m}
	if err := meta.EachListItem(of, func(obj runtime.Object) error {
		item, err := c.partial(obj)
		if err == nil {
			list.Items = append(list.Items, *item)
		}
		return err
	}); err != nil {
		return nil, err
	}
	list.SetGroupVersionKind(c.out.metaVersion().WithKind("PartialObjectMetadataList"))
	info, err := metaCodec().Media(c.out.MediaType)
	if err != nil {
		return nil, err
	}
	return metaCodec().Encode(info, list, c.out.metaVersion())
}

// internalList decodes a page into the kind's internal list.
func (c *call) internalList(p *page, m metav1.ListMeta) (runtime.Object, error) {
	list, err := c.resource.Scheme.New(schema.GroupVersionKind{Group: c.resource.Group, Version: runtime.APIVersionInternal, Kind: c.resource.ListOf()})
	if err != nil {
		return nil, err
	}
	items := make([]runtime.Object, len(p.objects))
	for i, o := range p.objects {
		if items[i], err = c.stored(o); err != nil {
			return nil, err
		}
	}
	if err := meta.SetList(list, items); err != nil {
		return nil, err
	}
	l, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	l.SetResourceVersion(m.ResourceVersion)
	l.SetContinue(m.Continue)
	l.SetRemainingItemCount(m.RemainingItemCount)
	return list, nil
}

// writeList puts a list together from the parts of its items.
func (c *call) writeList(form codec.Form, p *page, m metav1.ListMeta) error {
	if c.unzips() {
		if known := c.lists.get(c.out.MediaType, p.objects); known != nil {
			c.writeZipped(form, m, known, nil)
			return nil
		}
	}
	parts := make([][]byte, len(p.objects))
	size := 0
	for i, o := range p.objects {
		part, err := c.part(o)
		if err != nil {
			return err
		}
		parts[i] = part
		size += len(part)
	}
	if c.unzips() && size >= gzipFrom {
		c.writeZipped(form, m, &zippedList{media: c.out.MediaType, objects: p.objects, measure: form.Measure(parts)}, parts)
		return nil
	}
	w, done := c.open(http.StatusOK, size)
	defer done()
	out := buffered(w)
	codec.WriteList(out, form, c.kind, m, parts)
	_ = out.Flush() // errors mean that the client has gone
	return nil
}

// writeZipped writes a compressed list. Items that are not compressed yet are
// made of the parts, and kept for whoever asks next.
func (c *call) writeZipped(form codec.Form, m metav1.ListMeta, list *zippedList, parts [][]byte) {
	c.headZipped(http.StatusOK)
	w := zipped.New(c.w)
	defer w.Close()
	_, _ = w.Write(form.Head(nil, c.kind, m, list.measure)) // the writer keeps errors
	w.Cut()
	if list.items != nil {
		w.Put(list.items)
	} else {
		w.Keep(maxListSize)
		out := buffered(w)
		form.Items(out, c.kind, parts)
		_ = out.Flush()
		if list.items = w.Cut(); list.items != nil {
			c.lists.put(list)
		}
	}
	_, _ = w.Write(form.Tail(nil, m))
}

// buffered writes in pieces that suit TLS and HTTP/2.
func buffered(w io.Writer) *bufio.Writer { return bufio.NewWriterSize(w, 64<<10) }

// gzipFrom is the size from which on an answer is compressed for clients that
// accept it.
const gzipFrom = 128 << 10

var gzips = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // a valid level
	return w
}}

// open begins an answer of about the given size and returns where to write it.
func (c *call) open(code, size int) (w io.Writer, done func()) {
	if size < gzipFrom || !c.unzips() {
		c.head(code)
		return c.w, func() {}
	}
	c.headZipped(code)
	z := gzips.Get().(*gzip.Writer)
	z.Reset(c.w)
	return z, func() {
		_ = z.Close() // the client has gone
		gzips.Put(z)
	}
}

// unzips says that the client takes answers that are compressed.
func (c *call) unzips() bool {
	return strings.Contains(c.r.Header.Get("Accept-Encoding"), "gzip")
}

// head begins an answer, headZipped one that is compressed.
func (c *call) head(code int) {
	h := c.w.Header()
	h.Set("Content-Type", c.out.MediaType)
	h.Set("Cache-Control", "no-cache, private")
	c.w.WriteHeader(code)
}

func (c *call) headZipped(code int) {
	h := c.w.Header()
	h.Set("Content-Encoding", "gzip")
	h.Add("Vary", "Accept-Encoding")
	c.head(code)
}

// writeBody answers with a body that is given in parts.
func (c *call) writeBody(code int, parts ...[]byte) {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if size < gzipFrom {
		c.w.Header().Set("Content-Length", strconv.Itoa(size))
	}
	w, done := c.open(code, size)
	defer done()
	for _, p := range parts {
		_, _ = w.Write(p) // errors mean that the client has gone
	}
}
