#pragma once
// Which way a collective of a device group goes. Pure functions of values that are the same on all ranks,
// because every rank must choose the same way.

#include <cstdint>

#include "kernels/peer_collectives.h"

namespace somnus {

// The ways that a group has: peers, nccl or both.
struct CollectiveWays {
  int world_size = 1;
  bool peers = false;  // kernels of our own over peer memory
  bool nccl = false;
  PeerLink link = PeerLink::kNvLink;  // the slowest between the ranks' devices
};

// Bytes of a rank up to which our all-reduce is faster than NCCL's: ours saves some 10 us of latency (an
// estimate), and moves the more bytes the more ranks there are. The numbers for NVLink are where published
// measurements on H100s cross. The numbers for PCIe are estimates: PCIe's links are slower and shared, and
// NCCL's rings make better use of such links.
constexpr int64_t PeerReduceLimit(int world_size, PeerLink link) {
  if (link == PeerLink::kPcie) return world_size <= 2 ? 256 << 10 : world_size <= 4 ? 128 << 10 : 64 << 10;
  return world_size <= 2 ? 1 << 20 : world_size <= 4 ? 768 << 10 : 512 << 10;
}
// The same for a gather, whose every rank receives world_size times as much.
constexpr int64_t PeerGatherLimit(int world_size, PeerLink link) {
  return (link == PeerLink::kPcie ? 256 << 10 : 1 << 20) / world_size;
}

constexpr bool ReducesByPeers(const CollectiveWays& ways, int64_t bytes) {
  return ways.peers && (!ways.nccl || bytes <= PeerReduceLimit(ways.world_size, ways.link));
}
constexpr bool GathersByPeers(const CollectiveWays& ways, int64_t bytes) {
  return ways.peers && (!ways.nccl || bytes <= PeerGatherLimit(ways.world_size, ways.link));
}

}  // namespace somnus
