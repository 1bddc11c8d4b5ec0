//go:build linux

package process

import (
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// waiting is how many events may wait for one who follows them. Whoever lets
// more pile up is cut off, and has to list again.
const waiting = 1024

// events hands out what happens to those who follow.
type events struct {
	mu        sync.Mutex // guards the field below
	followers map[chan *runtimeapi.ContainerEventResponse]bool
}

func (e *events) follow() chan *runtimeapi.ContainerEventResponse {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.followers == nil {
		e.followers = map[chan *runtimeapi.ContainerEventResponse]bool{}
	}
	ch := make(chan *runtimeapi.ContainerEventResponse, waiting)
	e.followers[ch] = true
	return ch
}

func (e *events) leave(ch chan *runtimeapi.ContainerEventResponse) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.followers, ch)
}

func (e *events) send(event *runtimeapi.ContainerEventResponse) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ch := range e.followers {
		select {
		case ch <- event:
		default:
			delete(e.followers, ch)
			close(ch)
		}
	}
}

// emit tells what happened to a container, or a pod, with how the pod is now.
func (r *Runtime) emit(id, sandbox string, kind runtimeapi.ContainerEventType) {
	event := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano()}
	r.mu.Lock()
	if s := r.sandboxes[sandbox]; s != nil {
		event.PodSandboxStatus, event.ContainersStatuses = r.sandboxStatusLocked(s), r.statusesLocked(sandbox)
	}
	r.mu.Unlock()
	r.events.send(event)
}

// GetContainerEvents tells what happens from now on.
func (r *Runtime) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	ch := r.events.follow()
	defer r.events.leave(ch)
	if err := stream.SendHeader(metadata.MD{}); err != nil { // from here on nothing is missed
		return err
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-r.life.Done():
			return status.Error(codes.Unavailable, "the runtime is ending")
		case event, ok := <-ch:
			if !ok {
				return status.Error(codes.ResourceExhausted, "events were not read in time: list again")
			}
			if err := stream.Send(event); err != nil {
				return err
			}
		}
	}
}
