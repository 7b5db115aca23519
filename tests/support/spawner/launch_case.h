// What the launch tests share.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "agent/sys/memfd.h"
#include "agent/sys/seccomp.h"
#include "tests/support/spawner/plans.h"
#include "tests/support/spawner/stage.h"

using namespace berth;
using namespace berth::test;
using enum core::PlanOp;

namespace {

#define SKIP_IF_IMPOSSIBLE(stage)                          \
    if (!(stage).why_not().empty()) {                      \
        MESSAGE("skipped: " << (stage).why_not().c_str()); \
        return;                                            \
    }

constexpr uint64_t kCapsKept = 1u << 10;  // CAP_NET_BIND_SERVICE

struct Output {
    sys::UniqueFd read;
    sys::UniqueFd write;
    Output() {
        int fds[2];
        REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
        read.reset(fds[0]);
        write.reset(fds[1]);
    }
    // Reads until `ending` was there.
    std::string until(const char* ending) {
        std::string text;
        char buffer[512];
        ssize_t got = 0;
        while (text.find(ending) == std::string::npos &&
               (got = ::read(read.get(), buffer, sizeof(buffer))) > 0) {
            text.append(buffer, static_cast<size_t>(got));
        }
        return text;
    }
    std::string all() {
        write.reset();
        std::string text;
        char buffer[512];
        ssize_t got = 0;
        while ((got = ::read(read.get(), buffer, sizeof(buffer))) > 0)
            text.append(buffer, static_cast<size_t>(got));
        return text;
    }
};

void expect_executed(Stage& stage, const Running& running) {
    Message message = stage.next_message(running);
    if (!message.end) {
        MESSAGE("step " << message.content.step_index << " failed with " << message.content.err << ": "
                        << message.content.text);
    }
    CHECK(message.end);
}

std::string link_of(const std::string& path) {
    char target[256] = {};
    ssize_t size = ::readlink(path.c_str(), target, sizeof(target) - 1);
    return size < 0 ? "(none)" : std::string(target, static_cast<size_t>(size));
}

std::string proc(pid_t pid, const char* name) {
    return "/proc/" + std::to_string(pid) + "/" + name;
}

}  // namespace
