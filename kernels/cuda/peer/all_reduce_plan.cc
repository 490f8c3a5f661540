#include "kernels/cuda/peer/all_reduce_plan.h"

#include <algorithm>

namespace somnus {
namespace {

constexpr int64_t kVectorBytes = 16;
constexpr int kMinThreads = 64;

PeerPlan Spread(int64_t vectors, bool two_shot) {
  PeerPlan plan;
  plan.two_shot = two_shot;
  const int64_t threads = std::clamp<int64_t>((vectors + 31) / 32 * 32, kMinThreads, kMaxPeerThreads);
  plan.threads = static_cast<int>(threads);
  plan.blocks = static_cast<int>(std::clamp<int64_t>((vectors + threads - 1) / threads, 1, kMaxPeerBlocks));
  return plan;
}

}  // namespace

// Up to here the second meeting costs more than the saved bytes. Two ranks read the same number of bytes
// either way. NVLink: vLLM's thresholds for fully connected H100s. PCIe: estimates, from 4 us for a meeting
// and 25 GB/s for a device's link.
int64_t OneShotBytes(int world_size, PeerLink link) {
  if (world_size == 2) return INT64_MAX;
  if (link == PeerLink::kPcie) return world_size <= 4 ? 64 << 10 : 16 << 10;
  return world_size <= 4 ? 512 << 10 : 256 << 10;
}

PeerPlan PlanPeerReduce(int64_t bytes, int world_size, int64_t one_shot_bytes) {
  const bool two_shot = bytes > one_shot_bytes;
  const int64_t vectors = (bytes + kVectorBytes - 1) / kVectorBytes;
  return Spread(two_shot ? (vectors + world_size - 1) / world_size : vectors, two_shot);
}

PeerPlan PlanPeerGather(int64_t bytes) { return Spread((bytes + kVectorBytes - 1) / kVectorBytes, false); }

PeerPlan PlanPeerNorm(int64_t rows, int64_t row_bytes, int64_t one_shot_bytes) {
  // Every rank does the whole norm: beyond this that costs more than another launch.
  constexpr int64_t kMostBytes = 1 << 20;
  if (rows * row_bytes > std::min(one_shot_bytes, kMostBytes)) return {};
  PeerPlan plan = Spread((row_bytes + kVectorBytes / 2 - 1) / (kVectorBytes / 2), false);
  plan.blocks = static_cast<int>(std::min<int64_t>(rows, kMaxPeerBlocks));
  return plan;
}

}  // namespace somnus
