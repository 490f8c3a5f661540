#pragma once
// How ops over rows of logits are cut into thread blocks, and the data in the workspace. Plain numbers: no
// CUDA here.
//
// A row is cut into chunks of a fixed size, a block each: one row of a large vocabulary is enough to fill the
// chip, and sums within a chunk do not depend on the batch. A few numbers of each chunk are kept, and the
// largest value of every group of kLogitGroup neighbours; from these numbers a later kernel knows a bound
// that all candidates of top-k or top-p reach. Candidates go to a list; where the list is too short, the row
// is read again.

#include <algorithm>
#include <cstdint>

#include "kernels/ops.h"

namespace somnus {

inline constexpr int kChunkThreads = 256;
inline constexpr int64_t kChunkValues = 2048;  // 8 a thread: two loads of 16 bytes
inline constexpr int64_t kLogitGroup = 128;    // values that a warp loads at once
inline constexpr int64_t kGroupsPerChunk = kChunkValues / kLogitGroup;
inline constexpr int64_t kMaxCandidates = 8192;  // of a row
// Sums of 2^-40 units in 64 bits must hold a row of ones.
inline constexpr int64_t kMaxVocab = int64_t{1} << 22;

struct SamplingPlan {
  int64_t chunks = 0;  // of a row
  int64_t groups = 0;
  int64_t candidates = 0;  // room in a row's list
  // Offsets in the workspace, aligned to 16 bytes.
  int64_t best = 0;       // uint64 [rows, chunks]
  int64_t total = 0;      // uint64 [rows]
  int64_t list = 0;       // ScoredToken [rows, candidates]
  int64_t sum = 0;        // f32 [rows, chunks]
  int64_t larger = 0;     // int32 [rows, chunks]
  int64_t group_max = 0;  // f32 [rows, groups]
  int64_t count = 0;      // int32 [rows]: length of the list; larger than `candidates` when the list did not
                          // fit
  int64_t bound = 0;      // f32 [rows]
  int64_t bytes = 0;
};

inline SamplingPlan PlanSampling(int64_t rows, int64_t vocab) {
  SamplingPlan plan;
  plan.chunks = (vocab + kChunkValues - 1) / kChunkValues;
  plan.groups = plan.chunks * kGroupsPerChunk;
  plan.candidates = std::min(vocab, kMaxCandidates);
  const auto take = [&plan, rows](int64_t bytes_of_row) {
    const int64_t offset = plan.bytes;
    plan.bytes += (rows * bytes_of_row + 15) / 16 * 16;
    return offset;
  };
  plan.best = take(plan.chunks * 8);
  plan.total = take(8);
  plan.list = take(plan.candidates * static_cast<int64_t>(sizeof(ScoredToken)));
  plan.sum = take(plan.chunks * 4);
  plan.larger = take(plan.chunks * 4);
  plan.group_max = take(plan.groups * 4);
  plan.count = take(4);
  plan.bound = take(4);
  return plan;
}

}  // namespace somnus
