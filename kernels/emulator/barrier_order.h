#pragma once
// The order that barriers give to the memory accesses of a block's threads, as counts. An access remembers
// the numbers of barriers that its block and its warp had passed. A later access by a different thread is
// ordered behind the first access when the number has grown. __syncthreads orders all threads of a block,
// SyncWarp the lanes of a warp. Shuffles, votes, ldmatrix and mma order no memory, as CUDA says. Used by a
// single host thread at a time.

#include <cstdint>
#include <vector>

namespace somnus::cuda_emulated::emulator {

class BarrierOrder {
 public:
  // A place in the order: the barriers that the thread's block and warp had passed.
  struct Moment {
    uint32_t block = 0;
    uint32_t warp = 0;  // barriers of the block count here, too
  };
  struct Answer {
    bool ordered = false;
    int only_site = -1;  // ordered by barriers of this site alone (BarrierSite); -1: by several
  };

  explicit BarrierOrder(int warps) : warps_(static_cast<size_t>(warps)) {}

  void PassBlockBarrier(int site) {
    block_.Pass(site);
    for (Line& warp : warps_) warp.Pass(site);
  }
  void PassWarpBarrier(int warp, int site) { warps_[static_cast<size_t>(warp)].Pass(site); }

  Moment Now(int warp) const { return {block_.passed, warps_[static_cast<size_t>(warp)].passed}; }
  // Whether an access at `then` by a thread of `its_warp` is ordered before a present access by a different
  // thread, of `warp`.
  Answer OrderedSince(const Moment& then, int its_warp, int warp) const {
    if (its_warp == warp) return warps_[static_cast<size_t>(warp)].Since(then.warp);
    return block_.Since(then.block);
  }

 private:
  // A sequence of barriers.
  struct Line {
    void Pass(int site) {
      if (site != last_site) run_begin = passed;
      last_site = site;
      ++passed;
    }
    Answer Since(uint32_t then) const {
      if (then == passed) return {};
      return {true, then >= run_begin ? last_site : -1};
    }

    uint32_t passed = 0;
    int last_site = -1;
    uint32_t run_begin = 0;  // since this many were passed, all were of last_site
  };

  Line block_;
  std::vector<Line> warps_;
};

}  // namespace somnus::cuda_emulated::emulator
