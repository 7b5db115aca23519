// Writes specs that come out of Go packages and not of a command.
//
//	specs oci FOLDER        what containerd's package oci makes: FOLDER/KIND.json
//	specs cri SOCKET IMAGE  containers by containerd's CRI, whose runtime keeps what it is given
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "oci":
		err = writeOCI(os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == "cri":
		err = runCRI(os.Args[2], os.Args[3])
	default:
		err = fmt.Errorf("usage: specs oci FOLDER | cri SOCKET IMAGE")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "specs:", err)
		os.Exit(1)
	}
}

func writeOCI(folder string) error {
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	kinds := map[string][]oci.SpecOpts{
		"ordinary":   {},
		"readonly":   {oci.WithRootFSReadonly()},
		"privileged": {oci.WithPrivileged, oci.WithAllDevicesAllowed, oci.WithNewPrivileges},
		"rootless":   {oci.WithUserNamespace(ids, ids)},
		"tty":        {oci.WithTTY, oci.WithTTYSize(120, 40)},
	}
	ctx := namespaces.WithNamespace(context.Background(), "default")
	for kind, more := range kinds {
		root := "/run/containerd/io.containerd.runtime.v2.task/default/" + kind + "/rootfs"
		options := []oci.SpecOpts{oci.WithDefaultPathEnv, oci.WithRootFSPath(root), oci.WithProcessArgs("sh")}
		options = append(options, more...)
		if kind != "privileged" {
			options = append(options, seccomp.WithDefaultProfile())
		}
		spec, err := oci.GenerateSpec(ctx, nil, &containers.Container{ID: kind}, options...)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		text, err := json.MarshalIndent(spec, "", "\t")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, kind+".json"), append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// name says to the runtime, by a file, what the spec that it gets next is called.
func name(text string) error { return os.WriteFile("/out/next", []byte(text), 0o644) }

func runCRI(socket, image string) error {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	client := cri.NewRuntimeServiceClient(connection)
	ctx := context.Background()
	host := &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER}
	pods := map[bool]string{}
	configs := map[bool]*cri.PodSandboxConfig{}
	for _, privileged := range []bool{false, true} {
		word := map[bool]string{false: "sandbox", true: "sandbox-privileged"}[privileged]
		if err := name("cri-" + word); err != nil {
			return err
		}
		configs[privileged] = &cri.PodSandboxConfig{
			Metadata:     &cri.PodSandboxMetadata{Name: word, Uid: word, Namespace: "default"},
			LogDirectory: "/var/log/pods",
			Linux: &cri.LinuxPodSandboxConfig{
				CgroupParent:    "/kubepods/pod-" + word,
				SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: host, Privileged: privileged},
			},
		}
		answer, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: configs[privileged]})
		if err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
		pods[privileged] = answer.PodSandboxId
	}
	runtimeDefault := &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	kinds := []struct {
		kind     string
		tty      bool
		security *cri.LinuxContainerSecurityContext
	}{
		{"ordinary", false, &cri.LinuxContainerSecurityContext{Seccomp: runtimeDefault}},
		{"readonly", false, &cri.LinuxContainerSecurityContext{Seccomp: runtimeDefault, ReadonlyRootfs: true}},
		{"privileged", false, &cri.LinuxContainerSecurityContext{Privileged: true}},
		{"user", false, &cri.LinuxContainerSecurityContext{Seccomp: runtimeDefault, NoNewPrivs: true,
			RunAsUser: &cri.Int64Value{Value: 1000}, RunAsGroup: &cri.Int64Value{Value: 1000}}},
		{"tty", true, &cri.LinuxContainerSecurityContext{Seccomp: runtimeDefault}},
	}
	for _, each := range kinds {
		each.security.NamespaceOptions = host
		if err := name("cri-" + each.kind); err != nil {
			return err
		}
		privileged := each.security.Privileged
		made, err := client.CreateContainer(ctx, &cri.CreateContainerRequest{
			PodSandboxId: pods[privileged],
			Config: &cri.ContainerConfig{
				Metadata: &cri.ContainerMetadata{Name: each.kind},
				Image:    &cri.ImageSpec{Image: image},
				Command:  []string{"sh"},
				LogPath:  each.kind + ".log",
				Tty:      each.tty,
				Stdin:    true,
				Linux: &cri.LinuxContainerConfig{
					Resources: &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: 50000, CpuShares: 512,
						MemoryLimitInBytes: 64 << 20, OomScoreAdj: 999, MemorySwapLimitInBytes: 64 << 20},
					SecurityContext: each.security,
				},
			},
			SandboxConfig: configs[privileged],
		})
		if err != nil {
			return fmt.Errorf("%s: %w", each.kind, err)
		}
		// Its spec is what this is for: that it may not run here does not matter.
		starting, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if _, err := client.StartContainer(starting, &cri.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
			fmt.Fprintf(os.Stderr, "%s: start: %v\n", each.kind, err)
		}
	}
	return nil
}
