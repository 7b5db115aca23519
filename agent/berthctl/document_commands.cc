// spec, features: what berthctl writes for others to read.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "agent/berthctl/command.h"
#include "agent/berthctl/documents.h"
#include "agent/core/text.h"
#include "agent/sys/fd.h"

namespace berth::ctl {

namespace {

using Kind = Flag::Kind;

core::Result<int> spec(Context& context) {
    std::string bundle(context.arguments.value("bundle", "."));
    std::string path = bundle + "/config.json";
    sys::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file.valid() && errno == EEXIST)
        return core::make_error(core::Code::kAlreadyExists, path + " exists. Remove it first");
    if (!file.valid()) return core::errno_error(errno, path);
    std::string text = spec_json(context.arguments.has("rootless"), ::geteuid(), ::getegid());
    if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
        return core::errno_error(errno, path);
    return 0;
}

core::Result<int> features(Context& context) {
    BERTH_ASSIGN(v1::InfoResponse info,
                 context.session.call<v1::InfoResponse>(client::kGuestService, "Info", v1::InfoRequest()));
    print(features_json(info));
    return 0;
}

constexpr Flag kSpecFlags[] = {
    {"bundle", 'b', Kind::kValue, "DIR  where to write it (default: the current directory)"},
    {"rootless", 0, Kind::kSwitch, "with a user namespace in which the caller is root"},
};

constexpr Command kCommands[] = {
    {"spec", "[FLAGS]", "write a config.json that runs a shell", kSpecFlags, 0, 0, Arguments::Order::kMixed,
     1, spec},
    {"features",
     "",
     "what this guest can do, as the OCI's features document",
     {},
     0,
     0,
     Arguments::Order::kMixed,
     1,
     features},
};

}  // namespace

std::span<const Command> document_commands() {
    return kCommands;
}

}  // namespace berth::ctl
