// An update over a ring that is completed by hand and a folder that stands for the cgroup: what is written,
// in which order beside what is kept for a crash, and what is there after each failure.
#include "agent/runtime/update_job.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include "agent/core/resources.h"
#include "tests/support/loop/fake_ring.h"
#include "tests/support/sys/fake_tree.h"

using namespace berth;
using runtime::UpdateJob;
using test::file;

namespace {

// Values of one width each: unlike the kernel's, these files keep the tail of a longer one.
std::vector<test::Node> cgroup_files() {
    return {file("cpu.max", "100000 100000\n"),
            file("cpu.max.burst", "0\n"),
            file("cpu.weight", "100\n"),
            file("memory.current", "1000000\n"),
            file("memory.high", "33554432\n"),
            file("memory.low", "00000000\n"),
            file("memory.max", "67108864\n"),
            file("memory.min", "00000000\n"),
            file("memory.swap.max", "33554432\n"),
            file("memory.swap.current", "0\n"),
            file("pids.max", "100\n"),
            file("pids.current", "1\n")};
}

core::Resources parse(std::string_view json) {
    auto parsed = core::parse_resources_text(json, "resources");
    REQUIRE(parsed.ok());
    return std::move(*parsed);
}

struct Case {
    explicit Case(bool two_levels = false)
        : ring(new test::FakeRing(8)),
          loop(std::unique_ptr<loop::Ring>(ring)),
          inner(two_levels ? cgroup_files() : std::vector<test::Node>()) {
        target.outer = sys::UniqueFd(fcntl(outer.root().get(), F_DUPFD_CLOEXEC, 0));
        if (two_levels) target.inner = sys::UniqueFd(fcntl(inner.root().get(), F_DUPFD_CLOEXEC, 0));
        target.stored = parse(R"({"memory":{"limit":67108864,"swap":100663296}})");
    }

    std::shared_ptr<UpdateJob> begin(std::string_view json) {
        target.request = parse(json);
        UpdateJob::Hooks hooks;
        hooks.keep_intent = [this](std::string_view undo) {
            log += "intent ";
            kept = undo;
            at_intent = outer.content("memory.max") + outer.content("pids.max");
            return intent_result;
        };
        hooks.drop_intent = [this] { log += "drop "; };
        hooks.persist = [this](const core::Resources& now) {
            log += "persist ";
            merged = now;
            return persist_result;
        };
        hooks.done = [this](core::Status status) {
            log += "done";
            result = std::move(status);
        };
        return UpdateJob::begin(loop, std::move(target), std::move(hooks));
    }

    void turn() {
        stopper.post();
        loop.run();
    }
    void on_stop() { loop.stop(); }

    // The pending write: does it (0) or refuses it, and lets the loop deliver the answer.
    std::string complete(int error = 0) {
        turn();
        REQUIRE(!ring->submitted.empty());
        // A request to cancel it may follow.
        io_uring_sqe sqe = ring->submitted.front();
        ring->submitted.clear();
        REQUIRE(sqe.opcode == IORING_OP_WRITE);
        std::string value(reinterpret_cast<const char*>(sqe.addr), sqe.len);
        int32_t answer = -error;
        if (error == 0) answer = static_cast<int32_t>(pwrite(sqe.fd, value.data(), value.size(), 0));
        ring->completions.push_back({sqe.user_data, answer, false});
        turn();
        return value;
    }

    std::string all() const {
        std::string text;
        for (const test::Node& node : cgroup_files()) text += node.name + "=" + outer.content(node.name);
        return text;
    }

    test::FakeRing* ring;
    loop::Loop loop;
    loop::Task stopper{loop, loop::Task::to<&Case::on_stop, Case>(), this};
    test::FakeTree outer{cgroup_files()};
    test::FakeTree inner;
    UpdateJob::Target target;
    std::string log, kept, at_intent;
    core::Resources merged;
    core::Status intent_result = core::ok(), persist_result = core::ok();
    core::Status result = core::make_error(core::Code::kInternal, "not over");
};

}  // namespace

TEST_CASE("an update that cannot reclaim is over at once") {
    Case c;
    CHECK(c.begin(R"({"pids":{"limit":250}})") == nullptr);
    CHECK(c.result.ok());
    CHECK(c.log == "intent persist drop done");
    CHECK(c.at_intent == "67108864\n100\n");
    CHECK(c.kept == "undo\npids.max 100\n");
    CHECK(c.outer.content("pids.max") == "250\n");
    CHECK(c.merged.pids_limit == 250);
    CHECK(c.merged.memory.limit == 67108864);
    CHECK(c.ring->submitted.empty());
}

TEST_CASE("a write to memory.* is the ring's, and nothing is answered before it is over") {
    Case c;
    auto job = c.begin(R"({"memory":{"limit":33554432},"pids":{"limit":250}})");
    REQUIRE(job != nullptr);
    CHECK(c.log == "intent ");
    // The total (96 MiB) is the promise: swap grows by what memory loses, and is there before memory shrinks.
    CHECK(c.complete() == "67108864");
    CHECK(c.log == "intent ");
    CHECK(c.outer.content("memory.swap.max") == "67108864\n");
    CHECK(c.outer.content("memory.max") == "67108864\n");
    CHECK(c.complete() == "33554432");
    CHECK(c.result.ok());
    CHECK(c.log == "intent persist drop done");
    CHECK(c.outer.content("memory.max") == "33554432\n");
    CHECK(c.outer.content("pids.max") == "250\n");
}

TEST_CASE("what one write refuses takes the others back") {
    for (int error : {EBUSY, EINTR, ENOMEM}) {
        Case c;
        const std::string before = c.all();
        auto job = c.begin(R"({"memory":{"limit":33554432},"pids":{"limit":250},"cpu":{"shares":2048}})");
        REQUIRE(job != nullptr);
        c.complete();
        c.complete(error);
        // memory.swap.max again; that of memory.max changed nothing, but may have.
        while (!c.ring->submitted.empty() || c.log.find("done") == std::string::npos) c.complete();
        CHECK(c.log == "intent drop done");
        REQUIRE(!c.result.ok());
        CHECK(c.result.error().message ==
              "cgroup.write memory.max=33554432: " + std::string(core::errno_name(error)));
        CHECK(c.all() == before);
    }
}

TEST_CASE("what cannot be kept for a crash is not begun") {
    Case c;
    const std::string before = c.all();
    c.intent_result = core::errno_error(ENOSPC, "write state");
    CHECK(c.begin(R"({"pids":{"limit":250}})") == nullptr);
    CHECK(c.log.starts_with("intent "));
    CHECK(c.log.find("persist") == std::string::npos);
    CHECK(c.result.error().message == "write state: ENOSPC");
    CHECK(c.all() == before);
}

TEST_CASE("what cannot be persisted is taken back") {
    Case c;
    const std::string before = c.all();
    c.persist_result = core::errno_error(ENOSPC, "write state");
    CHECK(c.begin(R"({"pids":{"limit":250}})") == nullptr);
    CHECK(c.log == "intent persist drop done");
    CHECK(c.result.error().message == "write state: ENOSPC");
    CHECK(c.all() == before);
}

TEST_CASE("what is refused before the first write keeps and writes nothing") {
    Case c;
    const std::string before = c.all();
    CHECK(c.begin(R"({"memory":{"limit":33554432,"swap":16777216},"pids":{"limit":250}})") == nullptr);
    CHECK(c.log == "drop done");
    CHECK(c.result.error().code == core::Code::kInvalidArgument);
    CHECK(c.all() == before);
    Case other;
    CHECK(other.begin(R"({"pids":{"limit":250},"hugepageLimits":[{"pageSize":"2MB","limit":2097152}]})") ==
          nullptr);
    CHECK(other.log == "drop done");
    CHECK(other.result.error().code == core::Code::kFailedPrecondition);
    CHECK(other.all() == before);
}

TEST_CASE("a cancelled update ends its write, and then takes it back") {
    Case c;
    const std::string before = c.all();
    auto job = c.begin(R"({"memory":{"reservation":16777216}})");
    REQUIRE(job != nullptr);
    bool over = false;
    job->cancel(core::make_error(core::Code::kAborted, "the container is deleted"));
    job->when_over([&] { over = true; });
    CHECK(c.log == "intent ");  // the write cannot be called back
    CHECK(c.complete() == "16777216");
    CHECK(!over);
    CHECK(c.complete() == "00000000");
    CHECK(over);
    CHECK(c.log == "intent drop done");
    CHECK(c.result.error().message == "the container is deleted");
    CHECK(c.all() == before);
}

TEST_CASE("the inner level shows the same, and what it refuses does not count") {
    Case c(true);
    auto job = c.begin(R"({"memory":{"reservation":16777216}})");
    REQUIRE(job != nullptr);
    CHECK(c.complete() == "16777216");
    CHECK(c.outer.content("memory.low") == "16777216\n");
    CHECK(c.complete(EBUSY) == "16777216");
    CHECK(c.result.ok());
    CHECK(c.log == "intent persist drop done");
}

TEST_CASE("old values are kept as lines and written back") {
    std::vector<core::CgroupWrite> writes(2);
    writes[0].file = "memory.max";
    writes[0].value = "33554432";
    writes[1].file = "cpuset.cpus";
    writes[1].value = "\n";
    std::string text = runtime::encode_undo(writes);
    CHECK(text == "undo\nmemory.max 33554432\ncpuset.cpus \n");
    test::FakeTree tree({file("memory.max", "67108864\n"), file("cpuset.cpus", "0")});
    runtime::apply_undo(tree.root(), text);
    CHECK(tree.content("memory.max") == "33554432\n");
    CHECK(tree.content("cpuset.cpus") == "\n");
    runtime::apply_undo(tree.root(), "undo\nno.such.file 1\nnothing\n\n");
    CHECK(tree.content("memory.max") == "33554432\n");
}
