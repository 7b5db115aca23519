#include "agent/service/agent_main.h"

#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "agent/runtime/runtime.h"
#include "agent/service/agent_filter.h"
#include "agent/service/dispatch.h"
#include "agent/service/listener.h"
#include "agent/sys/log.h"

namespace berth::service {
namespace {

constexpr unsigned kRingEntries = 256;

[[noreturn]] void die(const char* event, const core::Error& error) {
    sys::log(sys::LogLevel::kError, event, "%s", error.message.c_str());
    _exit(1);
}

void on_fatal(const char* file, int line, const char* condition) {
    sys::log(sys::LogLevel::kError, "agent.check", "%s:%d: %s", file, line, condition);
}

// The class keys in a page of their own: locked, not in a core dump, zero in a child.
core::ClassKeys* keep_keys(core::ClassKeys& keys) {
    void* page = mmap(nullptr, sizeof keys, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BERTH_CHECK(page != MAP_FAILED);
    auto length = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    (void)mlock(page, length);
    (void)madvise(page, length, MADV_DONTDUMP);
    (void)madvise(page, length, MADV_WIPEONFORK);
    memcpy(page, &keys, sizeof keys);
    explicit_bzero(&keys, sizeof keys);
    return static_cast<core::ClassKeys*>(page);
}

// A memfd that the keeper holds for us, mapped for good.
std::span<std::byte> map_stored(runtime::Welcome& welcome, const char* name) {
    auto found = welcome.stored.find(name);
    struct stat size {};
    if (found == welcome.stored.end() || fstat(found->second.get(), &size) != 0 || size.st_size <= 0) {
        die("agent.start",
            core::make_error(core::Code::kInternal, std::string("the keeper gave no ") + name));
    }
    auto length = static_cast<size_t>(size.st_size);
    void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, found->second.get(), 0);
    if (memory == MAP_FAILED) die("agent.start", core::errno_error(errno, std::string("mmap ") + name));
    welcome.stored.erase(found);
    return {static_cast<std::byte*>(memory), length};
}

// berth.ready: tells a waiting host that it can come, by a connection that carries nothing.
class ReadyDial {
 public:
    ReadyDial(loop::Loop& loop, uint32_t port) : loop_(loop) {
        socket_.reset(socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        address_.svm_family = AF_VSOCK;
        address_.svm_cid = VMADDR_CID_HOST;
        address_.svm_port = port;
        if (!socket_.valid()) return;
        loop_.connect(connect_, socket_.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_);
    }

 private:
    void on_connected(loop::Op&, int32_t result) {
        if (result < 0) {
            sys::log(sys::LogLevel::kWarn, "ready.dial", "port %u: %s", address_.svm_port,
                     core::errno_name(-result).c_str());
        }
        socket_.reset();
    }
    loop::Loop& loop_;
    sys::UniqueFd socket_;
    sockaddr_vm address_{};
    loop::Op connect_{loop::Op::to<&ReadyDial::on_connected>(), this};
};

// The connections' view of the streams.
class Streams final : public StreamGate {
 public:
    explicit Streams(runtime::StreamTable& table) : table_(table) {}
    core::Result<TicketGrant> check_ticket(std::span<const uint8_t, 32> ticket) override {
        BERTH_ASSIGN(runtime::StreamGrant grant, table_.check_ticket(ticket));
        return TicketGrant{grant.stream_key, grant.resume_offset.value_or(0),
                           grant.resume_offset.has_value()};
    }
    void attach(TicketGrant grant, sys::UniqueFd socket) override {
        runtime::StreamGrant own{grant.stream_key, std::nullopt};
        if (grant.has_resume_offset) own.resume_offset = grant.resume_offset;
        table_.attach(own, std::move(socket));
    }
    size_t attached() const override { return table_.attached(); }

 private:
    runtime::StreamTable& table_;
};

void add_listeners(Server& server, runtime::Welcome& welcome) {
    struct Row {
        const char* name;
        ListenerKind kind;
    };
    constexpr Row kRows[] = {{"listener/vsock", ListenerKind::kVsock},
                             {"listener/unix", ListenerKind::kUnix},
                             {"listener/local", ListenerKind::kLocal}};
    for (const Row& row : kRows) {
        auto found = welcome.stored.find(row.name);
        if (found == welcome.stored.end()) continue;
        server.add_listener(row.kind, std::move(found->second));
        welcome.stored.erase(found);
    }
}

}  // namespace

void run_agent(int keeper_socket_fd) {
    core::set_fatal_handler(on_fatal);
    sys::set_log(STDERR_FILENO, sys::LogLevel::kInfo, "berth-agent");
    prctl(PR_SET_NAME, "berth-agent");
    prctl(PR_SET_DUMPABLE, 0);
    signal(SIGPIPE, SIG_IGN);
    umask(0077);
    runtime::KeeperLink keeper{sys::UniqueFd(keeper_socket_fd)};
    auto welcomed = keeper.receive_welcome();
    if (!welcomed.ok()) die("agent.welcome", welcomed.error());
    runtime::Welcome& welcome = *welcomed;
    const core::AgentConfig config = welcome.config;
    sys::set_log(STDERR_FILENO, static_cast<sys::LogLevel>(config.log_level), "berth-agent");
    const core::ClassKeys* keys = keep_keys(welcome.keys);

    auto made_loop = loop::Loop::create(kRingEntries);
    if (!made_loop.ok()) die("agent.io_uring", made_loop.error());
    loop::Loop& loop = **made_loop;
    // The agent ends by _exit: nothing below is ever destroyed while operations are pending.
    auto& runtime = *new runtime::Runtime(loop, keeper, config);
    if (!runtime.events().open(map_stored(welcome, "memory/events"))) {
        sys::log(sys::LogLevel::kError, "agent.events", "the event log was damaged and begins anew");
    }
    if (auto opened = runtime.streams().open(map_stored(welcome, "memory/ledger")); !opened.ok()) {
        die("agent.ledger", opened.error());
    }
    keeper.attach(loop, {[&runtime](const core::ProcessRecord& record) { runtime.on_exit(record); },
                         [&runtime](sys::UniqueFd socket) { runtime.spawner().replace(std::move(socket)); },
                         [&loop] { loop.stop(); }});
    if (auto adopted = runtime.adopt(welcome); !adopted.ok()) die("agent.adopt", adopted.error());
    auto& dispatch = *new Dispatch(runtime);
    auto& gate = *new Streams(runtime.streams());
    auto& server = *new Server(loop, runtime.config(), *keys, dispatch, gate);
    add_listeners(server, welcome);
    // From here on nothing is read that a host or a container wrote, but within these bounds.
    if (auto confined = confine_agent(); !confined.ok()) die("agent.confine", confined.error());
    keeper.ready();
    if (config.ready_port != 0) new ReadyDial(loop, config.ready_port);
    sys::log(sys::LogLevel::kInfo, "agent.serving", "start %u, %zu containers", config.agent_starts + 1,
             runtime.containers().size());
    loop.run();
    _exit(0);
}

}  // namespace berth::service
