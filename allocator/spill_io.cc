#include "allocator/spill_io.h"

#include <utility>

namespace somnus {

std::unique_ptr<SpillIo> MakeSpillIo(int fd, int depth) {
  std::unique_ptr<SpillIo> io = MakeUringSpillIo(fd, depth);
  return io != nullptr ? std::move(io) : MakeThreadedSpillIo(fd, depth);
}

}  // namespace somnus
