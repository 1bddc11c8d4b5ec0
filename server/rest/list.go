package rest

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"setpoint.dev/setpoint/store"
)

// query is what a list or watch asks for.
type query struct {
	internalversion.ListOptions
	selection
}

// listOptions reads the query of a list, watch or deletecollection.
func (c *call) listOptions() (*query, error) {
	q := &query{}
	if err := c.options(&q.ListOptions); err != nil {
		return nil, err
	}
	if errs := internalvalidation.ValidateListOptions(&q.ListOptions, true); len(errs) > 0 {
		return nil, invalidOptions("ListOptions", errs)
	}
	var err error
	q.selection, err = c.selection(q.LabelSelector, q.FieldSelector)
	q.uninitialized = c.includesUninitialized()
	return q, err
}

// selection is which objects a request is about.
type selection struct {
	labels labels.Selector
	fields fields.Selector // in the names of the internal type
	// span is the part of the table that they lie in.
	span store.Range
	// key is the one key that matters; "" when there may be several.
	key string
	// uninitialized says that objects are wanted which wait for initializers.
	uninitialized bool
}

func (c *call) selection(l labels.Selector, f fields.Selector) (selection, error) {
	s := selection{labels: l, fields: f}
	s.span.Prefix = c.root()
	if s.labels == nil {
		s.labels = labels.Everything()
	}
	if s.fields == nil {
		s.fields = fields.Everything()
	}
	if c.info.Name != "" {
		// Compat: a list or watch of one object may repeat its name, not
		// contradict it.
		if name, ok := s.fields.RequiresExactMatch("metadata.name"); ok && name != c.info.Name {
			return s, apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
		}
		s.fields = fields.AndSelectors(s.fields, fields.OneTermEqualSelector("metadata.name", c.info.Name))
	}
	var err error
	s.fields, err = s.fields.Transform(func(label, value string) (string, string, error) {
		return c.resource.ConvertFieldLabel(c.kind.Version, label, value)
	})
	if err != nil {
		return s, apierrors.NewBadRequest(err.Error())
	}
	if ns, ok := s.fields.RequiresExactMatch("metadata.namespace"); ok && s.span.Prefix == "" && c.resource.Namespaced {
		s.span.Prefix = ns + "/"
	}
	name, named := s.fields.RequiresExactMatch("metadata.name")
	if named && (!c.resource.Namespaced || s.span.Prefix != "") {
		s.key = s.span.Prefix + name
		return s, nil
	}
	if c.resource.Custom != nil {
		return s, nil // which fields there are changes with the definition
	}
	for _, r := range s.fields.Requirements() {
		if v, ok := s.fields.RequiresExactMatch(r.Field); ok && !strings.HasPrefix(r.Field, "metadata.") {
			s.span.Field, s.span.Value = r.Field, v
			break
		}
	}
	return s, nil
}

// matches says whether an object in the span is selected.
func (s *selection) matches(c *call, o *store.Object) bool {
	v := view{Object: o, call: c}
	return s.shows(o) && (s.key == "" || o.Key() == s.key) && (s.labels.Empty() || s.labels.Matches(v)) && (s.fields.Empty() || s.fields.Matches(viewFields(v)))
}

// view shows an object to selectors without decoding it.
type view struct {
	*store.Object
	call *call
}

// Has says whether the object has a label.
func (v view) Has(label string) bool {
	_, ok := v.Label(label)
	return ok
}

// Get returns a label.
func (v view) Get(label string) string {
	value, _ := v.Label(label)
	return value
}

// Lookup returns a label and whether the object has it.
func (v view) Lookup(label string) (string, bool) { return v.Label(label) }

type viewFields view

func (v viewFields) lookup(field string) (string, bool) {
	namespace, name := v.call.resource.SplitKey(v.Key())
	switch field {
	case "metadata.name":
		return name, true
	case "metadata.namespace":
		return namespace, v.call.resource.Namespaced
	}
	if v.call.resource.Custom != nil && !v.call.byTheseRules(v.Object) {
		return v.call.reread(v.Object, field)
	}
	return v.Field(field)
}

// reread is a field of an object that was stored by other rules than today's.
func (c *call) reread(o *store.Object, field string) (string, bool) {
	obj, err := c.stored(o)
	if err != nil {
		return "", false
	}
	set, err := c.resource.Fields(obj)
	if err != nil {
		return "", false
	}
	value, ok := set[field]
	return value, ok
}

// Has says whether the object has a field.
func (v viewFields) Has(field string) bool {
	_, ok := v.lookup(field)
	return ok
}

// Get returns a field.
func (v viewFields) Get(field string) string {
	value, _ := v.lookup(field)
	return value
}

func (c *call) list() error {
	q, err := c.listOptions()
	if err != nil {
		return err
	}
	p, err := c.page(q)
	if err != nil {
		return err
	}
	return c.respondList(p)
}

// page is a list, or a part of one.
type page struct {
	rev       store.Revision
	objects   []*store.Object
	next      string // token for the part that follows; "" when there is none
	remaining *int64
}

func (c *call) page(q *query) (*page, error) {
	sn, after, err := c.listSnapshot(q)
	if err != nil {
		return nil, err
	}
	p := &page{rev: sn.Rev()}
	span := q.span
	span.After = after
	if q.key != "" {
		span = store.Range{Prefix: q.key, After: after}
	}
	limit := q.Limit
	if q.ResourceVersion == "0" {
		limit = 0 // Compat: a list that may be of any age comes whole
	}
	more := 0
	for o, err := range sn.Scan(c.ctx, c.resource.Table, span) {
		if err != nil {
			return nil, c.expired(err, after, q)
		}
		if !q.shows(o) {
			continue
		}
		if limit > 0 && int64(len(p.objects)) == limit {
			more++
			if n, known := c.count(sn, q, span, p); known {
				more = n
				break
			}
			if !q.labels.Empty() || !q.fields.Empty() {
				// Compat: with a selector it is not told how many more there
				// are, and what follows may turn out not to match.
				break
			}
			continue
		}
		if !q.matches(c, o) {
			continue
		}
		p.objects = append(p.objects, o)
	}
	if more > 0 {
		if q.Continue == "" {
			c.pages.begun(p.rev, time.Now())
		}
		p.next = c.tokenAfter(int64(p.rev), p.objects[len(p.objects)-1].Key())
		if q.labels.Empty() && q.fields.Empty() {
			n := int64(more)
			p.remaining = &n
		}
	}
	return p, nil
}

// count is how many objects follow a page, and whether that is known without
// reading them all.
func (c *call) count(sn *store.Snapshot, q *query, span store.Range, p *page) (int, bool) {
	if !q.labels.Empty() || !q.fields.Empty() {
		return 0, false
	}
	if marked, known := sn.CountMarked(c.resource.Table); !known || marked > 0 && !q.uninitialized {
		return 0, false
	}
	span.After = p.objects[len(p.objects)-1].Key()
	return sn.Count(c.resource.Table, span)
}

// listSnapshot is the state that a list is made from, and the key it goes on
// after.
func (c *call) listSnapshot(q *query) (*store.Snapshot, string, error) {
	now, err := c.snapshot()
	if err != nil {
		return nil, "", err
	}
	if q.Continue != "" {
		if q.ResourceVersion != "" && q.ResourceVersion != "0" {
			return nil, "", apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		t, err := decodeToken(q.Continue)
		if err != nil {
			return nil, "", err
		}
		after := before(c.root() + t.Start)
		if t.Rev < 0 {
			return now, after, nil
		}
		rev := store.Revision(t.Rev)
		if rev > now.Rev() {
			return nil, "", tooLarge(rev, now.Rev())
		}
		if rev < now.Rev() && c.pages.over(rev, time.Now()) {
			return nil, "", c.expired(store.ErrCompacted, after, q)
		}
		sn, err := c.Store.SnapshotAt(c.info.Plane, rev)
		return sn, after, err
	}
	rev, err := parseRevision(q.ResourceVersion)
	if err != nil {
		return nil, "", apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	if rev > now.Rev() {
		return nil, "", tooLarge(rev, now.Rev())
	}
	exact := q.ResourceVersionMatch == metav1.ResourceVersionMatchExact ||
		rev > 0 && q.Limit > 0 && q.ResourceVersionMatch == ""
	if exact && rev > 0 {
		sn, err := c.Store.SnapshotAt(c.info.Plane, rev)
		return sn, "", err
	}
	return now, "", nil
}

// expired is what a client reads whose page is of a past that is gone; the
// token in it goes on at the same place in the present.
func (c *call) expired(err error, after string, q *query) error {
	if !errors.Is(err, store.ErrCompacted) {
		return err
	}
	if q.Continue == "" {
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	}
	gone := apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.")
	gone.ErrStatus.Continue = c.tokenAfter(-1, after)
	return gone
}

// root is what the keys begin with that the request's path is about. Tokens
// tell keys without it, so that one leads nowhere else than its path does.
func (c *call) root() string {
	if c.info.Namespace == "" || !c.resource.Namespaced {
		return ""
	}
	return c.info.Namespace + "/"
}

// tokenAfter is the token of a list that goes on after a key, in the state of a
// revision; -1 means whatever state there is then.
func (c *call) tokenAfter(rev int64, key string) string {
	t := continueToken{Version: tokenVersion, Rev: rev, Start: strings.TrimPrefix(key, c.root()) + "\x00"}
	b, _ := json.Marshal(t) // of texts and a number
	return base64.RawURLEncoding.EncodeToString(b)
}

// before is the last key that a list which begins at start leaves out. Keys
// are UTF-8, so that none has a byte of 255.
func before(start string) string {
	most, last := start[:len(start)-1], start[len(start)-1]
	if last == 0 {
		return most
	}
	return most + string([]byte{last - 1, 255})
}

// continueToken is what a client gives back to go on with a list. Compat: its
// form is upstream's, so that tokens can be read by those who look into them.
type continueToken struct {
	Version string `json:"v"`
	Rev     int64  `json:"rv"`
	Start   string `json:"start"`
}

const tokenVersion = "meta.k8s.io/v1"

func decodeToken(text string) (continueToken, error) {
	bad := func(why any) error {
		return apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: continue key is not valid: %v", why))
	}
	var t continueToken
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return t, bad(err)
	}
	if err := json.Unmarshal(b, &t); err != nil {
		return t, bad(err)
	}
	switch {
	case t.Version != tokenVersion:
		return t, bad("server does not recognize this encoded version " + t.Version)
	case t.Rev == 0:
		return t, bad("incorrect encoded start resourceVersion (version " + tokenVersion + ")")
	case t.Start == "":
		return t, bad("encoded start key empty (version " + tokenVersion + ")")
	}
	// A start that climbs could lead out of the path's namespace.
	asked := t.Start
	if t.Start = strings.TrimPrefix(asked, "/"); t.Start == "" || path.Clean("/"+t.Start) != "/"+t.Start {
		return t, bad(asked)
	}
	return t, nil
}
