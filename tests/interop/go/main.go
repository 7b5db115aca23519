// Command interop drives a Berth agent with clients that Berth did not write: containerd's generated Task and Events
// clients over containerd's ttrpc. It prints "ok NAME" or "not ok NAME: why" for each check and exits 1 when one failed.
//
//	BERTH_ADDRESS, BERTH_SECRET_FILE   where the agent is
//	BERTH_ROOTFS                       a directory in the guest with /bin/sh, bound read-only as root ("/")
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	task2 "github.com/containerd/containerd/api/runtime/task/v2"
	task3 "github.com/containerd/containerd/api/runtime/task/v3"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	"github.com/containerd/ttrpc"
)

type suite struct {
	dialer *dialer
	rootfs string
	client *ttrpc.Client
	v3     task3.TTRPCTaskService
	v2     task2.TTRPCTaskService
	events eventsapi.TTRPCEventsClient
	prefix string // of container ids: two runs against one agent do not meet
	failed int
}

// check runs one named test; what it panics with through must() is its failure.
func (s *suite) check(name string, test func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	start := time.Now()
	defer func() {
		switch failure := recover().(type) {
		case nil:
			fmt.Printf("ok %s (%.1f ms)\n", name, float64(time.Since(start).Microseconds())/1000)
		case skip:
			fmt.Printf("ok %s # skipped: %s\n", name, string(failure))
		case error:
			s.failed++
			fmt.Printf("not ok %s: %v\n", name, failure)
		default:
			panic(failure)
		}
	}()
	test(ctx)
}

type skip string

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func expect(condition bool, format string, arguments ...any) {
	if !condition {
		panic(fmt.Errorf(format, arguments...))
	}
}

func main() {
	address := os.Getenv("BERTH_ADDRESS")
	if address == "" {
		address = "/run/berth/berth.sock"
	}
	d, err := newDialer(address, os.Getenv("BERTH_SECRET_FILE"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(2)
	}
	s := &suite{dialer: d, rootfs: os.Getenv("BERTH_ROOTFS"), prefix: fmt.Sprintf("go%d-", os.Getpid())}
	if s.rootfs == "" {
		s.rootfs = "/"
	}
	conn, identity, err := d.control()
	if err != nil {
		fmt.Printf("not ok dial: %v\n", err)
		os.Exit(1)
	}
	fmt.Println("ok dial")
	s.use(conn)
	s.authentication(identity)
	s.lifecycle()
	s.streams()
	s.limits()
	s.refusals()
	s.calls()
	if s.failed > 0 {
		fmt.Printf("%d failed\n", s.failed)
		os.Exit(1)
	}
	fmt.Println("all ok")
}

func (s *suite) use(conn net.Conn) {
	s.client = ttrpc.NewClient(conn)
	s.v3 = task3.NewTTRPCTaskClient(s.client)
	s.v2 = task2.NewTTRPCTaskClient(s.client)
	s.events = eventsapi.NewTTRPCEventsClient(s.client)
}

var errNothing = errors.New("it was accepted")
