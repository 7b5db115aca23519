// Feeds files to a fuzz function without a fuzzer: each file of a corpus as it is, cut short at every length
// (long ones at some), and with each of its first bytes changed. Crashes and sanitizers are what it finds.
//   replay_NAME FILE-OR-FOLDER...
#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kCutsPerFile = 256;
constexpr size_t kChangedBytesPerFile = 256;

struct Totals {
    size_t files = 0;
    size_t inputs = 0;
};

// A copy of exactly `size` bytes on the heap, so that a sanitizer sees a read past its end.
void feed(const std::vector<uint8_t>& bytes, size_t size, Totals& totals) {
    std::vector<uint8_t> exact(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
    ++totals.inputs;
}

bool replay_file(const std::string& path, Totals& totals) {
    FILE* file = fopen(path.c_str(), "rb");
    if (file == nullptr) {
        fprintf(stderr, "%s: cannot be opened\n", path.c_str());
        return false;
    }
    std::vector<uint8_t> bytes;
    uint8_t block[4096];
    for (size_t got; (got = fread(block, 1, sizeof block, file)) > 0;) {
        bytes.insert(bytes.end(), block, block + got);
    }
    fclose(file);
    ++totals.files;
    feed(bytes, bytes.size(), totals);
    size_t step = std::max<size_t>(1, bytes.size() / kCutsPerFile);
    for (size_t size = 0; size < bytes.size(); size += step) feed(bytes, size, totals);
    for (size_t i = 0; i < std::min(bytes.size(), kChangedBytesPerFile); ++i) {
        uint8_t kept = bytes[i];
        for (uint8_t change : {0x01, 0x80, 0xff}) {
            bytes[i] = kept ^ change;
            feed(bytes, bytes.size(), totals);
        }
        bytes[i] = kept;
    }
    return true;
}

bool replay(const std::string& path, Totals& totals) {
    struct stat info;
    if (stat(path.c_str(), &info) != 0) {
        fprintf(stderr, "%s: not there\n", path.c_str());
        return false;
    }
    if (!S_ISDIR(info.st_mode)) return replay_file(path, totals);
    DIR* folder = opendir(path.c_str());
    if (folder == nullptr) return false;
    std::vector<std::string> names;
    while (const dirent* entry = readdir(folder)) {
        if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    }
    closedir(folder);
    std::sort(names.begin(), names.end());
    bool good = true;
    for (const std::string& name : names) good = replay(path + "/" + name, totals) && good;
    return good;
}

}  // namespace

int main(int argc, char** argv) {
    Totals totals;
    bool good = argc > 1;
    for (int i = 1; i < argc; ++i) good = replay(argv[i], totals) && good;
    printf("%zu files, %zu inputs\n", totals.files, totals.inputs);
    if (totals.files == 0) fprintf(stderr, "no corpus\n");
    return good && totals.files > 0 ? 0 : 1;
}
