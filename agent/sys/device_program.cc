#include "agent/sys/device_program.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace berth::sys {
namespace {

using core::errno_error;
using core::Result;

constexpr char kProgramName[] = "berth_device";  // at most 15 characters
constexpr size_t kQueriedPrograms = 64;          // the kernel's limit for one cgroup
constexpr int kLoadAttempts = 5;

// -errno or what the kernel returned.
int bpf(bpf_cmd command, bpf_attr& attributes) {
    long result = syscall(SYS_bpf, command, &attributes, sizeof(attributes));
    return result < 0 ? -errno : static_cast<int>(result);
}

bpf_attr empty_attributes() {
    // The union's padding counts: the kernel refuses unknown bytes that are not zero.
    bpf_attr attributes;
    memset(&attributes, 0, sizeof(attributes));
    return attributes;
}

uint64_t pointer(const void* address) {
    return reinterpret_cast<uintptr_t>(address);
}

bool is_ours(int program) {
    bpf_prog_info info;
    memset(&info, 0, sizeof(info));
    bpf_attr attributes = empty_attributes();
    attributes.info.bpf_fd = static_cast<uint32_t>(program);
    attributes.info.info_len = sizeof(info);
    attributes.info.info = pointer(&info);
    return bpf(BPF_OBJ_GET_INFO_BY_FD, attributes) >= 0 && strcmp(info.name, kProgramName) == 0;
}

Result<std::vector<UniqueFd>> our_programs(FdRef cgroup) {
    uint32_t ids[kQueriedPrograms];
    bpf_attr query = empty_attributes();
    query.query.target_fd = static_cast<uint32_t>(cgroup.get());
    query.query.attach_type = BPF_CGROUP_DEVICE;
    query.query.prog_ids = pointer(ids);
    query.query.prog_cnt = kQueriedPrograms;
    if (int result = bpf(BPF_PROG_QUERY, query); result < 0) return errno_error(-result, "bpf.query");
    std::vector<UniqueFd> programs;
    for (uint32_t i = 0; i < query.query.prog_cnt && i < kQueriedPrograms; ++i) {
        bpf_attr by_id = empty_attributes();
        by_id.prog_id = ids[i];
        int fd = bpf(BPF_PROG_GET_FD_BY_ID, by_id);
        if (fd == -ENOENT) continue;  // detached meanwhile
        if (fd < 0) return errno_error(-fd, "bpf.query");
        UniqueFd program(fd);
        if (is_ours(fd)) programs.push_back(std::move(program));
    }
    return programs;
}

}  // namespace

Result<UniqueFd> load_device_program(std::span<const bpf_insn> program) {
    bpf_attr attributes = empty_attributes();
    attributes.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
    attributes.expected_attach_type = BPF_CGROUP_DEVICE;
    attributes.insns = pointer(program.data());
    attributes.insn_cnt = static_cast<uint32_t>(program.size());
    attributes.license = pointer("Apache-2.0");
    memcpy(attributes.prog_name, kProgramName, sizeof(kProgramName));
    int result = -EAGAIN;
    for (int attempt = 0; attempt < kLoadAttempts && (result == -EAGAIN || result == -EINTR); ++attempt) {
        result = bpf(BPF_PROG_LOAD, attributes);
    }
    if (result < 0) return errno_error(-result, "bpf.load");
    return UniqueFd(result);
}

core::Status set_device_program(FdRef cgroup, FdRef program) {
    BERTH_ASSIGN(std::vector<UniqueFd> old, our_programs(cgroup));
    bpf_attr attach = empty_attributes();
    attach.target_fd = static_cast<uint32_t>(cgroup.get());
    attach.attach_bpf_fd = static_cast<uint32_t>(program.get());
    attach.attach_type = BPF_CGROUP_DEVICE;
    attach.attach_flags = BPF_F_ALLOW_MULTI;
    if (!old.empty()) {
        attach.attach_flags |= BPF_F_REPLACE;
        attach.replace_bpf_fd = static_cast<uint32_t>(old.front().get());
    }
    if (int result = bpf(BPF_PROG_ATTACH, attach); result < 0) return errno_error(-result, "bpf.attach");
    for (size_t i = 1; i < old.size(); ++i) {
        bpf_attr detach = empty_attributes();
        detach.target_fd = static_cast<uint32_t>(cgroup.get());
        detach.attach_bpf_fd = static_cast<uint32_t>(old[i].get());
        detach.attach_type = BPF_CGROUP_DEVICE;
        int result = bpf(BPF_PROG_DETACH, detach);
        if (result < 0 && result != -ENOENT) return errno_error(-result, "bpf.detach");
    }
    return core::ok();
}

Result<size_t> count_device_programs(FdRef cgroup) {
    BERTH_ASSIGN(std::vector<UniqueFd> programs, our_programs(cgroup));
    return programs.size();
}

bool char_device_exists(FdRef sys_dev_char, unsigned major, unsigned minor) {
    char name[32];
    snprintf(name, sizeof(name), "%u:%u", major, minor);
    return faccessat(sys_dev_char.get(), name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

}  // namespace berth::sys
