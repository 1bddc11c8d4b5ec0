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

// List writes stored bytes one after the other. Compat: items of a list go
// without their kind.
func (jsonForm) List(w *bufio.Writer, kind schema.GroupVersionKind, m metav1.ListMeta, parts [][]byte) {
	header := len(Header(kind))
	version, name := kind.ToAPIVersionAndKind()
	head := fmt.Appendf(w.AvailableBuffer(), `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":%q`, name+"List", version, m.ResourceVersion)
	if m.Continue != "" {
		head = fmt.Appendf(head, `,"continue":%q`, m.Continue)
	}
	if m.RemainingItemCount != nil {
		head = fmt.Appendf(head, `,"remainingItemCount":%d`, *m.RemainingItemCount)
	}
	_, _ = w.Write(append(head, `},"items":[`...))
	for i, part := range parts {
		if i > 0 {
			_ = w.WriteByte(',')
		}
		_ = w.WriteByte('{')
		_, _ = w.Write(part[header:])
	}
	_, _ = w.WriteString("]}\n")
}

func (jsonForm) Event(b []byte, name string, object []byte) []byte {
	b = append(append(append(b, `{"type":"`...), name...), `","object":`...) // names need no quoting
	b = append(b, bytes.TrimSuffix(object, []byte("\n"))...)
	return append(b, "}\n"...)
}
