// Package configfile reads the configuration files of the apiserver.config.k8s.io
// group, and follows their changes.
//
// In come a file's bytes; out comes the configuration they hold, of upstream's
// internal type, with its defaults. Unknown and repeated fields are errors.
// What it takes to read one is made when the first is read.
package configfile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/util/filesystem"
)

var decoder = sync.OnceValue(func() runtime.Decoder {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder()
})

// Decode reads a configuration of type T in any of its versions.
func Decode[T runtime.Object](data []byte) (T, error) {
	var none T
	obj, err := runtime.Decode(decoder(), data)
	if err != nil {
		return none, err
	}
	config, is := obj.(T)
	if !is {
		return none, fmt.Errorf("it holds %T, not %T", obj, none)
	}
	return config, nil
}

// again is how often a file is looked at when nothing tells of a change.
const again = time.Minute

// Follow calls changed with the content of a file whenever it is another than
// it was, have at first, until ctx ends. Content for which changed returns
// retry is offered again. What stands in the way of reading goes to failed.
func Follow(ctx context.Context, path string, have []byte, changed func(data []byte) (retry bool), failed func(error)) {
	filesystem.WatchUntil(ctx, again, path, func() {
		data, err := os.ReadFile(path)
		if err != nil {
			failed(err)
			return
		}
		if !bytes.Equal(data, have) && !changed(data) {
			have = data
		}
	}, failed)
}
