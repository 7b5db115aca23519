#pragma once

// For a local buffer that is written before it is read: without this the build zeroes each one
// (-ftrivial-auto-var-init=zero), pages of them in what runs most often.
#define BERTH_UNINITIALIZED __attribute__((uninitialized))
