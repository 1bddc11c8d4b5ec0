// Package critest runs upstream's specs for container runtimes (cri-tools, which
// critest is made of) against a runtime that serves at -runtime-endpoint.
//
// The runtime of this binary is served for it by the test binary of its package:
//
//	go test -c -o process.test ./node/process
//	SETPOINT_TEST_SERVE=DIR ./process.test
//	cd test/critest
//	go test . -runtime-endpoint unix://DIR/cri.sock -image-endpoint unix://DIR/cri.sock
//
// with archives of the images that the specs want in DIR/images. Its pods share
// the network: both belong in a network namespace of their own (unshare -n -u -m).
package critest

import (
	"flag"
	"os"
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"sigs.k8s.io/cri-tools/pkg/framework"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)

func TestMain(m *testing.M) {
	framework.RegisterFlags()
	flag.Parse()
	os.Exit(m.Run())
}

func TestCRI(t *testing.T) {
	if framework.TestContext.ImageServiceAddr == "" {
		t.Skip("no runtime was named: -runtime-endpoint and -image-endpoint")
	}
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, "CRI")
}
