// Every limit of the agent, in one place. A limit that a request runs into is named in the error.
#pragma once

#include <cstddef>
#include <cstdint>

namespace berth::limits {

// Names. Container and exec ids: [A-Za-z0-9_+-][A-Za-z0-9_.+-]*, so that they are file names in cgroupfs and
// in /run.
inline constexpr size_t kContainerIdBytes = 128;
inline constexpr size_t kExecIdBytes = 128;
inline constexpr size_t kNamespaceBytes = 128;  // containerd namespace of an event envelope

// Containers and processes.
inline constexpr size_t kContainers = 4096;
inline constexpr size_t kExecsPerContainer = 1024;
inline constexpr size_t kPids = 65'536;                // listed of one container
inline constexpr size_t kCgroupsOfContainer = 16'384;  // below one container
inline constexpr size_t kCgroupDepthOfContainer = 32;

// ttrpc.
inline constexpr uint32_t kTtrpcMessageBytes = 4u << 20;
inline constexpr size_t kOpenStreamsPerConnection = 1024;
inline constexpr size_t kQueuedBytesPerConnection = 8u << 20;
inline constexpr int64_t kTimeoutNanosMax = 24LL * 3600 * 1'000'000'000;

// Connections.
inline constexpr size_t kUnauthenticatedConnections = 32;
inline constexpr int64_t kHandshakeDeadlineMs = 2000;
inline constexpr size_t kControlConnections = 64;
inline constexpr size_t kStreamConnections = 4096;
inline constexpr size_t kConnectionInputBytes = 4096;            // read at once from a control connection
inline constexpr size_t kConnectionLargeInputBytes = 64u << 10;  // while a larger frame comes in
inline constexpr size_t kQueueSlackBytes = 1u << 20;  // errors still queued beyond kQueuedBytesPerConnection
inline constexpr size_t kStreamMarkerBytes = 4096;    // the one message that a full subscriber still gets
inline constexpr int64_t kConnectionDrainMs = 2000;   // for a last error to go out before a close
inline constexpr size_t kMessageDescriptors = 253;    // SCM_MAX_FD
inline constexpr int64_t kAcceptRetryMs = 100;        // after an accept failed for want of descriptors

// Tickets and streams.
inline constexpr int64_t kTicketLifetimeMs = 10'000;
inline constexpr size_t kTickets = 4096;
inline constexpr size_t kStreamPayloadBytes = 65'536;
inline constexpr size_t kStreamWindowBytes = 1u << 20;
inline constexpr int64_t kDrainAfterDeleteMs = 60'000;
inline constexpr size_t kDrainingStreams = 256;
inline constexpr size_t kLedgerSlots = 16'384;
inline constexpr int64_t kLostReportMs =
    1000;  // output dropped by policy is told as an event at most so often

// Freed memory goes back to the kernel this long after the first of what freed it: once for many deletions.
inline constexpr int64_t kHeapTrimAfterMs = 1000;
// The keeper's: whenever half of what it held is gone, descriptors and processes, from so many on.
inline constexpr size_t kKeeperTrimFrom = 64;

// Threads of the kernel's for the ring's opens, reads and writes that have to wait, at most at a time.
inline constexpr unsigned kRingWorkers = 256;

// Events.
inline constexpr size_t kEventLogEntries = 4096;
inline constexpr size_t kEventLogBytes = 2u << 20;
inline constexpr size_t kEventBytes = 4096;
// What the log has behind its oldest entry goes back to the kernel each time that so much was written.
inline constexpr size_t kEventLogGiveBackBytes = 32u << 10;
// Under steady pressure the kernel tells of each memory.events file 100 times a second: increases of low,
// high and max within this time are one event. OOMs and kills are told at once.
inline constexpr int64_t kMemoryPressureEventsMs = 100;
inline constexpr size_t kMemoryEventKeys = 32;  // unknown keys of memory.events that are carried along
inline constexpr size_t kSubscriberQueueBytes = 1u << 20;
inline constexpr size_t kPressureWatches = 256;
inline constexpr size_t kEventFilters = 64;
inline constexpr size_t kEventFilterBytes = 1024;

// OCI spec.
inline constexpr size_t kSpecJsonBytes = 4u << 20;
inline constexpr size_t kKernelConfigBytes = 1u << 20;  // of berth --check-kernel
inline constexpr size_t kJsonDepth = 64;
inline constexpr size_t kJsonValues = 1u << 18;
inline constexpr size_t kMounts = 4096;
inline constexpr size_t kMountOptions = 256;  // words of one mount
inline constexpr size_t kAnnotations = 4096;
inline constexpr size_t kMaskedPaths = 1024;
inline constexpr size_t kSysctls = 1024;
inline constexpr size_t kSysctlValueBytes = 4095;
inline constexpr size_t kIdMappings = 340;  // the kernel's UID_GID_MAP_MAX_EXTENTS
inline constexpr size_t kKeptMounts = 512;  // bind mounts and nodes of a container with a user namespace
inline constexpr size_t kPlanIdMaps = 16;   // different maps of id-mapped mounts in one container
inline constexpr int64_t kStageDeadlineMs = 20'000;  // of what is mounted before a user namespace is entered
inline constexpr size_t kNetDevices = 64;
inline constexpr uint32_t kCpus = 8192;
inline constexpr uint32_t kMemoryNodes = 1024;
inline constexpr size_t kHooks = 256;             // of one kind
inline constexpr size_t kHookOutputBytes = 1024;  // the end of it, for an error
inline constexpr size_t kDevices = 1024;
inline constexpr size_t kDeviceRules = 1024;
inline constexpr size_t kDeviceProgramInstructions = 32'767;  // jumps reach no further
inline constexpr size_t kArgvEnvpBytes = 2u << 20;  // kernel: a quarter of the stack limit, 2 MiB by default
inline constexpr size_t kArgvEnvpEntries = 65'536;
inline constexpr size_t kPathBytes = 4095;  // PATH_MAX without its NUL
inline constexpr size_t kMountDataBytes = 4095;
inline constexpr size_t kRootfsMounts = 128;
inline constexpr size_t kGroups = 65'536;
inline constexpr size_t kSeccompProfilesKept = 16;
inline constexpr size_t kStateLogBytes = 16 * 1024;  // a state file is written anew when it would be larger
inline constexpr size_t kHeldAcknowledgements = 16;  // exits that the keeper is told of in one message
inline constexpr int64_t kAcknowledgeAfterMs = 1'000;
inline constexpr size_t kDeviceProgramsKept = 4;  // one descriptor each
inline constexpr size_t kDeviceProgramKeptInstructions = 1024;
inline constexpr size_t kSeccompInstructions = 4096 * 8;
inline constexpr size_t kSeccompRules = 8192;
inline constexpr size_t kSeccompNames = 1024;    // in one rule
inline constexpr size_t kSeccompArguments = 64;  // in one rule
inline constexpr size_t kUnifiedValueBytes = 64;
inline constexpr size_t kBlockIoDevices = 1024;  // entries in each list of linux.resources.blockIO
inline constexpr size_t kHugepageLimits = 16;
inline constexpr size_t kRdmaDevices = 256;
inline constexpr size_t kNetworkPriorities = 1024;
inline constexpr size_t kCgroupDepth = 32;       // components of a cgroupsPath
inline constexpr size_t kCgroupNameBytes = 255;  // NAME_MAX

// Launching.
inline constexpr size_t kLaunchPlanBytes = 8u << 20;
inline constexpr size_t kInlinePlanBytes = 7u << 10;  // one that nobody keeps goes in the request itself
inline constexpr size_t kInlinePlansPending = 8;      // of these at once: a socket holds few of that size
inline constexpr size_t kLaunchPlanFds = 200;         // SCM_RIGHTS carries at most 253
inline constexpr int64_t kLaunchDeadlineMs = 60'000;
inline constexpr int64_t kTeardownDeadlineMs = 10'000;
inline constexpr int64_t kFreezeDeadlineMs = 10'000;

// Keeper.
inline constexpr size_t kStoredFdNameBytes = 320;
inline constexpr size_t kStoredFds = 131'072;
inline constexpr size_t kUnregisteredExits = 256;
inline constexpr size_t kAgentMemoryMinBytes = 16u << 20;  // memory.min of keeper and agent

}  // namespace berth::limits
