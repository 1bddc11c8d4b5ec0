package openapi

import (
	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
)

func protoV2(b []byte) ([]byte, error) {
	doc, err := openapiv2.ParseDocument(b)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(doc)
}

func protoV3(b []byte) ([]byte, error) {
	doc, err := openapiv3.ParseDocument(b)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(doc)
}
