// hold_memory BYTES: touches that much memory, with bytes that do not compress, says "held" and stays.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char** argv) {
    size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    uint64_t* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < bytes / sizeof *memory; ++i) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        memory[i] = state;
    }
    puts("held");
    fflush(stdout);
    for (;;) pause();
}
