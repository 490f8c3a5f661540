#pragma once
// How often pinned prefixes have lost blocks, by cause. Values.

#include <cstdint>

namespace somnus {

struct PinReleases {
  int64_t no_blocks = 0;  // a sequence could not go on without the blocks
  int64_t forgotten = 0;  // a reset, a sleep, new weights, a loss of the workers, or bad contents
  int64_t shrunk = 0;     // the cache has become smaller

  void Add(const PinReleases& other) {
    no_blocks += other.no_blocks;
    forgotten += other.forgotten;
    shrunk += other.shrunk;
  }
};

}  // namespace somnus
