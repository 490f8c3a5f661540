#include "allocator/spill_io.h"

namespace somnus {

std::unique_ptr<SpillIo> MakeUringSpillIo(int, int) { return nullptr; }

}  // namespace somnus
