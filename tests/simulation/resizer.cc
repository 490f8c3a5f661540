#include "tests/simulation/resizer.h"

#include "absl/strings/str_cat.h"

namespace somnus::simulation {
namespace {

constexpr int kMaxRounds = 4;

}  // namespace

void Resizer::Work(absl::Duration span) {
  for (int64_t i = random_.Between(1, kMaxRounds); i > 0; --i) {
    world_.Sleep(random_.Between(absl::ZeroDuration(), span));
    const int32_t max_blocks = engine_.Stats().max_blocks;
    // The smallest size is asked for often: only used blocks are in the way.
    Resize(random_.Chance(0.4) ? 0 : static_cast<int32_t>(random_.Between(0, max_blocks)));
    if (random_.Chance(0.3)) Resize(max_blocks);
  }
}

void Resizer::Resize(int32_t blocks) {
  ++num_resizes_;
  is_calling_ = true;
  const absl::StatusOr<int32_t> mapped = engine_.ResizeKvCache(blocks);
  is_calling_ = false;
  note_(absl::StrCat("Resize to ", blocks, " blocks"), mapped.status());
  if (mapped.ok() && (*mapped < blocks || *mapped < engine_.Stats().longest_blocks))
    world_.Violate(absl::StrCat("a cache of ", blocks, " blocks was asked for, and has ", *mapped));
}

}  // namespace somnus::simulation
