#include "agent/spawner/net_devices.h"

#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "agent/sys/fd.h"
#include "agent/sys/log.h"

namespace berth::spawner {

namespace {

constexpr size_t kReplyBytes = 32u << 10;
constexpr unsigned kNamesTried = 4096;

// One rtnetlink request under construction.
class Message {
 public:
    Message(uint16_t type, uint16_t flags) {
        nlmsghdr header{};
        header.nlmsg_type = type;
        header.nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags);
        append(&header, sizeof(header));
    }
    void append(const void* data, size_t size) {
        bytes_.append(static_cast<const char*>(data), size);
        bytes_.append(NLMSG_ALIGN(bytes_.size()) - bytes_.size(), '\0');
    }
    void attribute(uint16_t type, const void* data, size_t size) {
        rtattr header{};
        header.rta_type = type;
        header.rta_len = static_cast<uint16_t>(RTA_LENGTH(size));
        append(&header, sizeof(header));
        append(data, size);
    }
    std::string& finish() {
        auto length = static_cast<uint32_t>(bytes_.size());
        std::memcpy(bytes_.data(), &length, sizeof(length));
        return bytes_;
    }

 private:
    std::string bytes_;
};

// A route socket of the network namespace that the process is in when it is
// made.
class RouteSocket {
 public:
    RouteSocket() : fd_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)) {}
    bool valid() const { return fd_.valid(); }

    // Sends; waits for the acknowledgement: 0 or an errno.
    int request(Message& message) {
        std::string& bytes = message.finish();
        if (::send(fd_.get(), bytes.data(), bytes.size(), 0) < 0) return errno;
        int result = EIO;
        visit([&](const nlmsghdr& header, const char* body) {
            if (header.nlmsg_type != NLMSG_ERROR) return true;
            nlmsgerr answer{};
            std::memcpy(&answer, body, sizeof(answer));
            result = -answer.error;
            return false;
        });
        return result;
    }

    // Sends a dump; calls `each(header, body)` for every message of it.
    template <typename Each>
    int dump(Message& message, Each each) {
        std::string& bytes = message.finish();
        if (::send(fd_.get(), bytes.data(), bytes.size(), 0) < 0) return errno;
        int result = 0;
        visit([&](const nlmsghdr& header, const char* body) {
            if (header.nlmsg_type == NLMSG_DONE) return false;
            if (header.nlmsg_type == NLMSG_ERROR) {
                result = EIO;
                return false;
            }
            each(header, body);
            return true;
        });
        return result;
    }

 private:
    template <typename Visit>
    void visit(Visit one) {
        std::vector<char> buffer(kReplyBytes);
        while (true) {
            ssize_t size = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
            if (size < 0 && errno == EINTR) continue;
            if (size <= 0) return;
            for (size_t at = 0; at + sizeof(nlmsghdr) <= static_cast<size_t>(size);) {
                nlmsghdr header{};
                std::memcpy(&header, buffer.data() + at, sizeof(header));
                if (header.nlmsg_len < sizeof(header) || header.nlmsg_len > static_cast<size_t>(size) - at)
                    return;
                if (!one(header, buffer.data() + at + NLMSG_HDRLEN)) return;
                at += NLMSG_ALIGN(header.nlmsg_len);
            }
        }
    }

    sys::UniqueFd fd_;
};

int index_of(const char* name) {
    sys::UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    return ::ioctl(fd.get(), SIOCGIFINDEX, &request) == 0 ? request.ifr_ifindex : -1;
}

int set_up(const char* name) {
    sys::UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    if (::ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) return errno;
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    return ::ioctl(fd.get(), SIOCSIFFLAGS, &request) == 0 ? 0 : errno;
}

struct Address {
    ifaddrmsg header{};
    std::vector<std::pair<uint16_t, std::string>> attributes;
};

// The permanent addresses of global scope.
int addresses_of(RouteSocket& socket, int index, std::vector<Address>& out) {
    Message message(RTM_GETADDR, NLM_F_DUMP);
    ifaddrmsg every{};
    message.append(&every, sizeof(every));
    return socket.dump(message, [&](const nlmsghdr& header, const char* body) {
        Address address;
        if (header.nlmsg_type != RTM_NEWADDR || header.nlmsg_len < NLMSG_LENGTH(sizeof(ifaddrmsg))) return;
        std::memcpy(&address.header, body, sizeof(address.header));
        if (address.header.ifa_index != static_cast<unsigned>(index) ||
            address.header.ifa_scope != RT_SCOPE_UNIVERSE)
            return;
        uint32_t flags = address.header.ifa_flags;
        size_t end = header.nlmsg_len - NLMSG_HDRLEN;
        for (size_t at = NLMSG_ALIGN(sizeof(ifaddrmsg)); at + sizeof(rtattr) <= end;) {
            rtattr attribute{};
            std::memcpy(&attribute, body + at, sizeof(attribute));
            if (attribute.rta_len < sizeof(attribute) || attribute.rta_len > end - at) break;
            std::string value(body + at + RTA_LENGTH(0), attribute.rta_len - RTA_LENGTH(0));
            if (attribute.rta_type == IFA_FLAGS && value.size() == sizeof(flags))
                std::memcpy(&flags, value.data(), sizeof(flags));
            if (attribute.rta_type == IFA_ADDRESS || attribute.rta_type == IFA_LOCAL ||
                attribute.rta_type == IFA_BROADCAST)
                address.attributes.emplace_back(attribute.rta_type, std::move(value));
            at += RTA_ALIGN(attribute.rta_len);
        }
        if ((flags & IFA_F_PERMANENT) != 0) out.push_back(std::move(address));
    });
}

int add_address(RouteSocket& socket, int index, const Address& address) {
    Message message(RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE);
    ifaddrmsg header = address.header;
    header.ifa_index = static_cast<unsigned>(index);
    header.ifa_flags = 0;
    message.append(&header, sizeof(header));
    for (const auto& [type, value] : address.attributes) message.attribute(type, value.data(), value.size());
    return socket.request(message);
}

int move_link(RouteSocket& socket, int index, const char* new_name, int target) {
    Message message(RTM_NEWLINK, NLM_F_ACK);
    ifinfomsg header{};
    header.ifi_family = AF_UNSPEC;
    header.ifi_index = index;
    message.append(&header, sizeof(header));
    message.attribute(IFLA_NET_NS_FD, &target, sizeof(target));
    message.attribute(IFLA_IFNAME, new_name, std::strlen(new_name) + 1);
    return socket.request(message);
}

// A name that is free in the network namespace at hand: the kernel would move first, and fail to rename then.
// `pattern` with the lowest number in place of its %d that is free in the
// network namespace at hand.
bool choose_name(const char* pattern, char (&name)[IFNAMSIZ]) {
    const char* percent = std::strchr(pattern, '%');
    if (percent == nullptr) {
        std::snprintf(name, sizeof(name), "%s", pattern);
        return index_of(name) < 0;
    }
    for (unsigned number = 0; number < kNamesTried; ++number) {
        int size = std::snprintf(name, sizeof(name), "%.*s%u%s", static_cast<int>(percent - pattern), pattern,
                                 number, percent + 2);
        if (size >= IFNAMSIZ) return false;
        if (index_of(name) < 0) return true;
    }
    return false;
}

// Enters a network namespace for its life; being unable to come back would hand
// it to every later child.
class Visit {
 public:
    Visit(int target, int home) : home_(home), entered_(::setns(target, CLONE_NEWNET) == 0) {}
    ~Visit() {
        if (!entered_ || ::setns(home_, CLONE_NEWNET) == 0) return;
        sys::log(sys::LogLevel::kError, "spawner.stuck", "cannot leave a network namespace: errno %d", errno);
        ::_exit(1);
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    bool entered() const { return entered_; }

 private:
    int home_;
    bool entered_;
};

// What a failed step is called, for SpawnReply.
Outcome device_failed(int err, const char* name, const char* what) {
    static char step[56];
    std::snprintf(step, sizeof(step), "linux.netDevices %s: %s", name, what);
    return Outcome{err, step};
}

Outcome settle_inside(int target, int home, const char* name, const char* new_name,
                      const std::vector<Address>& addresses) {
    Visit inside(target, home);
    if (!inside.entered()) return device_failed(errno, name, "setns");
    RouteSocket socket;
    int index = index_of(new_name);
    if (!socket.valid() || index < 0) return device_failed(ENODEV, name, "find moved");
    for (const Address& address : addresses)
        if (int err = add_address(socket, index, address); err != 0)
            return device_failed(err, name, "add address");
    if (int err = set_up(new_name); err != 0) return device_failed(err, name, "set up");
    return {};
}

Outcome move_one(const char* name, const char* pattern, int target, int home) {
    RouteSocket socket;
    if (!socket.valid()) return device_failed(errno, name, "netlink");
    int index = index_of(name);
    if (index < 0) return device_failed(ENODEV, name, "find");
    std::vector<Address> addresses;
    if (int err = addresses_of(socket, index, addresses); err != 0)
        return device_failed(err, name, "read addresses");
    char new_name[IFNAMSIZ];
    {
        Visit inside(target, home);
        if (!inside.entered()) return device_failed(errno, name, "setns");
        if (!choose_name(pattern, new_name)) return device_failed(EEXIST, name, "move");
    }
    if (int err = move_link(socket, index, new_name, target); err != 0)
        return device_failed(err, name, "move");
    Outcome outcome = settle_inside(target, home, name, new_name, addresses);
    if (!outcome.failed()) return outcome;
    Visit inside(target, home);
    RouteSocket back;
    int moved = index_of(new_name);
    if (inside.entered() && back.valid() && moved >= 0) (void)move_link(back, moved, name, home);
    return outcome;
}

}  // namespace

Outcome move_net_devices(const std::byte* plan, std::span<const core::PlanNetDevice> devices, int target) {
    sys::UniqueFd home(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    if (!home.valid()) return Outcome{errno, "open network namespace"};
    const char* text = reinterpret_cast<const char*>(plan);
    for (const core::PlanNetDevice& device : devices) {
        Outcome outcome =
            move_one(text + device.name.offset, text + device.new_name.offset, target, home.get());
        if (outcome.failed()) return outcome;
    }
    return {};
}

}  // namespace berth::spawner
