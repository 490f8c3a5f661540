#pragma once
// Which way a collective of a device group goes. Plain numbers; every rank must choose alike, so nothing of a
// rank's own goes in.

#include <cstdint>

namespace somnus {

// What a group has; at least one of the two.
struct CollectiveWays {
  int world_size = 1;
  bool peers = false;  // kernels of our own over peer memory
  bool nccl = false;
};

// Bytes of one rank up to which our all-reduce is faster than NCCL's: it saves some 10 us of latency and
// moves the more bytes the more ranks there are. Published crossings on H100s with NVLink; to be measured
// again where the links are others.
constexpr int64_t PeerReduceLimit(int world_size) {
  return world_size <= 2 ? 1 << 20 : world_size <= 4 ? 768 << 10 : 512 << 10;
}
// The same for a gather, whose every rank receives world_size times as much.
constexpr int64_t PeerGatherLimit(int world_size) { return (1 << 20) / world_size; }

constexpr bool ReducesByPeers(const CollectiveWays& ways, int64_t bytes) {
  return ways.peers && (!ways.nccl || bytes <= PeerReduceLimit(ways.world_size));
}
constexpr bool GathersByPeers(const CollectiveWays& ways, int64_t bytes) {
  return ways.peers && (!ways.nccl || bytes <= PeerGatherLimit(ways.world_size));
}

}  // namespace somnus
