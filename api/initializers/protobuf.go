package initializers

import (
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Number is the field's in the message of an object's metadata.
//
//	Initializers  1 pending*  2 result
//	Initializer   1 name
const Number = 16

// Marshal writes the field's message.
func (i *Initializers) Marshal() ([]byte, error) {
	var b []byte
	for _, p := range i.Pending {
		one := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), p.Name)
		b = protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), one)
	}
	if i.Result == nil {
		return b, nil
	}
	result, err := i.Result.Marshal()
	return protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), result), err
}

// Unmarshal adds what a message says.
func (i *Initializers) Unmarshal(b []byte) error {
	return eachBytes(b, func(n protowire.Number, value []byte) error {
		switch n {
		case 1:
			var one Initializer
			err := eachBytes(value, func(n protowire.Number, value []byte) error {
				if n == 1 {
					one.Name = string(value)
				}
				return nil
			})
			i.Pending = append(i.Pending, one)
			return err
		case 2:
			i.Result = &metav1.Status{}
			return i.Result.Unmarshal(value)
		}
		return nil
	})
}

// eachBytes hands the fields of a message to take that are bytes.
func eachBytes(b []byte, take func(n protowire.Number, value []byte) error) error {
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		length := protowire.ConsumeFieldValue(n, kind, b[size:])
		if length < 0 {
			return protowire.ParseError(length)
		}
		if kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(b[size:])
			if err := take(n, value); err != nil {
				return err
			}
		}
		b = b[size+length:]
	}
	return nil
}
