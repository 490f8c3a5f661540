#include "worker/kv_host_tier.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/memory_shortage.h"
#include "base/memory_tags.h"
#include "base/monotonic.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "base/status_message.h"

namespace somnus {
namespace {

constexpr char kPieceTag[] = "kv_host";
// How long the reserve waits for bytes of the host's account while other processes make memory resident,
// before the reserve asks again. The end of the tier waits for a call that is under way.
constexpr absl::Duration kReservePatience = absl::Seconds(1);

// Pinned memory is resident when the call returns.
absl::StatusOr<void*> TakePinned(HostMemoryAccount* account, Device* device, int64_t bytes) {
  ASSIGN_OR_RETURN(const HostReservation reservation, account->Reserve(bytes));
  return device->AllocatePinned(bytes);
}

std::unique_ptr<HostPieceReserve> MakeReserve(const KvHostTierOptions& options, int64_t piece_blocks,
                                              Device* device) {
  const int64_t bytes = piece_blocks * options.block_bytes;
  if (!device->asynchronous() || bytes == 0) return nullptr;
  const std::shared_ptr<HostMemoryAccount> account = HostMemoryAccount::Open({.patience = kReservePatience});
  const int64_t num_most = (options.num_blocks + piece_blocks - 1) / piece_blocks;
  return std::make_unique<HostPieceReserve>(
      HostPieceReserveOptions{.num_ahead = std::min(num_most, (options.ahead_bytes + bytes - 1) / bytes),
                              .num_most = num_most,
                              .piece_bytes = bytes,
                              .ready_bytes = options.ready_bytes},
      [account, device, bytes] { return TakePinned(account.get(), device, bytes); },
      [device](void* piece) { device->FreePinned(piece); });
}

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
      reserve_(MakeReserve(options, piece_blocks_, device)),
      swapped_(std::max(0, options.num_blocks), false) {}

KvHostTier::~KvHostTier() {
  device_->Synchronize().IgnoreError();  // a step's copies may be under way
  StopReserve();
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
  if (transition.sleep_level() == kAwakeLevel) {
    if (!SameBlocks(swaps, held_))
      return absl::FailedPreconditionError("kept_blocks: these are not the blocks that were kept");
    RETURN_IF_ERROR(Copy(SwapDirection::kToDevice, swaps, /*of_transition=*/true));
  } else {
    if (transition.sleep_level() != kMinSleepLevel || !held_.empty())
      return absl::FailedPreconditionError("kept_blocks: only a first sleep of level 1 keeps any");
    prepared_ = std::move(swaps);
    absl::Status status = TakeMemory(NeedsOf(prepared_, /*whole_pieces=*/false));
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
  if (sleep_level != kAwakeLevel && with_cache) StopReserve();
  if (sleep_level < kMaxSleepLevel) {
    if (!with_cache) return;
    KeepWanted();
    held_ = std::exchange(prepared_, {});  // none, at a wake-up
    if (!options_.retains_memory) ReleaseMemory();
    return;
  }
  StopReserve();
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

void KvHostTier::BeginStep() {
  if (reserve_ != nullptr) reserve_->Start();
}

void KvHostTier::StopReserve() {
  if (reserve_ != nullptr) reserve_->Stop();
}

absl::Status KvHostTier::SwapOut(absl::Span<const BlockSwap> swaps,
                                 const absl::flat_hash_set<int32_t>& written) {
  for (const BlockSwap& swap : swaps) RETURN_IF_ERROR(CheckSwap(swap));
  const Needs needs = NeedsOf(swaps, /*whole_pieces=*/true);
  if (reserve_ != nullptr) {
    RETURN_IF_ERROR(TakeFromReserve(needs));
  } else if (absl::Status status = TakeMemory(needs); !status.ok()) {
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
  int64_t num_blocks = 0;
  for (const auto& [number, piece] : pieces_) num_blocks += piece.num_blocks;
  return num_blocks * options_.block_bytes;
}

absl::StatusOr<KvHostTier::Piece> KvHostTier::TakePiece(int64_t num_blocks) {
  const int64_t bytes = num_blocks * options_.block_bytes;
  Piece piece = {.num_blocks = num_blocks};
  if (memory_ != nullptr) {
    ASSIGN_OR_RETURN(piece.data, memory_->Allocate(kPieceTag, bytes));
    return piece;
  }
  if (num_blocks == piece_blocks_ && reserve_ != nullptr) piece.data = reserve_->GetReady();
  piece.of_reserve = piece.data != nullptr;
  if (!piece.of_reserve) {
    StopReserve();  // steps need no memory any more, and the sleep's blocks may need all
    ASSIGN_OR_RETURN(piece.data, TakePinned(account_.get(), device_, bytes));
  }
  return piece;
}

KvHostTier::Needs KvHostTier::NeedsOf(absl::Span<const BlockSwap> swaps, bool whole_pieces) const {
  Needs needs;
  for (const BlockSwap& swap : swaps) {
    const int64_t number = swap.host_block / piece_blocks_;
    const int64_t whole = std::min(piece_blocks_, options_.num_blocks - number * piece_blocks_);
    int64_t& num_blocks = needs[number];
    num_blocks = whole_pieces ? whole : std::max(num_blocks, swap.host_block % piece_blocks_ + 1);
  }
  return needs;
}

absl::Status KvHostTier::TakeMemory(const Needs& needs) {
  // Nothing is held, and swapped blocks are in whole pieces, so smaller pieces of the sleep before can go.
  for (const auto& [number, num_blocks] : needs) {
    const auto kept = pieces_.find(number);
    if (kept == pieces_.end() || kept->second.num_blocks >= num_blocks) continue;
    Release(kept->second);
    pieces_.erase(kept);
  }
  FreeReleased();
  int64_t needed_bytes = 0, untaken_bytes = 0;
  for (const auto& [number, num_blocks] : needs) {
    needed_bytes += num_blocks * options_.block_bytes;
    if (!pieces_.contains(number)) untaken_bytes += num_blocks * options_.block_bytes;
  }
  for (const auto& [number, num_blocks] : needs) {
    if (pieces_.contains(number)) continue;
    absl::StatusOr<Piece> piece = TakePiece(num_blocks);
    if (!piece.ok()) return Shortage(piece.status(), needed_bytes, untaken_bytes);
    pieces_[number] = *piece;
    untaken_bytes -= num_blocks * options_.block_bytes;
  }
  return absl::OkStatus();
}

absl::Status KvHostTier::TakeFromReserve(const Needs& needs) {
  std::vector<int64_t> lacking;  // numbers of pieces
  for (const auto& [number, num_blocks] : needs) {
    const auto kept = pieces_.find(number);
    if (kept == pieces_.end() || kept->second.num_blocks < num_blocks) lacking.push_back(number);
  }
  if (lacking.empty()) return absl::OkStatus();
  absl::StatusOr<std::vector<void*>> taken = reserve_->Get(static_cast<int64_t>(lacking.size()));
  if (!taken.ok()) {
    const int64_t bytes = static_cast<int64_t>(lacking.size()) * piece_blocks_ * options_.block_bytes;
    return Shortage(taken.status(), bytes, bytes);
  }
  for (const int64_t number : lacking) {
    // A smaller piece of the sleep before: nothing is held or swapped there.
    if (const auto kept = pieces_.find(number); kept != pieces_.end()) reserve_->FreeLater(kept->second.data);
    pieces_[number] = {.data = taken->back(), .num_blocks = piece_blocks_, .of_reserve = true};
    taken->pop_back();
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
    Release(piece.second);
    return true;
  });
  FreeReleased();
}

void KvHostTier::Release(const Piece& piece) {
  piece.of_reserve ? reserve_->GiveBack(piece.data) : released_.push_back(piece.data);
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
