#pragma once
// How long a block of the KV cache has held its contents. A value.

#include <vector>

#include "absl/time/time.h"

namespace somnus {

// From the moment when a sequence got the block, to compute the contents, until the block was given to
// another sequence.
struct BlockStay {
  absl::Duration lifetime;
  absl::Duration
      idle;  // since the last access, which is the beginning where no sequence has adopted the block
  // Between successive accesses: adoptions by sequences with the same prefix. Of the last accesses alone.
  std::vector<absl::Duration> reuse_gaps;
};

}  // namespace somnus
