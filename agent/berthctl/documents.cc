#include "agent/berthctl/documents.h"

#include "agent/berthctl/json_text.h"
#include "agent/core/caps.h"

namespace berth::ctl {

namespace {

constexpr std::string_view kNewestSpecVersion = "1.3.0";

using Words = std::initializer_list<std::string_view>;

void array(JsonText& out, std::string_view key, std::span<const std::string_view> items) {
    out.begin_array(key);
    for (std::string_view item : items) out.item(item);
    out.end_array();
}

void array(JsonText& out, std::string_view key, Words items) {
    array(out, key, std::span(items.begin(), items.size()));
}

void mount(JsonText& out, std::string_view type, std::string_view source, std::string_view destination,
           Words options) {
    out.begin_object();
    out.text("destination", destination);
    out.text("type", type);
    out.text("source", source);
    if (options.size() > 0) array(out, "options", options);
    out.end_object();
}

void put_process(JsonText& out) {
    out.begin_object("process");
    out.boolean("terminal", true);
    out.begin_object("user");
    out.number("uid", 0);
    out.number("gid", 0);
    out.end_object();
    array(out, "args", {"sh"});
    array(out, "env", {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"});
    out.text("cwd", "/");
    out.begin_object("capabilities");
    for (std::string_view set : {"bounding", "effective", "permitted"})
        array(out, set, {"CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"});
    out.end_object();
    out.begin_array("rlimits");
    out.begin_object();
    out.text("type", "RLIMIT_NOFILE");
    out.number("hard", 1024);
    out.number("soft", 1024);
    out.end_object();
    out.end_array();
    out.boolean("noNewPrivileges", true);
    out.end_object();
}

void put_mounts(JsonText& out, bool user_namespace) {
    out.begin_array("mounts");
    mount(out, "proc", "proc", "/proc", {});
    mount(out, "tmpfs", "tmpfs", "/dev", {"nosuid", "strictatime", "mode=755", "size=65536k"});
    if (user_namespace) {
        // Group 5, the terminals', has no id in it.
        mount(out, "devpts", "devpts", "/dev/pts",
              {"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"});
    } else {
        mount(out, "devpts", "devpts", "/dev/pts",
              {"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"});
    }
    mount(out, "tmpfs", "shm", "/dev/shm", {"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"});
    mount(out, "mqueue", "mqueue", "/dev/mqueue", {"nosuid", "noexec", "nodev"});
    mount(out, "sysfs", "sysfs", "/sys", {"nosuid", "noexec", "nodev", "ro"});
    mount(out, "cgroup", "cgroup", "/sys/fs/cgroup", {"nosuid", "noexec", "nodev", "relatime", "ro"});
    out.end_array();
}

void put_mapping(JsonText& out, std::string_view key, uint32_t id) {
    out.begin_array(key);
    out.begin_object();
    out.number("containerID", 0);
    out.number("hostID", id);
    out.number("size", 1);
    out.end_object();
    out.end_array();
}

void put_linux(JsonText& out, bool user_namespace, uint32_t uid, uint32_t gid) {
    out.begin_object("linux");
    if (user_namespace) {
        put_mapping(out, "uidMappings", uid);
        put_mapping(out, "gidMappings", gid);
    }
    out.begin_object("resources");
    out.begin_array("devices");
    out.begin_object();
    out.boolean("allow", false);
    out.text("access", "rwm");
    out.end_object();
    out.end_array();
    out.end_object();
    out.begin_array("namespaces");
    for (std::string_view type : {"pid", "network", "ipc", "uts", "cgroup", "mount", "user"}) {
        if (type == "user" && !user_namespace) continue;
        out.begin_object();
        out.text("type", type);
        out.end_object();
    }
    out.end_array();
    array(out, "maskedPaths",
          {"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
           "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
           "/sys/devices/virtual/powercap", "/sys/firmware"});
    array(out, "readonlyPaths", {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"});
    out.end_object();
}

constexpr std::string_view kMountOptions[] = {"async",       "atime",          "bind",        "defaults",
                                              "dev",         "diratime",       "dirsync",     "exec",
                                              "idmap",       "iversion",       "lazytime",    "loud",
                                              "mand",        "noatime",        "nodev",       "nodiratime",
                                              "noexec",      "noiversion",     "nolazytime",  "nomand",
                                              "norelatime",  "nostrictatime",  "nosuid",      "nosymfollow",
                                              "private",     "ratime",         "rbind",       "rdev",
                                              "rdiratime",   "relatime",       "rexec",       "ridmap",
                                              "rnoatime",    "rnodev",         "rnodiratime", "rnoexec",
                                              "rnorelatime", "rnostrictatime", "rnosuid",     "rnosymfollow",
                                              "ro",          "rprivate",       "rrelatime",   "rro",
                                              "rrw",         "rshared",        "rslave",      "rstrictatime",
                                              "rsuid",       "rsymfollow",     "runbindable", "rw",
                                              "shared",      "silent",         "slave",       "strictatime",
                                              "suid",        "symfollow",      "sync",        "tmpcopyup",
                                              "unbindable"};

bool has(const v1::InfoResponse& info, std::string_view name) {
    for (const v1::Feature& feature : info.features()) {
        if (feature.name() == name) return feature.available();
    }
    return false;
}

void enabled(JsonText& out, std::string_view key, bool value) {
    out.begin_object(key);
    out.boolean("enabled", value);
    out.end_object();
}

void put_seccomp(JsonText& out) {
    out.begin_object("seccomp");
    out.boolean("enabled", true);
    array(out, "actions",
          {"SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS",
           "SCMP_ACT_KILL_THREAD", "SCMP_ACT_LOG", "SCMP_ACT_NOTIFY", "SCMP_ACT_TRACE", "SCMP_ACT_TRAP"});
    array(out, "operators",
          {"SCMP_CMP_EQ", "SCMP_CMP_GE", "SCMP_CMP_GT", "SCMP_CMP_LE", "SCMP_CMP_LT", "SCMP_CMP_MASKED_EQ",
           "SCMP_CMP_NE"});
    array(out, "archs",
          {"SCMP_ARCH_AARCH64",  "SCMP_ARCH_ARM",         "SCMP_ARCH_LOONGARCH64", "SCMP_ARCH_M68K",
           "SCMP_ARCH_MIPS",     "SCMP_ARCH_MIPS64",      "SCMP_ARCH_MIPS64N32",   "SCMP_ARCH_MIPSEL",
           "SCMP_ARCH_MIPSEL64", "SCMP_ARCH_MIPSEL64N32", "SCMP_ARCH_PARISC",      "SCMP_ARCH_PARISC64",
           "SCMP_ARCH_PPC",      "SCMP_ARCH_PPC64",       "SCMP_ARCH_PPC64LE",     "SCMP_ARCH_RISCV64",
           "SCMP_ARCH_S390",     "SCMP_ARCH_S390X",       "SCMP_ARCH_SH",          "SCMP_ARCH_SHEB",
           "SCMP_ARCH_X32",      "SCMP_ARCH_X86",         "SCMP_ARCH_X86_64"});
    for (std::string_view key : {"knownFlags", "supportedFlags"}) {
        array(out, key,
              {"SECCOMP_FILTER_FLAG_LOG", "SECCOMP_FILTER_FLAG_SPEC_ALLOW", "SECCOMP_FILTER_FLAG_TSYNC",
               "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV"});
    }
    out.end_object();
}

}  // namespace

std::span<const std::string_view> mount_options() {
    return kMountOptions;
}

std::string spec_json(bool user_namespace, uint32_t uid, uint32_t gid) {
    JsonText out(JsonText::Style::kIndented);
    out.begin_object();
    // The version whose rules the container is to have: a poststart hook that fails, fails the start.
    out.text("ociVersion", kNewestSpecVersion);
    put_process(out);
    out.begin_object("root");
    out.text("path", "rootfs");
    out.boolean("readonly", true);
    out.end_object();
    out.text("hostname", "berth");
    put_mounts(out, user_namespace);
    put_linux(out, user_namespace, uid, gid);
    out.end_object();
    return out.str() + "\n";
}

std::string features_json(const v1::InfoResponse& info) {
    JsonText out(JsonText::Style::kIndented);
    out.begin_object();
    out.text("ociVersionMin", "1.0.0");
    out.text("ociVersionMax", kNewestSpecVersion);
    array(out, "hooks",
          {"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"});
    array(out, "mountOptions", mount_options());
    out.begin_object("linux");
    out.begin_array("namespaces");
    constexpr std::pair<std::string_view, std::string_view> kNamespaces[] = {
        {"cgroup", "namespace.cgroup"}, {"ipc", "namespace.ipc"}, {"mount", "namespace.mnt"},
        {"network", "namespace.net"},   {"pid", "namespace.pid"}, {"time", "namespace.time"},
        {"user", "namespace.user"},     {"uts", "namespace.uts"},
    };
    for (const auto& [type, feature] : kNamespaces) {
        if (has(info, feature)) out.item(type);
    }
    out.end_array();
    out.begin_array("capabilities");
    constexpr uint32_t kLastCapability = 40;
    for (uint32_t number = 0; number <= kLastCapability; ++number) out.item(core::capability_name(number));
    out.end_array();
    out.begin_object("cgroup");
    out.boolean("v1", false);
    out.boolean("v2", true);
    out.boolean("systemd", false);
    out.boolean("systemdUser", false);
    out.boolean("rdma", has(info, "cgroup.rdma"));
    out.end_object();
    put_seccomp(out);
    enabled(out, "apparmor", has(info, "lsm.apparmor"));
    enabled(out, "selinux", false);
    out.begin_object("intelRdt");
    for (std::string_view key : {"enabled", "schemata", "monitoring"}) out.boolean(key, false);
    out.end_object();
    enabled(out, "memoryPolicy", true);
    out.begin_object("mountExtensions");
    enabled(out, "idmap", true);
    out.end_object();
    enabled(out, "netDevices", has(info, "namespace.net"));
    out.end_object();
    out.begin_object("annotations");
    out.text("io.berth.version", info.version());
    out.text("io.berth.kernel", info.kernel_release());
    out.end_object();
    out.end_object();
    return out.str() + "\n";
}

}  // namespace berth::ctl
