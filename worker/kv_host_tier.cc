#include "worker/kv_host_tier.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/memory_shortage.h"
#include "base/memory_tags.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "base/status_message.h"

namespace somnus {
namespace {

constexpr char kPieceTag[] = "kv_host";

bool SameBlocks(absl::Span<const BlockSwap> a, absl::Span<const BlockSwap> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const BlockSwap& one, const BlockSwap& other) {
    return one.device_block == other.device_block && one.host_block == other.host_block;
  });
}

}  // namespace

KvHostTier::KvHostTier(const KvHostTierOptions& options, Device* device, VmmDriver* driver,
                       ModelRunner* runner)
    : options_(options),
      piece_blocks_(std::clamp<int64_t>(options.piece_bytes / std::max<int64_t>(1, options.block_bytes), 1,
                                        std::max<int64_t>(1, options.num_blocks))),
      device_(device),
      runner_(runner),
      memory_(device->asynchronous() ? nullptr : SleepableAllocator::Create(driver)),
      account_(device->asynchronous() ? HostMemoryAccount::Open() : nullptr),
      swapped_(std::max(0, options.num_blocks), false) {}

KvHostTier::~KvHostTier() {
  device_->Synchronize().IgnoreError();  // a step's copies may be under way
  std::fill(swapped_.begin(), swapped_.end(), false);
  ReleaseMemory();
}

int64_t KvHostTier::CopyBytes(const v1::Transition& transition) const {
  return transition.kept_blocks_size() * options_.block_bytes;
}

absl::StatusOr<std::vector<BlockSwap>> KvHostTier::Check(const v1::Transition& transition) const {
  std::vector<BlockSwap> swaps;
  swaps.reserve(transition.kept_blocks_size());
  std::vector<bool> taken(options_.num_blocks, false);
  for (const v1::BlockCopy& block : transition.kept_blocks()) {
    if (block.dst() < 0 || block.dst() >= options_.num_blocks) {
      return absl::ResourceExhaustedError(absl::StrCat("kept_blocks: host block ", block.dst(),
                                                       ", but the host tier has ", options_.num_blocks));
    }
    if (taken[block.dst()])
      return absl::InvalidArgumentError(absl::StrCat("kept_blocks: host block ", block.dst(), " twice"));
    taken[block.dst()] = true;
    swaps.push_back({block.src(), block.dst()});
  }
  return swaps;
}

absl::Status KvHostTier::CheckSwapped(const v1::Transition& transition) const {
  for (const int32_t id : transition.swapped_blocks()) {
    if (id >= 0 && id < options_.num_blocks && swapped_[id]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("swapped_blocks: host block ", id, " has nothing that a step has swapped out"));
  }
  return absl::OkStatus();
}

absl::Status KvHostTier::Prepare(const v1::Transition& transition) {
  copy_seconds_ = 0;
  RETURN_IF_ERROR(CheckSwapped(transition));
  wanted_.assign(transition.swapped_blocks().begin(), transition.swapped_blocks().end());
  if (transition.kept_blocks().empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::vector<BlockSwap> swaps, Check(transition));
  const MonotonicTime begin = MonotonicNow();
  if (transition.sleep_level() == 0) {
    if (!SameBlocks(swaps, held_))
      return absl::FailedPreconditionError("kept_blocks: these are not the blocks that were kept");
    RETURN_IF_ERROR(Copy(SwapDirection::kToDevice, swaps, /*of_transition=*/true));
  } else {
    if (transition.sleep_level() != 1 || !held_.empty())
      return absl::FailedPreconditionError("kept_blocks: only a first sleep of level 1 keeps any");
    prepared_ = std::move(swaps);
    absl::Status status = TakeMemory(prepared_, /*whole_pieces=*/false);
    if (status.ok()) status = Copy(SwapDirection::kToHost, prepared_, /*of_transition=*/true);
    if (!status.ok()) {
      Abort();
      return status;
    }
  }
  copy_seconds_ = absl::ToDoubleSeconds(MonotonicNow() - begin);
  return absl::OkStatus();
}

void KvHostTier::Commit(int sleep_level, bool with_cache) {
  if (sleep_level <= 1) {
    if (!with_cache) return;
    KeepWanted();
    held_ = std::exchange(prepared_, {});  // none, at a wake-up
    if (!options_.retains_memory) ReleaseMemory();
    return;
  }
  ForgetAll();
  ReleaseMemory();
}

void KvHostTier::KeepWanted() {
  std::fill(swapped_.begin(), swapped_.end(), false);
  for (const int32_t id : std::exchange(wanted_, {})) swapped_[id] = true;
}

void KvHostTier::Abort() {
  if (prepared_.empty()) return;
  prepared_.clear();
  if (!options_.retains_memory) ReleaseMemory();
}

void KvHostTier::Forget() {
  prepared_.clear();
  held_.clear();
  if (!options_.retains_memory) ReleaseMemory();
}

void KvHostTier::ForgetAll() {
  std::fill(swapped_.begin(), swapped_.end(), false);
  Forget();
}

absl::Status KvHostTier::CheckSwap(const BlockSwap& swap) const {
  if (swap.host_block >= 0 && swap.host_block < options_.num_blocks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a swap names host block ", swap.host_block,
                                                 ", but the host tier has ", options_.num_blocks));
}

absl::Status KvHostTier::SwapOut(absl::Span<const BlockSwap> swaps,
                                 const absl::flat_hash_set<int32_t>& written) {
  for (const BlockSwap& swap : swaps) RETURN_IF_ERROR(CheckSwap(swap));
  if (absl::Status status = TakeMemory(swaps, /*whole_pieces=*/true); !status.ok()) {
    // The host is short of memory, so what was had of it goes back; copies of steps before may be under way.
    status.Update(device_->Synchronize());
    ReleaseMemory();
    return status;
  }
  std::vector<BlockSwap> first, beside;
  for (const BlockSwap& swap : swaps) (written.contains(swap.device_block) ? first : beside).push_back(swap);
  RETURN_IF_ERROR(Copy(SwapDirection::kToHost, first, /*of_transition=*/false));
  if (!first.empty()) device_->AwaitSwaps();
  RETURN_IF_ERROR(Copy(SwapDirection::kToHost, beside, /*of_transition=*/false));
  for (const BlockSwap& swap : swaps) swapped_[swap.host_block] = true;
  return absl::OkStatus();
}

absl::Status KvHostTier::SwapIn(absl::Span<const BlockSwap> swaps) {
  for (const BlockSwap& swap : swaps) {
    RETURN_IF_ERROR(CheckSwap(swap));
    if (swapped_[swap.host_block]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("host block ", swap.host_block, " has nothing that a step has swapped out"));
  }
  return Copy(SwapDirection::kToDevice, swaps, /*of_transition=*/false);
}

int32_t KvHostTier::end_of_held() const {
  int32_t end = 0;
  for (const BlockSwap& swap : held_) end = std::max(end, swap.device_block + 1);
  return end;
}

int64_t KvHostTier::host_bytes() const {
  if (memory_ != nullptr) return memory_->Stats()[kPieceTag].resident;
  int64_t bytes = 0;
  for (const auto& [number, piece] : pieces_) bytes += piece.num_blocks * options_.block_bytes;
  return bytes;
}

absl::StatusOr<void*> KvHostTier::TakePiece(int64_t num_blocks) {
  const int64_t bytes = num_blocks * options_.block_bytes;
  if (memory_ != nullptr) return memory_->Allocate(kPieceTag, bytes);
  // Pinned memory is resident when the call returns.
  ASSIGN_OR_RETURN(const HostReservation reservation, account_->Reserve(bytes));
  return device_->AllocatePinned(bytes);
}

absl::Status KvHostTier::TakeMemory(absl::Span<const BlockSwap> swaps, bool whole_pieces) {
  std::map<int64_t, int64_t> needed;  // blocks, by piece
  for (const BlockSwap& swap : swaps) {
    const int64_t number = swap.host_block / piece_blocks_;
    const int64_t whole = std::min(piece_blocks_, options_.num_blocks - number * piece_blocks_);
    int64_t& num_blocks = needed[number];
    num_blocks = whole_pieces ? whole : std::max(num_blocks, swap.host_block % piece_blocks_ + 1);
  }
  // Nothing is held, and swapped blocks are in whole pieces, so smaller ones of the sleep before can go.
  for (const auto& [number, num_blocks] : needed) {
    const auto kept = pieces_.find(number);
    if (kept == pieces_.end() || kept->second.num_blocks >= num_blocks) continue;
    released_.push_back(kept->second.data);
    pieces_.erase(kept);
  }
  FreeReleased();
  int64_t needed_bytes = 0, untaken_bytes = 0;
  for (const auto& [number, num_blocks] : needed) {
    needed_bytes += num_blocks * options_.block_bytes;
    if (!pieces_.contains(number)) untaken_bytes += num_blocks * options_.block_bytes;
  }
  for (const auto& [number, num_blocks] : needed) {
    if (pieces_.contains(number)) continue;
    absl::StatusOr<void*> piece = TakePiece(num_blocks);
    if (!piece.ok()) return Shortage(piece.status(), needed_bytes, untaken_bytes);
    pieces_[number] = {*piece, num_blocks};
    untaken_bytes -= num_blocks * options_.block_bytes;
  }
  return absl::OkStatus();
}

// Of all blocks that are kept, where a piece of the `untaken` bytes could not be had.
absl::Status KvHostTier::Shortage(const absl::Status& status, int64_t needed, int64_t untaken) {
  absl::Status error =
      WithMessage(status, absl::StrCat("memory for KV blocks that are kept: ", status.message()));
  if (!absl::IsResourceExhausted(error)) return error;
  return WithShortages(error, {{.tag = kKvCacheTag,
                                .needed_bytes = needed,
                                .missing_bytes = MissingAfterRefusal(untaken, error),
                                .memory = MemoryKind::kHost}});
}

void KvHostTier::ReleaseMemory() {
  std::set<int64_t> used;  // numbers of pieces
  for (const BlockSwap& swap : held_) used.insert(swap.host_block / piece_blocks_);
  for (size_t id = 0; id < swapped_.size(); ++id) {
    if (swapped_[id]) used.insert(static_cast<int64_t>(id) / piece_blocks_);
  }
  std::erase_if(pieces_, [&](const auto& piece) {
    if (used.contains(piece.first)) return false;
    released_.push_back(piece.second.data);
    return true;
  });
  FreeReleased();
}

void KvHostTier::FreeReleased() {
  std::erase_if(released_, [this](void* piece) {
    if (memory_ != nullptr) return memory_->Free(piece).ok();
    device_->FreePinned(piece);
    return true;
  });
}

absl::Status KvHostTier::Copy(SwapDirection direction, absl::Span<const BlockSwap> swaps,
                              bool of_transition) {
  std::map<int64_t, std::vector<BlockSwap>> by_piece;
  for (const BlockSwap& swap : swaps) {
    by_piece[swap.host_block / piece_blocks_].push_back(
        {swap.device_block, static_cast<int32_t>(swap.host_block % piece_blocks_)});
  }
  absl::Status status;
  for (const auto& [number, own] : by_piece) {
    const Piece& piece = pieces_.at(number);
    status = runner_->SwapBlocks(direction, {piece.data, piece.num_blocks, number * piece_blocks_}, own);
    if (!of_transition) {
      RETURN_IF_ERROR(status);
      continue;
    }
    status.Update(device_->Synchronize());  // in any case: nothing may be copied when this returns
    if (!status.ok()) return status;
    if (options_.meter != nullptr)
      options_.meter->Advance(static_cast<int64_t>(own.size()) * options_.block_bytes);
  }
  return absl::OkStatus();
}

}  // namespace somnus
