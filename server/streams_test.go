package server_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"setpoint.dev/setpoint/app"
	"setpoint.dev/setpoint/app/apptest"
)

// streams is a connection of several streams that takes as much of each as it
// says, and no more.
type streams struct {
	*http2.Framer
	t     *testing.T
	conn  *tls.Conn
	heads *hpack.Encoder
	block bytes.Buffer
	next  uint32
	// mute leaves pings unanswered.
	mute  bool
	pings int
	// got is what has come in, by stream; ended and reset are those that have
	// ended, one way or the other.
	got          map[uint32]*bytes.Buffer
	ended, reset map[uint32]bool
}

// maxWindow is the most that can come in before the client asks for more.
const maxWindow = 1<<31 - 1

// connect opens a connection. Each stream gets the window given, the
// connection all it could want.
func connect(t *testing.T, p *apptest.Plane, window uint32) *streams {
	t.Helper()
	conn := dial(t, p, "h2")
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil { // that the test ends
		t.Fatal(err)
	}
	must[int](t)(io.WriteString(conn, http2.ClientPreface))
	s := &streams{
		Framer: http2.NewFramer(conn, conn), t: t, conn: conn, next: 1,
		got: map[uint32]*bytes.Buffer{}, ended: map[uint32]bool{}, reset: map[uint32]bool{},
	}
	s.heads = hpack.NewEncoder(&s.block)
	if err := s.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteWindowUpdate(0, maxWindow-1<<16); err != nil {
		t.Fatal(err)
	}
	return s
}

// get asks for a path and returns the stream that the answer comes on.
func (s *streams) get(path string) uint32 {
	s.t.Helper()
	s.block.Reset()
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "127.0.0.1"}, {":path", path}} {
		if err := s.heads.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			s.t.Fatal(err)
		}
	}
	id := s.next
	s.next += 2
	s.got[id] = &bytes.Buffer{}
	if err := s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: s.block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		s.t.Fatal(err)
	}
	return id
}

// read takes what the server says next. It never asks for more.
func (s *streams) read() error {
	f, err := s.ReadFrame()
	if err != nil {
		return err
	}
	id := f.Header().StreamID
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return s.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if s.pings++; !s.mute && !f.IsAck() {
			return s.WritePing(true, f.Data)
		}
	case *http2.DataFrame:
		s.got[id].Write(f.Data())
		s.ended[id] = s.ended[id] || f.StreamEnded()
	case *http2.RSTStreamFrame:
		s.reset[id] = true
	case *http2.GoAwayFrame:
		return fmt.Errorf("the server goes away: %v", f.ErrCode)
	}
	return nil
}

// until reads until something is so.
func (s *streams) until(what string, is func() bool) {
	s.t.Helper()
	for !is() {
		if err := s.read(); err != nil {
			s.t.Fatalf("%s: %v", what, err)
		}
	}
}

// answered asks for a path and waits for the whole answer.
func (s *streams) answered(path string) {
	s.t.Helper()
	id := s.get(path)
	s.until("an answer from "+path, func() bool { return s.ended[id] || s.reset[id] })
	if s.reset[id] || s.got[id].Len() == 0 {
		s.t.Fatalf("%s is not answered", path)
	}
}

func TestStreamsThatAreNotReadAreCutOffAndOthersGoOn(t *testing.T) {
	p := apptest.StartOn(t, app.Config{Data: app.Memory, WriteTimeout: 300 * time.Millisecond})
	core := as(t, p, "").CoreV1()
	for i := range 3 {
		must[*corev1.ConfigMap](t)(core.ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: meta(fmt.Sprintf("big%d", i)), Data: map[string]string{"a": strings.Repeat("x", 200<<10)},
		}, metav1.CreateOptions{}))
	}
	const window = 32 << 10
	s := connect(t, p, window)
	waiting := s.get("/api/v1/namespaces/kube-system/secrets?watch=1")
	for _, path := range []string{"/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/configmaps?watch=1", "/api/v1/namespaces/default/configmaps/big1"} {
		stuck := s.get(path)
		for !s.reset[stuck] {
			s.answered("/version") // all the while
		}
		if n := s.got[stuck].Len(); n > window || s.ended[stuck] {
			t.Errorf("%s: %d bytes came through a window of %d, ended %v", path, n, window, s.ended[stuck])
		}
	}
	s.answered("/version")
	if s.reset[waiting] || s.ended[waiting] {
		t.Fatal("a watch that waits has ended with those that are not read")
	}
	must[*corev1.Secret](t)(core.Secrets("kube-system").Create(t.Context(), &corev1.Secret{ObjectMeta: meta("late")}, metav1.CreateOptions{}))
	s.until("the watch that waits", func() bool { return bytes.Contains(s.got[waiting].Bytes(), []byte(`"late"`)) })
}

func TestAConnectionThatIsNotReadIsClosed(t *testing.T) {
	p := apptest.StartOn(t, app.Config{Data: app.Memory, WriteTimeout: 300 * time.Millisecond})
	core := as(t, p, "").CoreV1()
	const each, objects = 900 << 10, 20 // more than a socket takes
	for i := range objects {
		must[*corev1.ConfigMap](t)(core.ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: meta(fmt.Sprintf("big%d", i)), Data: map[string]string{"a": strings.Repeat("x", each)},
		}, metav1.CreateOptions{}))
	}
	for _, path := range []string{"/api/v1/configmaps", "/api/v1/configmaps?watch=1"} {
		s := connect(t, p, maxWindow)
		id := s.get(path)
		s.until("settings", func() bool { return s.got[id].Len() > 0 })
		// Nothing is read any more, until the server has given up: it does no
		// longer take what is sent to it.
		eventually(t, "the connection is closed", func() bool {
			return s.WritePing(false, [8]byte{}) != nil
		})
		n, _ := io.Copy(io.Discard, s.conn) // it may be cut off in the middle
		if n += int64(s.got[id].Len()); n > each*objects {
			t.Errorf("%s: %d bytes came", path, n)
		}
	}
}

func TestAConnectionThatIsSilentIsClosed(t *testing.T) {
	p := apptest.StartOn(t, app.Config{Data: app.Memory, PingAfter: 50 * time.Millisecond, PingWithin: 2 * time.Second})
	core := as(t, p, "").CoreV1()

	// One that has gone without a word does not answer, either.
	gone := connect(t, p, 1<<20)
	gone.mute = true
	gone.get("/api/v1/namespaces/default/configmaps?watch=1")
	for gone.read() == nil { //nolint:revive // until the server closes it; the deadline is far longer
	}
	if gone.pings == 0 {
		t.Error("it was not asked before")
	}

	there := connect(t, p, 1<<20)
	watch := there.get("/api/v1/namespaces/default/secrets?watch=1")
	there.until("pings", func() bool { return there.pings >= 5 })
	must[*corev1.Secret](t)(core.Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: meta("late")}, metav1.CreateOptions{}))
	there.until("the change", func() bool { return bytes.Contains(there.got[watch].Bytes(), []byte(`"late"`)) })
}
