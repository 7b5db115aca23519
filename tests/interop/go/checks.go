package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"berth/interop/handshake"

	"github.com/containerd/cgroups/v3/cgroup2/stats"
	eventtypes "github.com/containerd/containerd/api/events"
	task2 "github.com/containerd/containerd/api/runtime/task/v2"
	task3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	taskstatus "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

func (s *suite) authentication(identity *handshake.Conn) {
	s.check("info tells the instance of the handshake", func(ctx context.Context) {
		// Of berth.v1.Guest nothing was generated here: fields are read as they are on the wire.
		var info emptypb.Empty
		if err := s.client.Call(ctx, "berth.v1.Guest", "Info", &emptypb.Empty{}, &info); err != nil {
			panic(err)
		}
		fields := bytesFields(info.ProtoReflect().GetUnknown())
		expect(len(fields[2]) == 16, "instance id of %d bytes", len(fields[2]))
		if identity != nil {
			expect(string(fields[2]) == string(identity.InstanceID[:]), "instance %x, not %x", fields[2], identity.InstanceID)
		}
	})
	if s.dialer.isLocal {
		return
	}
	s.check("a wrong secret is refused", func(context.Context) {
		wrong := must(handshake.ParseKey([]byte("0123456789abcdef0123456789abcdef")))
		_, _, err := s.dialer.dial(wrong, handshake.Options{})
		expect(errors.Is(err, handshake.ErrRefused), "%v", err)
	})
	s.check("a made-up ticket is refused", func(context.Context) {
		_, err := s.dialer.stream([32]byte{1})
		expect(errors.Is(err, handshake.ErrRefused), "%v", err)
	})
	s.check("a read-only connection reads and changes nothing", func(ctx context.Context) {
		key := must(s.dialer.key.ReadOnlyKey())
		conn, _, err := s.dialer.dial(key, handshake.Options{Class: handshake.ReadOnly})
		expect(err == nil, "%v", err)
		client := ttrpc.NewClient(conn)
		defer client.Close()
		tasks := task3.NewTTRPCTaskClient(client)
		_, err = tasks.State(ctx, &task3.StateRequest{ID: s.prefix + "none"})
		refused(nil, err, codes.NotFound)
		_, err = tasks.Create(ctx, s.request("monitor", s.spec("true")))
		refused(nil, err, codes.PermissionDenied)
		_, err = tasks.Shutdown(ctx, &task3.ShutdownRequest{Now: true})
		refused(nil, err, codes.PermissionDenied)
	})
}

func bytesFields(message []byte) map[protowire.Number][]byte {
	out := map[protowire.Number][]byte{}
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeTag(message)
		expect(size > 0, "undecodable message")
		message = message[size:]
		if kind == protowire.BytesType {
			value, size := protowire.ConsumeBytes(message)
			expect(size > 0, "undecodable message")
			out[number], message = value, message[size:]
			continue
		}
		size = protowire.ConsumeFieldValue(number, kind, message)
		expect(size > 0, "undecodable message")
		message = message[size:]
	}
	return out
}

func (s *suite) lifecycle() {
	s.check("one life, in containerd's order", func(ctx context.Context) {
		ctx = ttrpc.WithMetadata(ctx, ttrpc.MD{"containerd-namespace-ttrpc": {"interop"}})
		events := s.subscribe(ctx)
		id, remove := s.created(ctx, "life", s.spec("exit 7"))
		defer remove()
		state := must(s.v3.State(ctx, &task3.StateRequest{ID: id}))
		expect(state.Status == taskstatus.Status_CREATED && state.Pid > 0, "state %v", state)
		expect(state.Bundle == "/host/bundle/life", "bundle %q", state.Bundle)
		started := must(s.v3.Start(ctx, &task3.StartRequest{ID: id}))
		expect(started.Pid == state.Pid, "pid %d, then %d", state.Pid, started.Pid)
		waited := must(s.v3.Wait(ctx, &task3.WaitRequest{ID: id}))
		expect(waited.ExitStatus == 7, "exit status %d", waited.ExitStatus)
		expect(time.Since(waited.ExitedAt.AsTime()).Abs() < 24*time.Hour, "exited at %v", waited.ExitedAt.AsTime())
		state = must(s.v3.State(ctx, &task3.StateRequest{ID: id}))
		expect(state.Status == taskstatus.Status_STOPPED && state.ExitStatus == 7, "state %v", state)
		deleted := must(s.v3.Delete(ctx, &task3.DeleteRequest{ID: id}))
		expect(deleted.ExitStatus == 7 && deleted.Pid == started.Pid, "deleted %v", deleted)
		_, err := s.v3.State(ctx, &task3.StateRequest{ID: id})
		refused(nil, err, codes.NotFound)
		for _, topic := range []string{"/tasks/create", "/tasks/start", "/tasks/exit", "/tasks/delete"} {
			envelope := events.next(ctx, id)
			expect(envelope.Topic == topic, "%s came where %s should", envelope.Topic, topic)
			expect(envelope.Namespace == "interop", "namespace %q", envelope.Namespace)
			if topic == "/tasks/exit" {
				var exit eventtypes.TaskExit
				expect(envelope.Event.TypeUrl == "containerd.events.TaskExit", "type %q", envelope.Event.TypeUrl)
				if err := proto.Unmarshal(envelope.Event.Value, &exit); err != nil {
					panic(err)
				}
				expect(exit.ID == id && exit.ExitStatus == 7 && exit.Pid == started.Pid, "exit %v", &exit)
			}
		}
	})

	s.check("execs, pids and kill", func(ctx context.Context) {
		id, remove := s.created(ctx, "execs", s.spec("sleep 1000"))
		defer remove()
		must(s.v3.Start(ctx, &task3.StartRequest{ID: id}))
		process := specs.Process{Args: []string{"/bin/sh", "-c", "exit 3"}, Env: []string{"PATH=/bin"}, Cwd: "/"}
		exec := &task3.ExecProcessRequest{ID: id, ExecID: "e1", Spec: jsonAny("Process", process)}
		must(s.v3.Exec(ctx, exec))
		_, err := s.v3.Exec(ctx, exec)
		refused(nil, err, codes.AlreadyExists, "e1")
		must(s.v3.Start(ctx, &task3.StartRequest{ID: id, ExecID: "e1"}))
		waited := must(s.v3.Wait(ctx, &task3.WaitRequest{ID: id, ExecID: "e1"}))
		expect(waited.ExitStatus == 3, "exit status %d", waited.ExitStatus)
		_, err = s.v3.Kill(ctx, &task3.KillRequest{ID: id, ExecID: "e1", Signal: 15})
		refused(nil, err, codes.NotFound)
		must(s.v3.Delete(ctx, &task3.DeleteRequest{ID: id, ExecID: "e1"}))

		pids := must(s.v3.Pids(ctx, &task3.PidsRequest{ID: id}))
		expect(len(pids.Processes) >= 1, "no pids")
		connected := must(s.v3.Connect(ctx, &task3.ConnectRequest{ID: id}))
		expect(connected.TaskPid == pids.Processes[0].Pid || len(pids.Processes) > 1, "%v and %v", connected, pids)
		must(s.v3.Kill(ctx, &task3.KillRequest{ID: id, Signal: 9}))
		waited = must(s.v3.Wait(ctx, &task3.WaitRequest{ID: id}))
		expect(waited.ExitStatus == 137, "exit status %d", waited.ExitStatus)
	})

	s.check("a command that does not exist", func(ctx context.Context) {
		spec := s.spec("")
		spec.Process.Args = []string{"/bin/no-such-command"}
		id := s.prefix + "nocommand"
		defer s.remove(id)
		// Either call may say it; containerd takes both.
		_, err := s.v3.Create(ctx, s.request("nocommand", spec))
		if err == nil {
			_, err = s.v3.Start(ctx, &task3.StartRequest{ID: id})
		}
		expect(err != nil, "it was accepted")
		expect(status.Code(err) != codes.Internal && status.Code(err) != codes.Unknown, "%v", err)
	})

	s.check("pause and resume", func(ctx context.Context) {
		id, remove := s.created(ctx, "pause", s.spec("sleep 1000"))
		defer remove()
		must(s.v3.Start(ctx, &task3.StartRequest{ID: id}))
		must(s.v3.Pause(ctx, &task3.PauseRequest{ID: id}))
		state := must(s.v3.State(ctx, &task3.StateRequest{ID: id}))
		expect(state.Status == taskstatus.Status_PAUSED, "state %v", state.Status)
		must(s.v3.Resume(ctx, &task3.ResumeRequest{ID: id}))
		state = must(s.v3.State(ctx, &task3.StateRequest{ID: id}))
		expect(state.Status == taskstatus.Status_RUNNING, "state %v", state.Status)
	})

	s.check("the twin service of version 2", func(ctx context.Context) {
		request := s.request("twin", s.spec("exit 5"))
		defer s.remove(request.ID)
		must(s.v2.Create(ctx, &task2.CreateTaskRequest{
			ID: request.ID, Bundle: request.Bundle, Rootfs: request.Rootfs, Options: request.Options,
		}))
		must(s.v2.Start(ctx, &task2.StartRequest{ID: request.ID}))
		waited := must(s.v2.Wait(ctx, &task2.WaitRequest{ID: request.ID}))
		expect(waited.ExitStatus == 5, "exit status %d", waited.ExitStatus)
		must(s.v2.Delete(ctx, &task2.DeleteRequest{ID: request.ID}))
	})

	s.check("stats", func(ctx context.Context) {
		id, remove := s.created(ctx, "stats", s.spec("sleep 1000"))
		defer remove()
		must(s.v3.Start(ctx, &task3.StartRequest{ID: id}))
		response, err := s.v3.Stats(ctx, &task3.StatsRequest{ID: id})
		if status.Code(err) == codes.Unimplemented {
			panic(skip("not built in"))
		}
		must(response, err)
		var metrics stats.Metrics
		expect(response.Stats.TypeUrl == "io.containerd.cgroups.v2.Metrics", "type %q", response.Stats.TypeUrl)
		if err := proto.Unmarshal(response.Stats.Value, &metrics); err != nil {
			panic(err)
		}
		expect(metrics.Pids.GetCurrent() >= 1 && metrics.Memory.GetUsage() > 0, "metrics %v", &metrics)
	})
}

func (s *suite) limits() {
	s.check("an OOM kill arrives before the exit that it explains", func(ctx context.Context) {
		limit, total := int64(32<<20), int64(32<<20)
		// One line without an end, kept whole in memory.
		spec := s.spec("tail /dev/zero")
		spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit, Swap: &total}
		events := s.subscribe(ctx)
		id, remove := s.created(ctx, "oom", spec)
		defer remove()
		must(s.v3.Start(ctx, &task3.StartRequest{ID: id}))
		must(s.v3.Wait(ctx, &task3.WaitRequest{ID: id}))
		for _, topic := range []string{"/tasks/create", "/tasks/start", "/tasks/oom", "/tasks/exit"} {
			envelope := events.next(ctx, id)
			expect(envelope.Topic == topic, "%s came where %s should", envelope.Topic, topic)
		}
	})
}

func (s *suite) refusals() {
	s.check("unknown and taken ids", func(ctx context.Context) {
		_, err := s.v3.Start(ctx, &task3.StartRequest{ID: s.prefix + "nobody"})
		refused(nil, err, codes.NotFound, s.prefix+"nobody")
		_, remove := s.created(ctx, "taken", s.spec("sleep 1000"))
		defer remove()
		_, err = s.v3.Create(ctx, s.request("taken", s.spec("true")))
		refused(nil, err, codes.AlreadyExists, s.prefix+"taken")
	})
	for _, c := range []struct {
		name   string
		change func(*specs.Spec)
		code   codes.Code
		words  []string
	}{
		{"unknown-unified", func(spec *specs.Spec) {
			spec.Linux.Resources.Unified = map[string]string{"memory.peak": "1"}
		}, codes.InvalidArgument, []string{"memory.peak", "memory.high"}},
		{"swap-below-memory", func(spec *specs.Spec) {
			limit, total := int64(64<<20), int64(32<<20)
			spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit, Swap: &total}
		}, codes.InvalidArgument, []string{"swap"}},
		{"absent-char-device", func(spec *specs.Spec) {
			spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/gone", Type: "c", Major: 251, Minor: 251}}
		}, codes.InvalidArgument, []string{"/dev/gone"}},
		{"block-device", func(spec *specs.Spec) {
			spec.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/sda", Type: "b", Major: 8, Minor: 0}}
		}, codes.PermissionDenied, []string{"linux.devices[0]", "block"}},
	} {
		s.check("refused: "+c.name, func(ctx context.Context) {
			spec := s.spec("true")
			c.change(spec)
			defer s.remove(s.prefix + c.name)
			response, err := s.v3.Create(ctx, s.request(c.name, spec))
			if c.name == "absent-char-device" && status.Code(err) == codes.FailedPrecondition {
				c.code = codes.FailedPrecondition
			}
			refused(response, err, c.code, c.words...)
			_, err = s.v3.State(ctx, &task3.StateRequest{ID: s.prefix + c.name})
			refused(nil, err, codes.NotFound)
		})
	}
	s.check("refused: options of an unknown type", func(ctx context.Context) {
		request := s.request("options", s.spec("true"))
		request.Options.TypeUrl = "containerd.runc.v1.Options"
		_, err := s.v3.Create(ctx, request)
		refused(nil, err, codes.InvalidArgument, "containerd.runc.v1.Options")
	})
	s.check("refused: stdio of an unknown scheme", func(ctx context.Context) {
		request := s.request("stdio", s.spec("true"))
		request.Stdout = "binary:///bin/log"
		_, err := s.v3.Create(ctx, request)
		refused(nil, err, codes.InvalidArgument, "stdout")
	})
	s.check("refused: a mount type that nobody knows", func(ctx context.Context) {
		request := s.request("mount", s.spec("true"))
		request.Rootfs = []*types.Mount{{Type: "nosuchfs", Source: "none"}}
		defer s.remove(request.ID)
		_, err := s.v3.Create(ctx, request)
		expect(err != nil, "it was accepted")
	})
}

func (s *suite) calls() {
	s.check("unknown services and methods", func(ctx context.Context) {
		for _, name := range [][2]string{{"no.such.Service", "State"}, {"containerd.task.v3.Task", "NoSuchMethod"}} {
			err := s.client.Call(ctx, name[0], name[1], &emptypb.Empty{}, &emptypb.Empty{})
			refused(nil, err, codes.Unimplemented)
		}
		_, err := s.v3.Checkpoint(ctx, &task3.CheckpointTaskRequest{ID: s.prefix + "none"})
		refused(nil, err, codes.Unimplemented)
	})
	s.check("a deadline ends a Wait and nothing else", func(ctx context.Context) {
		id, remove := s.created(ctx, "deadline", s.spec("sleep 1000"))
		defer remove()
		must(s.v3.Start(ctx, &task3.StartRequest{ID: id}))
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		_, err := s.v3.Wait(short, &task3.WaitRequest{ID: id})
		expect(err != nil, "Wait answered")
		state := must(s.v3.State(ctx, &task3.StateRequest{ID: id}))
		expect(state.Status == taskstatus.Status_RUNNING, "state %v", state.Status)
	})
	s.check("500 calls at a time while a Wait is parked", func(ctx context.Context) {
		id, remove := s.created(ctx, "many", s.spec("sleep 1000"))
		defer remove()
		must(s.v3.Start(ctx, &task3.StartRequest{ID: id}))
		done := make(chan error, 1)
		go func() {
			_, err := s.v3.Wait(ctx, &task3.WaitRequest{ID: id})
			done <- err
		}()
		failures := make(chan error, 500)
		var group sync.WaitGroup
		for range 500 {
			group.Add(1)
			go func() {
				defer group.Done()
				state, err := s.v3.State(ctx, &task3.StateRequest{ID: id})
				if err == nil && state.ID != id {
					err = fmt.Errorf("the answer is about %q", state.ID)
				}
				failures <- err
			}()
		}
		group.Wait()
		for range 500 {
			if err := <-failures; err != nil {
				panic(err)
			}
		}
		must(s.v3.Kill(ctx, &task3.KillRequest{ID: id, Signal: 9}))
		if err := <-done; err != nil {
			panic(err)
		}
	})
}
