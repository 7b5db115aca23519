// What the guest programs that talk to the agent have in common.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "agent/client/session.h"
#include "agent/core/text.h"
#include "proto/containerd/task.pb.h"

namespace driver {

namespace client = berth::client;
namespace core = berth::core;
namespace pb = berth::pb;
namespace task = berth::pb::task;
namespace v1 = berth::v1;
using client::Session;

inline constexpr const char* kTree = "/sys/fs/cgroup/berth";

[[noreturn]] inline void give_up(const std::string& why) {
    fflush(stdout);
    fprintf(stderr, "%s\n", why.c_str());
    exit(1);
}

inline std::string read_file(const std::string& path) {
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return "(unreadable)";
    std::string text;
    char buffer[4096];
    ssize_t count = 0;
    while ((count = read(fd, buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<size_t>(count));
    close(fd);
    return count < 0 ? "(unreadable)" : text;
}

inline std::string trimmed_file(const std::string& path) {
    return std::string(core::trim(read_file(path)));
}

inline std::vector<std::string> list(const std::string& path) {
    std::vector<std::string> names;
    DIR* directory = opendir(path.c_str());
    if (directory == nullptr) return names;
    while (const dirent* entry = readdir(directory)) {
        if (std::string_view(entry->d_name) != "." && std::string_view(entry->d_name) != "..")
            names.emplace_back(entry->d_name);
    }
    closedir(directory);
    std::sort(names.begin(), names.end());
    return names;
}

// The number behind `key` in a file of "key number" lines; the whole file when `key` is empty.
inline uint64_t number_in(const std::string& path, std::string_view key = {}) {
    std::string text = read_file(path);
    if (key.empty()) return strtoull(text.c_str(), nullptr, 10);
    for (std::string_view line : core::split_lines(text)) {
        if (line.substr(0, line.find(' ')) == key)
            return strtoull(std::string(line.substr(key.size())).c_str(), nullptr, 10);
    }
    return 0;
}

inline Session connect() {
    auto address = client::parse_address(client::kDefaultLocalSocket);
    if (!address.ok()) give_up(address.error().message);
    return Session(std::move(*address), client::Credentials(), -1);
}

// A config.json: `args` is a JSON array, the others what stands between the brackets.
struct Spec {
    std::string args = R"(["/bin/sleep","100000"])";
    std::string resources = "{}";
    std::string devices;
    std::string mounts;      // begins with a comma
    std::string namespaces;  // begins with a comma
    std::string oom_score_adj;

    std::string json() const {
        return R"({"ociVersion":"1.2.0","root":{"path":"/run/rootfs"},"process":{"cwd":"/","args":)" + args +
               (oom_score_adj.empty() ? "" : R"(,"oomScoreAdj":)" + oom_score_adj) +
               R"(,"env":["PATH=/bin:/sbin"],"user":{"uid":0,"gid":0}},"mounts":[{"destination":"/proc","type":"proc","source":"proc"})" +
               mounts + R"(],"linux":{)" + (devices.empty() ? "" : R"("devices":)" + devices + ",") +
               R"("resources":)" + resources + R"(,"namespaces":[{"type":"pid"},{"type":"mount"})" +
               namespaces + "]}}";
    }
};

inline core::Status create(Session& session, const std::string& id, const Spec& spec) {
    task::CreateTaskRequest request;
    request.set_id(id);
    request.mutable_options()->set_type_url(std::string(client::kSpecType));
    request.mutable_options()->set_value(spec.json());
    auto made = session.call<task::CreateTaskResponse>(client::kTaskService, "Create", request);
    if (!made.ok()) return std::move(made).error();
    return core::ok();
}

inline task::ProcessRequest process(const std::string& id, const std::string& exec_id = "") {
    task::ProcessRequest request;
    request.set_id(id);
    request.set_exec_id(exec_id);
    return request;
}

inline void must(const core::Status& status) {
    if (!status.ok()) give_up(status.error().message);
}

template <typename Response, typename Request>
Response must_call(Session& session, const char* method, const Request& request) {
    auto made = session.call<Response>(client::kTaskService, method, request);
    if (!made.ok()) give_up(std::string(method) + ": " + made.error().message);
    return std::move(*made);
}

inline void start(Session& session, const std::string& id, const std::string& exec_id = "") {
    must_call<task::StartResponse>(session, "Start", process(id, exec_id));
}

inline void kill_all(Session& session, const std::string& id) {
    task::KillRequest kill;
    kill.set_id(id);
    kill.set_signal(9);
    kill.set_all(true);
    (void)session.call<pb::Empty>(client::kTaskService, "Kill", kill);
}

// Kills what still runs, waits for its end, and deletes.
inline void remove(Session& session, const std::string& id) {
    kill_all(session, id);
    must_call<task::WaitResponse>(session, "Wait", process(id));
    must_call<task::DeleteResponse>(session, "Delete", process(id));
}

inline task::UpdateTaskRequest update_request(const std::string& id, const std::string& resources) {
    task::UpdateTaskRequest request;
    request.set_id(id);
    request.mutable_resources()->set_type_url(std::string(client::kResourcesType));
    request.mutable_resources()->set_value(resources);
    return request;
}

inline core::Status update(Session& session, const std::string& id, const std::string& resources) {
    auto made = session.call<pb::Empty>(client::kTaskService, "Update", update_request(id, resources));
    if (!made.ok()) return std::move(made).error();
    return core::ok();
}

}  // namespace driver
