#pragma once
// The copies of KV blocks that a step asks for, cut into calls of the kernel.

#include <cstdint>
#include <vector>

#include "proto/worker.pb.h"

namespace somnus {

// A call: block src[i] is copied to block dst[i], in any order or all at once.
struct BlockCopyCall {
  std::vector<int32_t> src, dst;
};

constexpr size_t kMaxBlockCopiesOfCall = 4096;

// Calls that, in turn, have the effect of the copies in their order: a copy that touches a block which the
// call writes, or that writes a block which the call reads, begins the next call. Copies of a block onto the
// same block are left out. Takes time in proportion to the number of copies.
std::vector<BlockCopyCall> PlanBlockCopies(const google::protobuf::RepeatedPtrField<v1::BlockCopy>& copies);

}  // namespace somnus
