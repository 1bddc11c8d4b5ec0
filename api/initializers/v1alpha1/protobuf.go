package v1alpha1

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The messages, by number:
//
//	InitializerConfiguration        1 metadata  2 initializers*  3 status
//	Initializer                     1 name  2 rules*  3 failurePolicy  4 timeoutSeconds  5 namespaceSelector
//	                                6 objectSelector  7 matchConditions*  8 matchPolicy  9 controller
//	Controller                      1 serviceAccount  2 lease
//	Reference                       1 namespace  2 name
//	InitializerConfigurationStatus  1 initializers*
//	InitializerStatus               1 name  2 observedGeneration  3 pending  4 oldestPendingSeconds
//	                                5 lastCompletionTime  6 conditions*
//
// The first two of the first two messages are those of Kubernetes 1.9, and 3 of
// an initializer is that of 1.7.

// marshaler is what upstream's messages are to who writes them.
type marshaler interface{ Marshal() ([]byte, error) }

// unmarshaler is what they are to who reads them.
type unmarshaler interface{ Unmarshal(b []byte) error }

// writer appends fields to a message; its first error stays.
type writer struct {
	b   []byte
	err error
}

func (w *writer) text(n protowire.Number, s string) {
	w.b = protowire.AppendString(protowire.AppendTag(w.b, n, protowire.BytesType), s)
}

func (w *writer) number(n protowire.Number, v int64) {
	w.b = protowire.AppendVarint(protowire.AppendTag(w.b, n, protowire.VarintType), uint64(v)) //nolint:gosec // as protobuf writes negative numbers
}

func (w *writer) message(n protowire.Number, m marshaler) {
	b, err := m.Marshal()
	if w.err == nil {
		w.err = err
	}
	w.b = protowire.AppendBytes(protowire.AppendTag(w.b, n, protowire.BytesType), b)
}

func messages[T any, P interface {
	*T
	marshaler
}](w *writer, n protowire.Number, of []T,
) {
	for i := range of {
		w.message(n, P(&of[i]))
	}
}

// field is one field of a message: a number, or bytes.
type field struct {
	number protowire.Number
	value  uint64
	bytes  []byte
}

// read hands each field of a message to take. Those of other types are left out,
// as fields of unknown numbers are by who takes them.
func read(b []byte, take func(f field) error) error {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		f := field{number: n}
		switch kind {
		case protowire.VarintType:
			f.value, size = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			f.bytes, size = protowire.ConsumeBytes(b)
		default:
			size = protowire.ConsumeFieldValue(n, kind, b)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		if kind != protowire.VarintType && kind != protowire.BytesType {
			continue
		}
		if err := take(f); err != nil {
			return fmt.Errorf("field %d: %w", n, err)
		}
	}
	return nil
}

// one reads a field into a new message.
func one[T any, P interface {
	*T
	unmarshaler
}](f field, into **T,
) error {
	*into = new(T)
	return P(*into).Unmarshal(f.bytes)
}

// more reads a field as one more message of a list.
func more[T any, P interface {
	*T
	unmarshaler
}](f field, into *[]T,
) error {
	var m T
	err := P(&m).Unmarshal(f.bytes)
	*into = append(*into, m)
	return err
}

// Reset makes a configuration empty.
func (in *InitializerConfiguration) Reset() { *in = InitializerConfiguration{} }

// Marshal writes a configuration as protobuf.
func (in *InitializerConfiguration) Marshal() ([]byte, error) {
	var w writer
	w.message(1, &in.ObjectMeta)
	messages(&w, 2, in.Initializers)
	w.message(3, &in.Status)
	return w.b, w.err
}

// Unmarshal reads a configuration.
func (in *InitializerConfiguration) Unmarshal(b []byte) error {
	return read(b, func(f field) error {
		switch f.number {
		case 1:
			return in.ObjectMeta.Unmarshal(f.bytes)
		case 2:
			return more(f, &in.Initializers)
		case 3:
			return in.Status.Unmarshal(f.bytes)
		}
		return nil
	})
}

// Reset makes a list empty.
func (in *InitializerConfigurationList) Reset() { *in = InitializerConfigurationList{} }

// Marshal writes a list as protobuf.
func (in *InitializerConfigurationList) Marshal() ([]byte, error) {
	var w writer
	w.message(1, &in.ListMeta)
	messages(&w, 2, in.Items)
	return w.b, w.err
}

// Unmarshal reads a list.
func (in *InitializerConfigurationList) Unmarshal(b []byte) error {
	return read(b, func(f field) error {
		switch f.number {
		case 1:
			return in.ListMeta.Unmarshal(f.bytes)
		case 2:
			return more(f, &in.Items)
		}
		return nil
	})
}

// Marshal writes an initializer as protobuf.
func (in *Initializer) Marshal() ([]byte, error) {
	var w writer
	w.text(1, in.Name)
	messages(&w, 2, in.Rules)
	if in.FailurePolicy != nil {
		w.text(3, string(*in.FailurePolicy))
	}
	if in.TimeoutSeconds != nil {
		w.number(4, int64(*in.TimeoutSeconds))
	}
	if in.NamespaceSelector != nil {
		w.message(5, in.NamespaceSelector)
	}
	if in.ObjectSelector != nil {
		w.message(6, in.ObjectSelector)
	}
	messages(&w, 7, in.MatchConditions)
	if in.MatchPolicy != nil {
		w.text(8, string(*in.MatchPolicy))
	}
	if in.Controller != nil {
		w.message(9, in.Controller)
	}
	return w.b, w.err
}

// Unmarshal reads an initializer.
func (in *Initializer) Unmarshal(b []byte) error {
	return read(b, func(f field) error {
		switch f.number {
		case 1:
			in.Name = string(f.bytes)
		case 2:
			return more(f, &in.Rules)
		case 3:
			in.FailurePolicy = new(FailurePolicyType(f.bytes))
		case 4:
			in.TimeoutSeconds = new(int32(f.value)) //nolint:gosec // as protobuf reads numbers of 32 bits
		case 5:
			return one(f, &in.NamespaceSelector)
		case 6:
			return one(f, &in.ObjectSelector)
		case 7:
			return more(f, &in.MatchConditions)
		case 8:
			in.MatchPolicy = new(admissionv1.MatchPolicyType(f.bytes))
		case 9:
			return one(f, &in.Controller)
		}
		return nil
	})
}

// Marshal writes a controller as protobuf.
func (in *Controller) Marshal() ([]byte, error) {
	var w writer
	if in.ServiceAccount != nil {
		w.message(1, in.ServiceAccount)
	}
	if in.Lease != nil {
		w.message(2, in.Lease)
	}
	return w.b, w.err
}

// Unmarshal reads a controller.
func (in *Controller) Unmarshal(b []byte) error {
	return read(b, func(f field) error {
		switch f.number {
		case 1:
			return one(f, &in.ServiceAccount)
		case 2:
			return one(f, &in.Lease)
		}
		return nil
	})
}

// Marshal writes a reference as protobuf.
func (in *Reference) Marshal() ([]byte, error) {
	var w writer
	w.text(1, in.Namespace)
	w.text(2, in.Name)
	return w.b, nil
}

// Unmarshal reads a reference.
func (in *Reference) Unmarshal(b []byte) error {
	return read(b, func(f field) error {
		switch f.number {
		case 1:
			in.Namespace = string(f.bytes)
		case 2:
			in.Name = string(f.bytes)
		}
		return nil
	})
}

// Marshal writes a status as protobuf.
func (in *InitializerConfigurationStatus) Marshal() ([]byte, error) {
	var w writer
	messages(&w, 1, in.Initializers)
	return w.b, w.err
}

// Unmarshal reads a status.
func (in *InitializerConfigurationStatus) Unmarshal(b []byte) error {
	return read(b, func(f field) error {
		if f.number == 1 {
			return more(f, &in.Initializers)
		}
		return nil
	})
}

// Marshal writes what is known of an initializer as protobuf.
func (in *InitializerStatus) Marshal() ([]byte, error) {
	var w writer
	w.text(1, in.Name)
	w.number(2, in.ObservedGeneration)
	w.number(3, in.Pending)
	w.number(4, in.OldestPendingSeconds)
	if in.LastCompletionTime != nil {
		w.message(5, in.LastCompletionTime)
	}
	messages(&w, 6, in.Conditions)
	return w.b, w.err
}

// Unmarshal reads what is known of an initializer.
func (in *InitializerStatus) Unmarshal(b []byte) error {
	return read(b, func(f field) error {
		switch f.number {
		case 1:
			in.Name = string(f.bytes)
		case 2:
			in.ObservedGeneration = int64(f.value) //nolint:gosec // as protobuf reads negative numbers
		case 3:
			in.Pending = int64(f.value) //nolint:gosec // likewise
		case 4:
			in.OldestPendingSeconds = int64(f.value) //nolint:gosec // likewise
		case 5:
			in.LastCompletionTime = &metav1.Time{}
			return in.LastCompletionTime.Unmarshal(f.bytes)
		case 6:
			return more(f, &in.Conditions)
		}
		return nil
	})
}
