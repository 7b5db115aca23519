// Launch plans from a hostile agent: a plan that passes the check can be walked blindly. The first byte is
// the number of descriptors, the rest the plan; its size and that number are put right in a second try, so
// that the fuzzer gets past the header.
#include <cstdint>
#include <span>
#include <vector>

#include "agent/core/launch_plan.h"
#include "tests/support/core/plan_walk.h"

using namespace berth;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 1) return 0;
    size_t fd_count = data[0];
    const auto* bytes = reinterpret_cast<const std::byte*>(data);
    std::vector<std::byte> blob(bytes + 1, bytes + size);
    if (core::validate_launch_plan(blob, fd_count)) test::walk_plan(blob);
    if (blob.size() < sizeof(core::PlanHeader)) return 0;
    auto* header = reinterpret_cast<core::PlanHeader*>(blob.data());
    header->magic = core::kPlanMagic;
    header->total_bytes = static_cast<uint32_t>(blob.size());
    header->fd_count = static_cast<uint16_t>(fd_count);
    if (core::validate_launch_plan(blob, fd_count)) test::walk_plan(blob);
    return 0;
}
