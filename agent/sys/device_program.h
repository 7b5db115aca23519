// Loading and attaching the cgroup device program.
#pragma once

#include <linux/bpf.h>

#include <span>

#include "agent/core/result.h"
#include "agent/sys/fd.h"

namespace berth::sys {

// BPF_PROG_LOAD of what core::build_device_filter() made. Errors: "bpf.load: EPERM". EAGAIN (the verifier was
// interrupted) is tried again a few times.
core::Result<UniqueFd> load_device_program(std::span<const bpf_insn> program);

// Makes `program` the one program of ours on `cgroup` (a directory's descriptor). Attached directly with
// BPF_F_ALLOW_MULTI, so that it outlives the agent and programs of nested cgroups are ANDed with it; one that
// is there already is replaced in one step (BPF_F_REPLACE): never a moment without. Ours is known by its
// name; further ones of ours, which only an interrupted update could leave, are detached. Foreign programs
// stay. Errors: "bpf.query: ERRNO", "bpf.attach: ERRNO", "bpf.detach: ERRNO".
core::Status set_device_program(FdRef cgroup, FdRef program);

// How many programs of ours are attached to `cgroup` itself.
core::Result<size_t> count_device_programs(FdRef cgroup);

// True when the guest's kernel has a character device of these numbers (/sys/dev/char/M:m; `sys_dev_char` is
// a descriptor of that directory).
bool char_device_exists(FdRef sys_dev_char, unsigned major, unsigned minor);

}  // namespace berth::sys
