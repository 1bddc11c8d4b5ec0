package cri

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
)

// podLabel is where runtimes have the pod of a sandbox.
const podLabel = "io.kubernetes.pod.uid"

// Follow tells which pods something happened to, until ctx ends or the runtime
// ceases to tell; "" is a pod that the runtime does not name, which may see what
// happened only a moment later. begun is called when nothing is missed from then on.
// The error's code is Unimplemented for a runtime that cannot tell.
func (c *Client) Follow(ctx context.Context, begun func(), happened func(types.UID)) error {
	err := c.follow(ctx, begun, happened)
	if status.Code(err) == codes.Unimplemented && c.Name == "containerd" {
		err = c.followContainerd(ctx, begun, happened)
	}
	return err
}

// follow asks as CRI has it.
func (c *Client) follow(ctx context.Context, begun func(), happened func(types.UID)) error {
	// Who cannot tell is no reason for the library to complain.
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, klog.Logger{}))
	defer cancel()
	events, ended := make(chan *runtimeapi.ContainerEventResponse), make(chan error, 1)
	go func() {
		ended <- c.Runtime.GetContainerEvents(ctx, events, func(s runtimeapi.RuntimeService_GetContainerEventsClient) {
			if header, err := s.Header(); err == nil && header != nil { // else the reason comes with the first event
				begun()
			}
		})
	}()
	for {
		select {
		case err := <-ended:
			return err
		case e := <-events:
			happened(types.UID(e.GetPodSandboxStatus().GetLabels()[podLabel]))
		}
	}
}

// subscribe is how containerd's own clients follow what happens. Compat: before
// 1.7 it does not tell by CRI.
const subscribe = "/containerd.services.events.v1.Events/Subscribe"

// exits are the events that say that a process of a container has ended.
const exits = `namespace=="k8s.io",topic=="/tasks/exit"`

// followContainerd asks containerd itself for containers that end. All else that
// happens there is a node's doing.
func (c *Client) followContainerd(ctx context.Context, begun func(), happened func(types.UID)) error {
	conn, err := grpc.NewClient(c.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, subscribe)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(unknown(1, exits)), stream.CloseSend()); err != nil {
		return err
	}
	begun()
	for {
		var envelope emptypb.Empty // its fields are read from the wire
		if err := stream.RecvMsg(&envelope); err != nil {
			return err
		}
		if ended(envelope.ProtoReflect().GetUnknown()) {
			happened("")
		}
	}
}

// unknown is a message with one field, whatever its kind.
func unknown(number protowire.Number, text string) *emptypb.Empty {
	var m emptypb.Empty
	m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), text))
	return &m
}

// ended says whether an event is the end of a container, and not of something that
// was run in one, as probes are:
//
//	Envelope { Any event = 4 }  Any { bytes value = 2 }  TaskExit { string container_id = 1; string id = 2 }
func ended(envelope []byte) bool {
	exit := field(field(envelope, 4), 2)
	id := string(field(exit, 1))
	return id != "" && id == string(field(exit, 2))
}

// field is a field of a message that has text, bytes or a message; nil when it is
// not there.
func field(message []byte, number protowire.Number) []byte {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil
		}
		message = message[size:]
		if n == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			return value
		}
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return nil
		}
		message = message[size:]
	}
	return nil
}
