#pragma once
// How collectives over peer memory are cut: one-shot or two-shot, blocks and threads. Plain numbers: no CUDA
// here. Every rank must make the same plan, so nothing of a rank's own device goes into the plan.

#include <cstdint>

#include "kernels/peer_collectives.h"

namespace somnus {

// Blocks beyond some thirty only contend for the links (vLLM found 36 by search). All blocks must run at
// once, since they wait for blocks of other ranks. A multiprocessor has registers for two, so that 18
// multiprocessors are enough; each further rank that shares the device within one process (or under MPS)
// needs 18 more. Other processes take turns on a device.
inline constexpr int kMaxPeerBlocks = 36;
inline constexpr int kMaxPeerThreads = 512;
inline constexpr int kPeerBlocksPerSm = 2;

struct PeerPlan {
  // False: every rank reads everything of all other ranks, (n - 1) messages over its links, one meeting.
  // True: every rank reads its n-th part of all other ranks, sums, and gathers the parts, 2 (n - 1) / n
  // messages and two meetings.
  bool two_shot = false;
  int blocks = 0;
  int threads = 0;  // a multiple of 32, at least 64
};

// The largest message of a rank, in bytes, for which one-shot is faster.
int64_t OneShotBytes(int world_size, PeerLink link);

// `bytes` of one rank, more than 0; two-shot beyond one_shot_bytes.
PeerPlan PlanPeerReduce(int64_t bytes, int world_size, int64_t one_shot_bytes);
PeerPlan PlanPeerGather(int64_t bytes);

// The sum fused with add and norm: each rank does all rows, so only as long as one-shot is best. blocks is 0
// when one-shot is not best. A block takes whole rows.
PeerPlan PlanPeerNorm(int64_t rows, int64_t row_bytes, int64_t one_shot_bytes);

}  // namespace somnus
