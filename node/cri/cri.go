// Package cri speaks with a container runtime, whichever it is.
//
// In comes where a runtime serves CRI v1, or nothing; out comes a Client that the
// runtime has answered. What always holds: a Client was told the runtime's
// version, so whatever it is connected with is a runtime that speaks v1.
package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	criclient "k8s.io/cri-client/pkg"
)

// Client is a runtime that can be spoken with.
type Client struct {
	// Endpoint is where it serves, as unix:///path.
	Endpoint string
	// Name and Version are what it says of itself.
	Name, Version string

	Runtime internalapi.RuntimeService
	Images  internalapi.ImageManagerService
}

// usual is where runtimes serve that were installed the usual way, by preference.
var usual = []string{
	"/run/containerd/containerd.sock",
	"/run/crio/crio.sock",
	"/run/k3s/containerd/containerd.sock",
	"/run/cri-dockerd.sock",
}

// Find gives the endpoints of runtimes that seem to be there, by preference.
// Whether one answers only Dial knows.
func Find() []string { return sockets(usual) }

func sockets(paths []string) []string {
	var found []string
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeSocket != 0 {
			found = append(found, "unix://"+path)
		}
	}
	return found
}

// Bounds of calls: the usual ones, and pauses between tries to connect.
const (
	timeout = 2 * time.Minute
	pause   = 50 * time.Millisecond
	pauses  = time.Second
)

// Dial connects with a runtime, by its socket's path or address. One that is not
// there, or not ready to answer, is tried until ctx ends.
func Dial(ctx context.Context, endpoint string) (*Client, error) {
	if strings.HasPrefix(endpoint, "/") {
		endpoint = "unix://" + endpoint
	}
	for wait := pause; ; wait = min(2*wait, pauses) {
		c, err := dial(ctx, endpoint)
		if err == nil {
			return c, nil
		}
		if status.Code(errors.Unwrap(err)) == codes.Unimplemented {
			return nil, err // it answers, and speaks something else
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect with the runtime at %s: %w: %w", endpoint, ctx.Err(), err)
		case <-time.After(wait):
		}
	}
}

func dial(ctx context.Context, endpoint string) (*Client, error) {
	c := &Client{Endpoint: endpoint}
	var err error
	if c.Runtime, err = criclient.NewRemoteRuntimeService(ctx, endpoint, timeout, nil, false); err != nil {
		return nil, err
	}
	if c.Images, err = criclient.NewRemoteImageService(ctx, endpoint, timeout, nil, false); err != nil {
		return nil, errors.Join(err, c.Runtime.Close(ctx))
	}
	v, err := c.Runtime.Version(ctx, string(criclient.CRIVersionV1))
	if err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	c.Name, c.Version = v.GetRuntimeName(), v.GetRuntimeVersion()
	return c, nil
}

// Close ends the connection.
func (c *Client) Close(ctx context.Context) error {
	return errors.Join(c.Runtime.Close(ctx), c.Images.Close(ctx))
}

// Ready says whether a runtime can run pods, and if not, why.
func (c *Client) Ready(ctx context.Context) error {
	s, err := c.Runtime.Status(ctx, false)
	if err != nil {
		return err
	}
	return ready(s.GetStatus().GetConditions())
}

// ready says which of the conditions that pods need does not hold.
func ready(conditions []*runtimeapi.RuntimeCondition) error {
	holds := map[string]bool{}
	var errs []error
	for _, c := range conditions {
		holds[c.GetType()] = true
		if !c.GetStatus() && (c.GetType() == runtimeapi.RuntimeReady || c.GetType() == runtimeapi.NetworkReady) {
			// Compat: the kubelet's words.
			errs = append(errs, fmt.Errorf("%s is false: reason:%s message:%s", c.GetType(), c.GetReason(), c.GetMessage()))
		}
	}
	for _, needed := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		if !holds[needed] {
			errs = append(errs, fmt.Errorf("%s is not reported", needed))
		}
	}
	return errors.Join(errs...)
}
