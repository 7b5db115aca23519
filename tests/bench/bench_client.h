// The shim's side of a benchmark: a client that dies on any error, and figures a line each.
#pragma once

#include <signal.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "agent/client/events.h"
#include "agent/client/io.h"
#include "agent/client/session.h"
#include "agent/core/text.h"
#include "proto/containerd/task.pb.h"

namespace bench {

using namespace berth;

[[noreturn]] inline void die(const core::Error& error) {
    std::fprintf(stderr, "bench: %s\n", error.message.c_str());
    std::exit(1);
}
template <typename T>
T get(core::Result<T> result) {
    if (!result.ok()) die(result.error());
    return std::move(result).value();
}

inline void print(int64_t figure) {
    std::printf("%lld\n", static_cast<long long>(figure));
}

inline std::string read_text(const char* path) {
    std::string text;
    std::FILE* file = std::fopen(path, "re");
    if (file == nullptr) die(core::errno_error(errno, path));
    char buffer[4096];
    for (size_t count; (count = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, count);
    std::fclose(file);
    return text;
}

class Bench {
 public:
    Bench(client::Session session, std::string config)
        : session_(std::move(session)), config_(std::move(config)) {
        if (auto connected = session_.connect(); !connected.ok()) die(connected.error());
    }

    client::Session& session() { return session_; }

    void create(const std::string& id, const char* arguments, bool with_stream) {
        pb::task::CreateTaskRequest request;
        request.set_id(id);
        request.set_bundle("/run/bench");
        if (with_stream) request.set_stdout("stream://");
        std::string config = config_;
        config.replace(config.find("@ARGS@"), 6, arguments);
        request.mutable_options()->set_type_url(std::string(client::kSpecType));
        request.mutable_options()->set_value(std::move(config));
        get(session_.call<pb::task::CreateTaskResponse>(client::kTaskService, "Create", request));
    }
    void start(const std::string& id, const char* exec_id = "") {
        get(session_.call<pb::task::StartResponse>(client::kTaskService, "Start", process(id, exec_id)));
    }
    uint32_t wait(const std::string& id, const char* exec_id = "") {
        return get(session_.call<pb::task::WaitResponse>(client::kTaskService, "Wait", process(id, exec_id)))
            .exit_status();
    }
    void remove(const std::string& id, const char* exec_id = "") {
        get(session_.call<pb::task::DeleteResponse>(client::kTaskService, "Delete", process(id, exec_id)));
    }
    void end(const std::string& id) {
        pb::task::KillRequest request;
        request.set_id(id);
        request.set_signal(SIGKILL);
        (void)session_.call<pb::Empty>(client::kTaskService, "Kill", request);
        wait(id);
        remove(id);
    }
    void info() { get(session_.call<v1::InfoResponse>(client::kGuestService, "Info", v1::InfoRequest())); }

    static pb::task::ProcessRequest process(const std::string& id, const char* exec_id) {
        pb::task::ProcessRequest request;
        request.set_id(id);
        request.set_exec_id(exec_id);
        return request;
    }

 private:
    client::Session session_;
    std::string config_;
};

inline constexpr char kTrue[] = R"(["/bin/floor","true"])";
inline constexpr char kSleep[] = R"(["/bin/floor","sleep"])";

inline void expect_ok(uint32_t status) {
    if (status != 0) die(core::make_error(core::Code::kInternal, core::format("exit status %u", status)));
}

}  // namespace bench
