#pragma once
// The host tier of one rank: host memory for the contents of KV cache blocks, in the layout of KvHostPool
// (kernels/ops.h), and the copies between it and the cache. The coordinator decides which block is where; all
// ranks use the same ids. Memory is taken in pieces: pinned memory of a GPU's host, counted in the host's
// account while it is made resident, or on a CPU memory of the driver, like the cache itself. A sleep takes
// memory for its blocks and no more.
//
// Steps swap blocks out and in, in the order of steps, and the host waits for nothing. Swaps take whole
// pieces, which stay for the next swaps until a sleep or a wake-up of the cache, or a new epoch, finds
// nothing there that is still wanted. On a GPU the pieces come from a reserve (host_piece_reserve.h) that is
// filled beside the steps, from the first step after a load or a wake-up until the cache sleeps: a step calls
// no driver for memory. On a CPU a step takes the pieces itself, since copying into new memory costs as much.
// Only the coordinator knows when a block that was swapped out is not wanted any more: such a transition
// names the blocks that are wanted, and until then a block counts as swapped, also when a step has brought
// the block back, since further steps may read it again.
//
// Blocks that are kept over a sleep follow the phases of the transition (proto/worker.proto): the blocks are
// copied in the Prepare of the sleep, and held once the sleep is committed, until a wake-up of the cache is
// committed, or until the blocks are given up: by a sleep of level 2, or because the coordinator does not
// know of them any more (Forget).
//
// Device, driver and runner are borrowed. For the runner thread alone.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "allocator/byte_meter.h"
#include "allocator/host_account.h"
#include "allocator/sleepable_allocator.h"
#include "allocator/vmm_driver.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "proto/worker.pb.h"
#include "worker/host_piece_reserve.h"
#include "worker/runner/model_runner.h"

namespace somnus {

struct KvHostTierOptions {
  int64_t block_bytes = 0;  // ModelRunner::kv_block_bytes
  int32_t num_blocks = 0;
  bool retains_memory = false;  // beyond the wake-up, so that the next sleep need not take it again
  int64_t piece_bytes = 32 << 20;
  int64_t ahead_bytes = 0;  // of a GPU: host memory that is ready before steps swap blocks out
  std::atomic<int64_t>* ready_bytes = nullptr;  // the bytes that are ready, for other threads; may be null
  ByteMeter* meter = nullptr;                   // of the bytes that are copied, piece by piece; may be null
};

class KvHostTier {
 public:
  KvHostTier(const KvHostTierOptions& options, Device* device, VmmDriver* driver, ModelRunner* runner);
  ~KvHostTier();
  KvHostTier(const KvHostTier&) = delete;

  // How many bytes the transition copies.
  int64_t CopyBytes(const v1::Transition& transition) const;
  // Copies the transition's kept blocks: to the host for a sleep, of which the cache must still be there, and
  // back for a wake-up, of which it must be mapped. No step may be under way. After an error the held blocks
  // have not changed. ResourceExhausted: the tier has fewer blocks, or the host lacks memory;
  // FailedPrecondition: the transition names other blocks than the held blocks.
  absl::Status Prepare(const v1::Transition& transition);
  // The prepared transition has happened. `with_cache`: the cache was among its tags.
  void Commit(int sleep_level, bool with_cache);
  // The prepared transition has not happened. Without a prepared transition Abort does nothing.
  void Abort();
  // Gives up the held and the prepared blocks: nobody will ask for them.
  void Forget();
  // As Forget, and gives up the blocks that steps have swapped out.
  void ForgetAll();

  // A step begins: the reserve is filled from now on, beside the steps.
  void BeginStep();
  // A step's swaps, before the rest of the step is queued. SwapOut: ResourceExhausted, without memory for all
  // of them, or Unavailable, while the reserve takes that memory; nothing was copied then. SwapIn:
  // FailedPrecondition, when no step has swapped that block out. `written`: device blocks that the step may
  // write. Written blocks that are swapped out are copied first, and the step waits for these copies; all
  // further blocks are copied beside the step, and the next step must be queued behind Device::AwaitSwaps.
  absl::Status SwapOut(absl::Span<const BlockSwap> swaps, const absl::flat_hash_set<int32_t>& written);
  absl::Status SwapIn(absl::Span<const BlockSwap> swaps);

  // Bytes of the blocks that are held.
  int64_t held_bytes() const { return static_cast<int64_t>(held_.size()) * options_.block_bytes; }
  // Host memory that the tier has now, without the pieces that are ready for steps to come.
  int64_t host_bytes() const;
  // 1 + the highest device block of them; 0 where there is none.
  int32_t end_of_held() const;
  // That the last Prepare took.
  double copy_seconds() const { return copy_seconds_; }

 private:
  // Memory of the first blocks of piece_blocks_.
  struct Piece {
    void* data = nullptr;
    int64_t num_blocks = 0;
    bool of_reserve = false;
  };
  using Needs = std::map<int64_t, int64_t>;  // blocks, by the number of the piece

  absl::StatusOr<std::vector<BlockSwap>> Check(const v1::Transition& transition) const;
  absl::Status CheckSwapped(const v1::Transition& transition) const;
  // Keeps, of the blocks that steps have swapped out, only the blocks that the prepared transition names.
  void KeepWanted();
  absl::Status CheckSwap(const BlockSwap& swap) const;
  int64_t NumPieces(int64_t num_blocks) const { return (num_blocks + piece_blocks_ - 1) / piece_blocks_; }
  absl::StatusOr<Piece> TakePiece(int64_t num_blocks);
  // The memory that these blocks need: their places in their pieces, or the whole pieces.
  Needs NeedsOf(absl::Span<const BlockSwap> swaps, bool whole_pieces) const;
  // For a sleep, and for a step where there is no reserve.
  absl::Status TakeMemory(const Needs& needs);
  // For a step where there is one.
  absl::Status TakeFromReserve(const Needs& needs);
  static absl::Status Shortage(const absl::Status& status, int64_t needed, int64_t untaken);
  // Of pieces where no block is held or swapped.
  void ReleaseMemory();
  void Release(const Piece& piece);
  // The host needs its memory more than steps to come: the cache goes to sleep.
  void StopReserve();
  void FreeReleased();
  // Queues the copies. `of_transition`: waits for them, and counts them.
  absl::Status Copy(SwapDirection direction, absl::Span<const BlockSwap> swaps, bool of_transition);

  const KvHostTierOptions options_;
  const int64_t piece_blocks_;
  Device* const device_;
  ModelRunner* const runner_;
  const std::unique_ptr<SleepableAllocator> memory_;  // of a device whose memory is the host's
  const std::shared_ptr<HostMemoryAccount> account_;  // of another one
  const std::unique_ptr<HostPieceReserve> reserve_;   // likewise
  std::map<int64_t, Piece> pieces_;                   // by number
  std::vector<void*> released_;                       // that the driver has not freed yet: tried again
  std::vector<BlockSwap> prepared_;                   // by a sleep that has not ended
  std::vector<BlockSwap> held_;
  std::vector<int32_t> wanted_;  // host blocks, as the transition that was prepared last names them
  std::vector<bool> swapped_;    // by host block: a step has swapped a block out to it
  double copy_seconds_ = 0;
};

}  // namespace somnus
