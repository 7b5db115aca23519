#include "agent/core/boot_options.h"

#include <doctest/doctest.h>

using berth::core::BootOptions;
using berth::core::CgroupsPathFrom;
using berth::core::HelperOptions;
using berth::core::parse_helper_flags;
using berth::core::parse_kernel_command_line;
using berth::core::parse_module_list;
using berth::core::Result;

TEST_CASE("a command line without our keys gives the defaults") {
    for (const char* text :
         {"", "\n", "console=ttyS0 quiet panic=-1 root=/dev/vda\n", "xberth.port=7 berth=1 Berth.port=2",
          "foo=\"a berth.port=7 b\"", "-- init args"}) {
        CAPTURE(text);
        Result<BootOptions> options = parse_kernel_command_line(text);
        REQUIRE(options.ok());
        CHECK(options->port == 1023);
        CHECK(options->ready_port == 0);
        CHECK(!options->auth_host_cid);
        CHECK(options->log_level == 2);
        CHECK(!options->allow_local_cid);
        CHECK(!options->local_socket);
        CHECK(options->hostname.empty());
    }
}

TEST_CASE("every key is taken, in quotes too") {
    Result<BootOptions> options = parse_kernel_command_line(
        "quiet berth.port=4294967294\tberth.ready=\"77\" \"berth.auth=host-cid\" berth.log=debug "
        "berth.allow_local=1 "
        "berth.local=1 berth.hostname=vm-1.example\n");
    REQUIRE(options.ok());
    CHECK(options->port == 4294967294U);
    CHECK(options->ready_port == 77);
    CHECK(options->auth_host_cid);
    CHECK(options->log_level == 3);
    CHECK(options->allow_local_cid);
    CHECK(options->local_socket);
    CHECK(options->hostname == "vm-1.example");
    CHECK(!parse_kernel_command_line("berth.local=0 berth.allow_local=0")->local_socket);
    CHECK(parse_kernel_command_line("berth.log=error")->log_level == 0);
    CHECK(parse_kernel_command_line("berth.log=warn")->log_level == 1);
    CHECK(!parse_kernel_command_line("berth.auth=secret")->auth_host_cid);
    CHECK(parse_kernel_command_line("berth.hostname=" + std::string(64, 'a'))->hostname.size() == 64);
}

TEST_CASE("a reboot= word means that the machine ends by its reset") {
    struct {
        const char* text;
        bool resets;
    } rows[] = {{"console=ttyS0 reboot=k panic=-1", true},
                {"reboot=t\n", true},
                {"\"reboot=k\"", true},
                {"console=ttyS0 panic=-1", false},
                {"reboot", false},
                {"reboot=", false},
                {"xreboot=k reboots=k", false},
                {"berth.hostname=reboot=k", false},
                {"", false}};
    for (const auto& row : rows) {
        CAPTURE(row.text);
        CHECK(berth::core::ends_by_reset(row.text) == row.resets);
    }
}

TEST_CASE("a bad key is one line that names it") {
    constexpr const char* kPort = ": must be a port, 1 to 4294967294";
    constexpr const char* kHost = ": must be 1 to 64 of A-Z a-z 0-9 - . with a letter or digit at both ends";
    constexpr const char* kUnknown =
        ": unknown key; known: berth.port, ready, auth, log, allow_local, local, hostname";
    struct Row {
        std::string text;
        std::string message;
    };
    const Row rows[] = {
        {"berth.port=0", std::string("berth.port=\"0\"") + kPort},
        {"berth.port=4294967295", std::string("berth.port=\"4294967295\"") + kPort},
        {"berth.port=99999999999", std::string("berth.port=\"99999999999\"") + kPort},
        {"berth.port=-1", std::string("berth.port=\"-1\"") + kPort},
        {"berth.port=+1", std::string("berth.port=\"+1\"") + kPort},
        {"berth.port=1023x", std::string("berth.port=\"1023x\"") + kPort},
        {"berth.port=0x10", std::string("berth.port=\"0x10\"") + kPort},
        {"berth.port=", std::string("berth.port=\"\"") + kPort},
        {"berth.port=\" 7\"", std::string("berth.port=\" 7\"") + kPort},
        {"berth.port", "\"berth.port\": needs a value"},
        {"berth.ready=x", std::string("berth.ready=\"x\"") + kPort},
        {"berth.auth=none", "berth.auth=\"none\": must be secret or host-cid"},
        {"berth.auth=Secret", "berth.auth=\"Secret\": must be secret or host-cid"},
        {"berth.log=trace", "berth.log=\"trace\": must be error, warn, info or debug"},
        {"berth.allow_local=yes", "berth.allow_local=\"yes\": must be 0 or 1"},
        {"berth.local=2", "berth.local=\"2\": must be 0 or 1"},
        {"berth.hostname=", std::string("berth.hostname=\"\"") + kHost},
        {"berth.hostname=-a", std::string("berth.hostname=\"-a\"") + kHost},
        {"berth.hostname=a.", std::string("berth.hostname=\"a.\"") + kHost},
        {"berth.hostname=a_b", std::string("berth.hostname=\"a_b\"") + kHost},
        {"berth.hostname=\"a b\"", std::string("berth.hostname=\"a b\"") + kHost},
        {"berth.prot=1", std::string("\"berth.prot\"") + kUnknown},
        {"berth.=1", std::string("\"berth.\"") + kUnknown},
        {"berth.Port=1", std::string("\"berth.Port\"") + kUnknown},
        {"berth.frontends=kata", std::string("\"berth.frontends\"") + kUnknown},
        {"-- berth.bogus=1", std::string("\"berth.bogus\"") + kUnknown},
        {"berth.port=1 berth.port=1", "berth.port: given twice"},
        {"berth.port=1023 quiet berth.port=2", "berth.port: given twice"},
    };
    for (const Row& row : rows) {
        CAPTURE(row.text);
        Result<BootOptions> options = parse_kernel_command_line(row.text);
        REQUIRE(!options.ok());
        CHECK(options.error().message == row.message);
        CHECK(options.error().code == berth::core::Code::kInvalidArgument);
    }
}

TEST_CASE("a secret on the command line is refused and not repeated") {
    for (const char* text :
         {"berth.secret=deadbeef", "berth.secret", "berth.secret=", "\"berth.secret=deadbeef\""}) {
        CAPTURE(text);
        Result<BootOptions> options = parse_kernel_command_line(text);
        REQUIRE(!options.ok());
        CHECK(options.error().message.find("readable in every container") != std::string::npos);
        CHECK(options.error().message.find("deadbeef") == std::string::npos);
    }
}

TEST_CASE("hostile command lines end in an error or in defaults, with a bounded message") {
    std::string huge = "berth." + std::string(60'000, 'k') + "=" + std::string(60'000, 'v');
    Result<BootOptions> options = parse_kernel_command_line(huge);
    REQUIRE(!options.ok());
    CHECK(options.error().message.size() < 1000);
    Result<BootOptions> control = parse_kernel_command_line("berth.log=\x1b[2J");
    REQUIRE(!control.ok());
    CHECK(control.error().message.find('\x1b') == std::string::npos);
    // The kernel takes an unfinished quote to the end of the line.
    CHECK(parse_kernel_command_line("berth.port=\"1022")->port == 1022);
    CHECK(parse_kernel_command_line("berth.port=\"1 berth.log=debug").error().message ==
          "berth.port=\"1 berth.log=debug\": must be a port, 1 to 4294967294");
}

namespace {
Result<HelperOptions> parse(std::initializer_list<std::string_view> flags) {
    std::vector<std::string_view> list(flags);
    return parse_helper_flags(list);
}
}  // namespace

TEST_CASE("helper flags mirror the keys") {
    Result<HelperOptions> none = parse({});
    REQUIRE(none.ok());
    CHECK(none->run_dir == "/run/berth");
    CHECK(none->boot.local_socket);
    CHECK(!none->listen_vsock);
    CHECK(none->cgroup_parent.empty());

    Result<HelperOptions> all =
        parse({"--port", "7", "--ready=8", "--auth", "host-cid", "--log=debug", "--allow-local",
               "--secret-file", "/etc/key", "--listen", "vsock", "--listen=unix:///tmp/a.sock", "--run-dir",
               "/run/other", "--cgroup-parent", "/machine/berth"});
    REQUIRE(all.ok());
    CHECK(all->boot.port == 7);
    CHECK(all->boot.ready_port == 8);
    CHECK(all->boot.auth_host_cid);
    CHECK(all->boot.log_level == 3);
    CHECK(all->boot.allow_local_cid);
    CHECK(all->secret_file == "/etc/key");
    CHECK(all->listen_vsock);
    CHECK(all->listen_unix == "/tmp/a.sock");
    CHECK(all->run_dir == "/run/other");
    CHECK(all->cgroup_parent == "/machine/berth");
    CHECK(parse({"--cgroup-parent", "/"})->cgroup_parent.empty());
    CHECK(none->cgroups_path_from == CgroupsPathFrom::kLocal);
    CHECK(parse({"--cgroup-parent=/a"})->cgroups_path_from == CgroupsPathFrom::kOwn);
    CHECK(parse({"--cgroups-path=local", "--cgroup-parent=/a"})->cgroups_path_from ==
          CgroupsPathFrom::kLocal);
    CHECK(parse({"--cgroups-path", "own"})->cgroups_path_from == CgroupsPathFrom::kOwn);
    CHECK(parse({"--cgroups-path=mount"})->cgroups_path_from == CgroupsPathFrom::kMount);
}

TEST_CASE("a bad flag is one line that names it") {
    struct Row {
        std::vector<std::string_view> flags;
        const char* message;
    };
    const Row rows[] = {
        {{"serve"}, "\"serve\": not a flag of --helper"},
        {{"-p", "1"}, "\"-p\": not a flag of --helper"},
        {{"--prot", "1"},
         "\"--prot\": unknown flag; known: --port --ready --auth --log --allow-local --secret-file --listen "
         "--run-dir "
         "--cgroup-parent --cgroups-path"},
        {{"--hostname=x"},
         "\"--hostname\": unknown flag; known: --port --ready --auth --log --allow-local --secret-file "
         "--listen "
         "--run-dir --cgroup-parent --cgroups-path"},
        {{"--port"}, "--port: needs a value"},
        {{"--listen"}, "--listen: needs a value"},
        {{"--port", "x"}, "--port=\"x\": must be a port, 1 to 4294967294"},
        {{"--port=1", "--port", "1"}, "--port: given twice"},
        {{"--allow-local=1"}, "--allow-local: takes no value"},
        {{"--secret", "00"}, "--secret: every process can read it there; use --secret-file FILE"},
        {{"--secret=00"}, "--secret: every process can read it there; use --secret-file FILE"},
        {{"--secret-file="}, "--secret-file=\"\": must be a file"},
        {{"--listen", "tcp://1"}, "--listen=\"tcp://1\": must be vsock or unix:///PATH"},
        {{"--listen", "unix://rel"}, "--listen=\"unix://rel\": must be vsock or unix:///PATH"},
        {{"--listen", "unix:///a/../b"}, "--listen=\"unix:///a/../b\": must be vsock or unix:///PATH"},
        {{"--listen", "vsock", "--listen", "vsock"}, "--listen vsock: given twice"},
        {{"--listen", "unix:///a", "--listen", "unix:///b"}, "--listen unix://...: given twice"},
        {{"--listen", "unix:///a"}, "--listen unix:///a: needs --secret-file"},
        {{"--listen", "vsock"}, "--listen vsock: needs --secret-file or --auth host-cid"},
        {{"--run-dir", "run"}, "--run-dir=\"run\": must be an absolute path of at most 90 bytes"},
        {{"--run-dir", "/run/"}, "--run-dir=\"/run/\": must be an absolute path of at most 90 bytes"},
        {{"--cgroups-path=slice"}, "--cgroups-path=\"slice\": must be \"local\", \"own\" or \"mount\""},
        {{"--cgroup-parent", "a"},
         "--cgroup-parent=\"a\": must be an absolute path in the cgroup2 hierarchy, of at most 256 bytes"},
        {{"--cgroup-parent", "/a/../b"},
         "--cgroup-parent=\"/a/../b\": must be an absolute path in the cgroup2 hierarchy, of at most 256 "
         "bytes"},
    };
    for (const Row& row : rows) {
        CAPTURE(row.message);
        Result<HelperOptions> options = parse_helper_flags(row.flags);
        REQUIRE(!options.ok());
        CHECK(options.error().message == row.message);
    }
    std::string long_path = "unix:///" + std::string(107, 'a');
    CHECK(!parse({"--listen", long_path, "--secret-file", "k"}).ok());
    CHECK(parse({"--listen", std::string_view(long_path).substr(0, 7 + 107), "--secret-file", "k"}).ok());
}

TEST_CASE("the module list is absolute paths") {
    auto list = parse_module_list("# vsock first\n/lib/modules/vsock.ko\n\n  /lib/modules/tun.ko.xz \n");
    REQUIRE(list.ok());
    REQUIRE(list->size() == 2);
    CHECK((*list)[0] == "/lib/modules/vsock.ko");
    CHECK((*list)[1] == "/lib/modules/tun.ko.xz");
    CHECK(parse_module_list("")->empty());
    CHECK(parse_module_list("tun").error().message == "berth.modules: \"tun\": must be an absolute path");
    CHECK(!parse_module_list("/lib/../etc/x.ko").ok());
}
