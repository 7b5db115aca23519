// Walks a table of resource requests (tests/guest/data/resources.rows says how it reads) against the agent of
// this guest, over its local socket: resource_rows create|update FILE [NAME...]
//
// Each row gets a container of its own, which is never started. What counts is what the kernel's files say:
// after a success exactly the files that the row names differ from those of a container without the request;
// after a refusal nothing in the whole cgroup tree, in the mounts or in the descriptors of the agent's
// processes does. Prints "ok", "skipped" or "not ok" for each row; exit status 1 when one was not ok.
#include <sys/stat.h>

#include <map>

#include "agent_driver.h"

namespace {

using namespace driver;
using core::trim;

enum class Mode { kCreate, kUpdate };

// What a row promises of one mode.
struct Promise {
    std::map<std::string, std::string> files;
    std::string error;  // "CODE text"; a text that ends with "..." is a beginning
    bool skip = false;
};

struct Row {
    std::string name;
    size_t line = 0;
    std::string given = "{}";
    std::string ask;
    std::string devices;  // linux.devices
    std::string needs;
    std::string lacks;
    bool two_levels = false;
    bool has_given = false;
    Promise both;
    Promise only[2];
};

using Settings = std::map<std::string, std::string>;

std::string replaced(std::string text, std::string_view from, std::string_view to) {
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
        text.replace(at, from.size(), to);
    return text;
}

// ---- the table ----

void add_promise(Row& row, Promise& promise, std::string_view key, std::string_view rest) {
    if (key == "file") {
        size_t equals = rest.find('=');
        if (equals == std::string_view::npos) give_up("line of " + row.name + ": file NAME=VALUE");
        promise.files[std::string(rest.substr(0, equals))] = rest.substr(equals + 1);
    } else if (key == "error") {
        promise.error = rest;
    } else if (key == "skip") {
        promise.skip = true;
    } else {
        give_up("row " + row.name + ": no key " + std::string(key));
    }
}

void add_line(Row& row, std::string_view key, std::string_view rest) {
    if (key == "given") {
        row.given = rest;
        row.has_given = true;
    } else if (key == "ask") {
        row.ask = rest;
    } else if (key == "devices") {
        row.devices = rest;
    } else if (key == "needs") {
        row.needs = rest;
    } else if (key == "lacks") {
        row.lacks = rest;
    } else if (key == "levels") {
        row.two_levels = rest == "two";
    } else if (key == "create" || key == "update") {
        size_t blank = std::min(rest.find(' '), rest.size());
        add_promise(row, row.only[key == "update"], rest.substr(0, blank), trim(rest.substr(blank)));
    } else {
        add_promise(row, row.both, key, rest);
    }
}

// A disk of the guest, for rows about block I/O: a virtio disk, else whatever else has a request queue.
std::string find_disk() {
    std::string found;
    for (const std::string& name : list("/sys/block")) {
        bool virtio = name.rfind("vd", 0) == 0;
        if (virtio || name.rfind("zram", 0) == 0 || (found.empty() && name.rfind("loop", 0) == 0))
            found = trim(read_file("/sys/block/" + name + "/dev"));
        if (virtio) break;
    }
    return found;
}

// What the kernel makes of cpu.weight when cpu.idle is 1: tried on a cgroup of our own.
std::string weight_of_idle() {
    const std::string cgroup = "/sys/fs/cgroup/berth/idle-of-the-test";
    mkdir(cgroup.c_str(), 0755);
    int idle = open((cgroup + "/cpu.idle").c_str(), O_WRONLY | O_CLOEXEC);
    bool set = idle >= 0 && write(idle, "1", 1) == 1;
    close(idle);
    std::string weight(set ? trim(read_file(cgroup + "/cpu.weight")) : std::string_view("(no cpu.idle)"));
    rmdir(cgroup.c_str());
    return weight;
}

std::vector<Row> read_rows(const char* path) {
    std::string disk = find_disk();
    size_t colon = std::min(disk.find(':'), disk.size());
    std::string text = read_file(path);
    if (text == "(unreadable)") give_up(std::string(path) + ": unreadable");
    text = replaced(text, "$IDLE", weight_of_idle());
    text = replaced(text, "$DISK", disk);
    text = replaced(text, "$MAJOR", disk.substr(0, colon));
    text = replaced(text, "$MINOR", disk.substr(std::min(colon + 1, disk.size())));
    std::vector<Row> rows;
    size_t number = 0;
    for (std::string_view line : core::split_lines(text)) {
        ++number;
        line = trim(line);
        if (line.empty() || line[0] == '#') continue;
        size_t blank = std::min(line.find(' '), line.size());
        std::string_view key = line.substr(0, blank);
        std::string_view rest = trim(line.substr(blank));
        if (key == "row") {
            for (const Row& other : rows) {
                if (other.name == rest) give_up("two rows are called " + other.name);
            }
            rows.emplace_back();
            rows.back().name = rest;
            rows.back().line = number;
        } else if (rows.empty()) {
            give_up("the first line must begin a row");
        } else {
            add_line(rows.back(), key, rest);
        }
    }
    return rows;
}

// ---- what the kernel says ----

// Files that tell what is going on, not what was set.
bool is_setting(const std::string& name) {
    static constexpr std::string_view kParts[] = {".stat",        ".current",   ".events",    ".pressure",
                                                  ".peak",        ".numa_stat", ".effective", ".threads",
                                                  "cgroup.procs", ".nice",      ".reclaim"};
    for (std::string_view part : kParts) {
        if (name.find(part) != std::string::npos) return false;
    }
    return name.find('.') != std::string::npos;
}

Settings settings_of(const std::string& directory) {
    Settings settings;
    for (const std::string& name : list(directory)) {
        if (!is_setting(name)) continue;
        std::string text = read_file(directory + "/" + name);
        if (text != "(unreadable)") settings[name] = replaced(std::string(trim(text)), "\n", " | ");
    }
    return settings;
}

void add_tree(const std::string& directory, Settings& into) {
    into[directory] = "directory";
    for (auto& [name, value] : settings_of(directory)) into[directory + "/" + name] = value;
    for (const std::string& name : list(directory)) {
        struct stat found {};
        std::string path = directory + "/" + name;
        if (lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) add_tree(path, into);
    }
}

std::vector<std::string> agents_pids() {
    std::vector<std::string> pids;
    for (const char* cgroup : {"berth.agent", "berth.spawner"}) {
        std::string procs = read_file(std::string("/sys/fs/cgroup/") + cgroup + "/cgroup.procs");
        for (std::string_view pid : core::split_lines(procs)) {
            if (!trim(pid).empty()) pids.emplace_back(trim(pid));
        }
    }
    return pids;
}

// How many of a process's descriptors are BPF programs, and how many are not. One state file may stay open,
// the one that was written last, as long as it is there.
std::pair<size_t, size_t> programs_and_others(const std::string& pid) {
    std::pair<size_t, size_t> counts;
    bool has_state_file = false;
    for (const std::string& fd : list("/proc/" + pid + "/fd")) {
        char target[128];
        ssize_t length = readlink(("/proc/" + pid + "/fd/" + fd).c_str(), target, sizeof target);
        std::string_view text(target, length > 0 ? static_cast<size_t>(length) : 0);
        bool is_state_file = text.rfind("/run/berth/state/", 0) == 0 && text.find(' ') == text.npos;
        if (is_state_file && !has_state_file) {
            has_state_file = true;
            continue;
        }
        ++(text == "anon_inode:bpf-prog" ? counts.first : counts.second);
    }
    return counts;
}

// The cgroup tree, the agent's state and its processes' mounts and descriptors. The device programs that the
// agent keeps are of creates that succeeded: what was refused must leave none, either.
enum class Programs { kCounted, kLeftOut };
Settings everything(Programs programs = Programs::kCounted) {
    Settings all;
    add_tree(kTree, all);
    for (const std::string& id : list("/run/berth/state")) all["state " + id] = "";
    for (const std::string& id : list("/run/berth/bundles")) all["bundle " + id] = "";
    for (const std::string& pid : agents_pids()) {
        auto [kept, others] = programs_and_others(pid);
        all["fds of " + pid] = std::to_string(others);
        if (programs == Programs::kCounted) all["device programs of " + pid] = std::to_string(kept);
        all["mounts of " + pid] = read_file("/proc/" + pid + "/mountinfo");
    }
    return all;
}

// "memory.max: 'max' instead of '4096'", ... of what differs; empty: equal.
std::string difference(const Settings& wanted, const Settings& seen) {
    std::string text;
    auto say = [&](const std::string& name, const std::string& is, const std::string& should) {
        text += (text.empty() ? "" : "; ") + name + ": '" + is + "' instead of '" + should + "'";
    };
    for (const auto& [name, value] : wanted) {
        auto found = seen.find(name);
        if (found == seen.end() || found->second != value)
            say(name, found == seen.end() ? "(none)" : found->second, value);
    }
    for (const auto& [name, value] : seen) {
        if (!wanted.contains(name)) say(name, value, "(none)");
    }
    return text;
}

// Descriptors are closed when the ring lets go of them, a moment after the answer.
std::string settled_difference(const Settings& before, Programs programs = Programs::kCounted) {
    std::string text;
    for (int tries = 0; tries < 200; ++tries) {
        text = difference(before, everything(programs));
        if (text.empty()) return text;
        usleep(10'000);
    }
    return text;
}

// ---- the agent ----

core::Status create_row(Session& session, const std::string& id, const std::string& resources,
                        const Row& row) {
    driver::Spec spec;
    spec.resources = resources;
    spec.devices = row.devices;
    if (row.two_levels) {
        spec.mounts =
            R"(,{"destination":"/sys/fs/cgroup","type":"cgroup","source":"cgroup","options":["rw"]})";
        spec.namespaces = R"(,{"type":"cgroup"})";
    }
    return driver::create(session, id, spec);
}

// ---- one row ----

struct Table {
    Session& session;
    Mode mode;
    Settings fresh[2];  // of a container without a request, with one and with two levels
    int failed = 0;
    int walked = 0;

    void say(const char* kind, const Row& row, const std::string& why) {
        printf("%s %s%s%s\n", kind, row.name.c_str(), why.empty() ? "" : ": ", why.c_str());
        if (std::string_view(kind) == "not ok") ++failed;
    }

    void walk(const Row& row);
    std::string check(const Row& row, const Promise& promise);
    std::string check_error(const std::string& verb, const Promise& promise, const core::Status& status);
    std::string check_files(const Row& row, const Promise& promise, const std::string& id, Settings wanted);
};

std::string Table::check_error(const std::string& verb, const Promise& promise, const core::Status& status) {
    if (status.ok()) return promise.error.empty() ? "" : "was not refused";
    std::string seen = std::string(core::code_name(status.error().code)) + " " + status.error().message;
    if (promise.error.empty()) return "was refused: " + seen;
    size_t blank = std::min(promise.error.find(' '), promise.error.size());
    std::string wanted = promise.error.substr(0, blank) + " " + verb +
                         " \"row\": " + promise.error.substr(std::min(blank + 1, promise.error.size()));
    if (wanted.size() > 3 && wanted.substr(wanted.size() - 3) == "...") {
        if (seen.substr(0, wanted.size() - 3) == wanted.substr(0, wanted.size() - 3)) return "";
    } else if (seen == wanted) {
        return "";
    }
    return "refused with '" + seen + "' instead of '" + wanted + "'";
}

std::string Table::check_files(const Row& row, const Promise& promise, const std::string& id,
                               Settings wanted) {
    for (const auto& [name, value] : promise.files) wanted[name] = value;
    std::string outer = std::string(kTree) + "/" + id;
    std::string text = difference(wanted, settings_of(outer));
    if (!row.two_levels || !text.empty()) return text;
    // The inner level shows the same limits.
    std::string inner;
    for (const std::string& name : list(outer)) {
        struct stat found {};
        if (lstat((outer + "/" + name).c_str(), &found) == 0 && S_ISDIR(found.st_mode))
            inner = outer + "/" + name;
    }
    if (inner.empty()) return "there is no second level";
    Settings below = settings_of(inner);
    for (const auto& [name, value] : promise.files) {
        if (below[name] != value)
            text += " inner " + name + ": '" + below[name] + "' instead of '" + value + "'";
    }
    return text;
}

std::string Table::check(const Row& row, const Promise& promise) {
    const std::string id = "row";
    if (mode == Mode::kCreate) {
        Programs programs = promise.error.empty() ? Programs::kLeftOut : Programs::kCounted;
        Settings before = everything(programs);
        core::Status made = create_row(session, id, row.ask, row);
        std::string text = check_error("create", promise, made);
        if (text.empty() && made.ok()) text = check_files(row, promise, id, fresh[row.two_levels]);
        if (made.ok()) remove(session, id);
        if (!text.empty()) return text;
        text = settled_difference(before, programs);
        return text.empty() ? "" : "left behind: " + text;
    }
    core::Status made = create_row(session, id, row.given, row);
    if (!made.ok()) return "the container is refused: " + made.error().message;
    Settings wanted = settings_of(std::string(kTree) + "/" + id);
    Settings before = everything();
    core::Status updated = update(session, id, row.ask);
    std::string text = check_error("update", promise, updated);
    if (text.empty() && updated.ok()) text = check_files(row, promise, id, wanted);
    if (text.empty() && !updated.ok()) {
        text = settled_difference(before);
        if (!text.empty()) text = "after the refusal: " + text;
    }
    remove(session, id);
    return text;
}

void Table::walk(const Row& row) {
    Promise promise = row.both;
    const Promise& only = row.only[mode == Mode::kUpdate];
    if (!only.error.empty()) promise = only;
    if (!only.files.empty()) {
        promise.error.clear();
        for (const auto& [name, value] : only.files) promise.files[name] = value;
    }
    if (only.skip || (mode == Mode::kCreate && row.has_given)) return;
    if (!row.needs.empty() && !fresh[0].contains(row.needs)) {
        bool uclamp = row.needs.rfind("cpu.uclamp", 0) == 0;
        return say("skipped", row, uclamp ? "this kernel has no uclamp" : "this guest has no " + row.needs);
    }
    if (!row.lacks.empty() && fresh[0].contains(row.lacks))
        return say("skipped", row, "this guest has " + row.lacks);
    ++walked;
    std::string text = check(row, promise);
    say(text.empty() ? "ok" : "not ok", row, text);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) give_up("usage: resource_rows create|update FILE [NAME...]");
    setvbuf(stdout, nullptr, _IOLBF, 0);
    std::string_view word = argv[1];
    if (word != "create" && word != "update") give_up("create or update");
    Session session = connect();
    Table table{session, word == "create" ? Mode::kCreate : Mode::kUpdate, {}};
    for (bool two : {false, true}) {
        Row plain;
        plain.two_levels = two;
        core::Status made = create_row(session, "fresh", "{}", plain);
        if (!made.ok()) give_up(made.error().message);
        table.fresh[two] = settings_of(std::string(kTree) + "/fresh");
        remove(session, "fresh");
    }
    for (const Row& row : read_rows(argv[2])) {
        bool wanted = argc == 3;
        for (int i = 3; i < argc; ++i) wanted |= row.name.find(argv[i]) != std::string::npos;
        if (wanted) table.walk(row);
    }
    printf("# %d rows walked, %d not ok\n", table.walked, table.failed);
    return table.failed == 0 && table.walked != 0 ? 0 : 1;
}
