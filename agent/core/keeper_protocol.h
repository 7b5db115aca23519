// The keeper's socket to the agent (SOCK_SEQPACKET, flat structs of one binary). Descriptors ride along as
// SCM_RIGHTS.
#pragma once

#include <cstdint>
#include <type_traits>

#include "agent/core/limits.h"

namespace berth::core {

// Where an absolute cgroupsPath begins (--cgroups-path).
enum class CgroupsPathFrom : uint8_t {
    kOwn = 0,    // in the agent's own part of the hierarchy
    kMount = 1,  // at the hierarchy's mount point, where the runtime spec has it
    kLocal = 2,  // there for the machine's own root, over the local socket; in our own part for hosts
};

// What the keeper decided at boot, from berth.* keys or the flags of --helper.
struct AgentConfig {
    uint32_t vsock_port = 1023;
    uint32_t ready_port = 0;  // 0: none
    uint32_t generation = 1;
    uint8_t auth_host_cid = 0;    // berth.auth=host-cid
    uint8_t allow_local_cid = 0;  // berth.allow_local=1
    uint8_t is_helper = 0;
    uint8_t has_secret = 0;
    uint8_t log_level = 2;
    uint8_t safe_mode = 0;  // three crashes in a row: State, List, Kill, Delete, Shutdown only
    uint8_t auth_unix = 0;  // the unix: listener does the handshake
    CgroupsPathFrom cgroups_path_from = CgroupsPathFrom::kOwn;
    uint32_t agent_starts = 0;  // 0 for the first agent of this boot
    uint8_t instance_id[16] = {};
    char cgroup_root[512] = {};  // the sandbox's directory ("/sys/fs/cgroup/berth"), no trailing slash
    char run_dir[128] = {};      // "/run/berth"
    char last_crash[128] = {};   // what ended the previous agent ("signal 11"); empty when none or on purpose
    int64_t boot_monotonic_ns = 0;  // CLOCK_BOOTTIME when the listener was open
};

// The three class keys K_1..K_3 (proto/handshake.md).
struct ClassKeys {
    uint8_t key[3][32] = {};
};

enum class KeeperMessageType : uint32_t {
    // keeper -> agent, on start, in this order: kWelcome, any number of kStoredFd and kRegistered and
    // kExited, kWelcomeEnd.
    kWelcome = 1,     // config, keys
    kStoredFd = 2,    // name + the descriptor
    kRegistered = 3,  // process: key, pid (alive as far as the keeper knows) + its pidfd
    kExited = 4,  // process: key, pid, wait status, times; repeated to each new agent until kAcknowledgeExit
    kWelcomeEnd = 5,
    kSpawner = 6,  // a (new) spawner's socket; outstanding requests to the old one are lost. Also sent during
                   // the welcome
    // agent -> keeper.
    kStoreFd = 32,          // name + descriptor: kept (replacing one of the same name) until kDropFd; a name
                            // that ends in '/' + several: kept as NAME0, NAME1, ...
    kDropFd = 33,           // name; a name that ends in '/' drops all below it
    kAcknowledgeExit = 34,  // process.key: the exit is in the log and the state file; value: how many more
                            // keys are in name, of 8 bytes each, at most limits::kHeldAcknowledgements
    kShutdown = 35,         // value: ShutdownMode
    kAgentReady = 36,       // serving: the crash count goes back to zero after it has served a while
    kForget = 37,           // process.key: drops a registered process that the agent does not want reported
};

enum class ShutdownMode : uint32_t { kPowerOff = 1, kReboot = 2, kExitHelper = 3 };

struct ProcessRecord {
    uint64_t key = 0;
    int32_t pid = 0;
    int32_t wait_status = 0;  // as waitpid gives it
    int64_t exited_realtime_ns = 0;
};

struct KeeperMessage {
    KeeperMessageType type = KeeperMessageType::kWelcomeEnd;
    uint32_t value = 0;
    ProcessRecord process;
    char name[limits::kStoredFdNameBytes] = {};
};
struct WelcomeMessage {
    KeeperMessage header;
    AgentConfig config;
    ClassKeys keys;
};
static_assert(std::is_trivially_copyable_v<WelcomeMessage>);

// Names in the keeper's store.
//   listener/vsock listener/local listener/unix   made by the keeper at boot
//   memory/events   memory/ledger                 memfds made by the keeper at boot (limits::kEventLogBytes;
//   see runtime) c/ID/launch/@init/{0,1}                       sync socket of a created, not yet started
//   process, and its plan c/ID/stdio/EXEC/{in,out,err,pty,...}          pipes and pty masters
//   c/ID/...                                      whatever else the agent wants back

// The agent's descriptors at its start (execve by the keeper): 3 = the keeper's socket. The spawner's: 3 =
// the keeper's socket, 4 = the agent's. argv[0] of the one binary tells which it is: "berth-agent",
// "berth-spawner".
inline constexpr int kKeeperSocketFd = 3;
inline constexpr int kSpawnerAgentSocketFd = 4;

}  // namespace berth::core
