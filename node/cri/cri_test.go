package cri

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestFind(t *testing.T) {
	dir, err := os.MkdirTemp("", "cri-") //nolint:usetesting // sockets have short names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket, file, none := filepath.Join(dir, "a.sock"), filepath.Join(dir, "b.sock"), filepath.Join(dir, "c.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // nobody connects
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"unix://" + socket}, sockets([]string{none, file, socket})); diff != "" {
		t.Error(diff)
	}
}

func TestNobodyThere(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := Dial(ctx, filepath.Join(t.TempDir(), "none.sock"))
	if err == nil || !strings.Contains(err.Error(), "connect with the runtime at unix:///") {
		t.Errorf("%v", err)
	}
}

func TestReady(t *testing.T) {
	yes := &runtimeapi.RuntimeCondition{Type: runtimeapi.RuntimeReady, Status: true}
	for name, test := range map[string]struct {
		conditions []*runtimeapi.RuntimeCondition
		want       string
	}{
		"ready": {[]*runtimeapi.RuntimeCondition{yes, {Type: runtimeapi.NetworkReady, Status: true}, {Type: "Other"}}, ""},
		"no network": {
			[]*runtimeapi.RuntimeCondition{yes, {Type: runtimeapi.NetworkReady, Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"}},
			"NetworkReady is false: reason:NetworkPluginNotReady message:cni plugin not initialized",
		},
		"nothing said": {nil, "RuntimeReady is not reported\nNetworkReady is not reported"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := ready(test.conditions); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
