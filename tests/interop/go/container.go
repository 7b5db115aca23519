package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	task3 "github.com/containerd/containerd/api/runtime/task/v3"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

const typeFamily = "types.containerd.io/opencontainers/runtime-spec/1/"

// spec is the least that runs a shell command, with the namespaces that containerd asks for but for the network.
func (s *suite) spec(command string) *specs.Spec {
	return &specs.Spec{
		Version: "1.2.0",
		Process: &specs.Process{
			Args: []string{"/bin/sh", "-c", command},
			Env:  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
			Cwd:  "/",
		},
		Root:     &specs.Root{Path: "rootfs"},
		Hostname: "interop",
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{
				"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace},
			},
			Resources: &specs.LinuxResources{},
		},
	}
}

func jsonAny(kind string, value any) *anypb.Any {
	return &anypb.Any{TypeUrl: typeFamily + kind, Value: must(json.Marshal(value))}
}

func (s *suite) request(id string, spec *specs.Spec) *task3.CreateTaskRequest {
	return &task3.CreateTaskRequest{
		ID:      s.prefix + id,
		Bundle:  "/host/bundle/" + id,
		Rootfs:  []*types.Mount{{Type: "bind", Source: s.rootfs, Options: []string{"bind", "ro"}}},
		Options: jsonAny("Spec", spec),
	}
}

// created makes a container and returns its full id; removed when the check is over, whatever its state.
func (s *suite) created(ctx context.Context, id string, spec *specs.Spec) (full string, remove func()) {
	request := s.request(id, spec)
	must(s.v3.Create(ctx, request))
	return request.ID, func() { s.remove(request.ID) }
}

func (s *suite) remove(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s.v3.Kill(ctx, &task3.KillRequest{ID: id, Signal: 9, All: true})
	s.v3.Wait(ctx, &task3.WaitRequest{ID: id})
	s.v3.Delete(ctx, &task3.DeleteRequest{ID: id})
}

// refused expects an error of one code, with each of the words in its text, which is one line.
func refused(_ any, err error, code codes.Code, words ...string) {
	if err == nil {
		panic(errNothing)
	}
	expect(status.Code(err) == code, "code %v, not %v: %v", status.Code(err), code, err)
	text := status.Convert(err).Message()
	expect(!strings.Contains(text, "\n"), "more than one line: %q", text)
	for _, word := range words {
		expect(strings.Contains(text, word), "%q does not name %q", text, word)
	}
}

// subscription collects containerd's events of one container.
type subscription struct {
	events chan *types.Envelope
	errors chan error
}

func (s *suite) subscribe(ctx context.Context) *subscription {
	stream := must(s.events.Subscribe(ctx, &eventsapi.SubscribeRequest{}))
	out := &subscription{make(chan *types.Envelope, 1000), make(chan error, 1)}
	go func() {
		for {
			envelope, err := stream.Recv()
			if err != nil {
				out.errors <- err
				return
			}
			out.events <- envelope
		}
	}()
	return out
}

// next returns the next event that is about the container.
func (s *subscription) next(ctx context.Context, id string) *types.Envelope {
	for {
		select {
		case envelope := <-s.events:
			// Each of these messages has the container's id in field 1.
			if strings.HasPrefix(string(envelope.Event.Value), string([]byte{0x0a, byte(len(id))})+id) {
				return envelope
			}
		case err := <-s.errors:
			panic(fmt.Errorf("the event stream ended: %w", err))
		case <-ctx.Done():
			panic(errors.New("no event in time"))
		}
	}
}
