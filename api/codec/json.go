package codec

import (
	"bufio"
	"bytes"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// jsonForm has parts that are stored and begin with their Header.
type jsonForm struct{}

func (jsonForm) Object(_ []byte, _ schema.GroupVersionKind, part []byte) []byte { return part }

func (jsonForm) End() string { return "\n" }

func (jsonForm) Measure(parts [][]byte) Measure { return Measure{Count: len(parts)} }

func (jsonForm) Head(b []byte, kind schema.GroupVersionKind, m metav1.ListMeta, _ Measure) []byte {
	version, name := kind.ToAPIVersionAndKind()
	b = fmt.Appendf(b, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":%q`, name+"List", version, m.ResourceVersion)
	if m.Continue != "" {
		b = fmt.Appendf(b, `,"continue":%q`, m.Continue)
	}
	if m.RemainingItemCount != nil {
		b = fmt.Appendf(b, `,"remainingItemCount":%d`, *m.RemainingItemCount)
	}
	return append(b, `},"items":[`...)
}

// Items writes stored bytes one after the other. Compat: items of a list go
// without their kind.
func (jsonForm) Items(w *bufio.Writer, kind schema.GroupVersionKind, parts [][]byte) {
	header := len(Header(kind))
	for i, part := range parts {
		if i > 0 {
			_ = w.WriteByte(',')
		}
		_ = w.WriteByte('{')
		_, _ = w.Write(part[header:])
	}
}

func (jsonForm) Tail(b []byte, _ metav1.ListMeta) []byte { return append(b, "]}\n"...) }

func (jsonForm) Event(b []byte, name string, object []byte) []byte {
	b = append(append(append(b, `{"type":"`...), name...), `","object":`...) // names need no quoting
	b = append(b, bytes.TrimSuffix(object, []byte("\n"))...)
	return append(b, "}\n"...)
}
