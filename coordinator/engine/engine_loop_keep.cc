// EngineLoop's part for a KV cache that outlives a sleep of level 1. What was computed stays where it is, on
// the device, unless the sleep releases the cache: then as much of it as fits is kept in the host tier, and a
// wake-up of the cache brings it back. Everything else that ends a cache (a deeper sleep, a loss of the
// group) makes the scheduler forget it.

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "coordinator/engine/engine_loop.h"

namespace somnus {
namespace {

bool HasKvCache(const std::vector<std::string>& tags) {
  return std::find(tags.begin(), tags.end(), kKvCacheTag) != tags.end();
}

}  // namespace

bool EngineLoop::KeepsKv(const SleepSpec& spec) const {
  return options_.keep_kv_on_sleep && spec.level < kMaxSleepLevel;
}

void EngineLoop::QuiesceForSleep(const SleepSpec& spec) {
  if (!KeepsKv(spec)) return Quiesce(CacheLoss::kSleep);
  ReceiveAll();
  if (!Computes()) return;
  scheduler_.SuspendAll();
  FlushFreedSlots();
}

HostTierBlocks EngineLoop::ChooseKept(const SleepSpec& changes) {
  if (!KeepsKv(changes) || !HasKvCache(changes.tags)) return {};
  if (command_->keeps_nothing) return {{}, scheduler_.blocks().SwappedBlocks()};
  KeepLimits limits;
  limits.cached_blocks = options_.keeps_cached_blocks;
  if (command_->max_kept_bytes.has_value() && options_.kv_block_bytes > 0)
    limits.num_blocks = std::max<int64_t>(0, *command_->max_kept_bytes) / options_.kv_block_bytes;
  const std::vector<KeptBlock> kept = scheduler_.ChooseKept(limits);
  return {kept, scheduler_.blocks().SwappedBlocks()};  // cached ones among these may have given way
}

int64_t EngineLoop::KeepableBytes() const {
  if (!options_.keep_kv_on_sleep) return 0;
  constexpr int64_t kGrowth = 2;  // blocks that a running sequence may take until the sleep begins
  const BlockManager& blocks = scheduler_.blocks();
  int64_t count = blocks.used_blocks() + kGrowth * scheduler_.num_running();
  if (options_.keeps_cached_blocks) count += blocks.cached_blocks();
  const int32_t room = blocks.total_host_blocks() - blocks.swapped_blocks();
  return std::min<int64_t>(count, room) * options_.kv_block_bytes;
}

HostTierBlocks EngineLoop::KeptFor(const std::vector<std::string>& woken) const {
  if (!HasKvCache(woken)) return {};
  return {scheduler_.blocks().kept(), scheduler_.blocks().SwappedBlocks()};
}

void EngineLoop::NoteSleptKv(const SleepSpec& changes) {
  if (changes.level == kMaxSleepLevel) return scheduler_.ForgetComputed(CacheLoss::kSleep);
  if (!HasKvCache(changes.tags)) return;
  scheduler_.ForgetUnkept(/*keeps_swapped=*/KeepsKv(changes));
  if (!options_.keep_kv_on_sleep) return;
  LogInfo("{}{} KV blocks are kept in host memory, with those of {} open requests", options_.log_name,
          scheduler_.blocks().used_host_blocks(), scheduler_.num_suspended() + scheduler_.num_swapped());
}

bool EngineLoop::RetriesWithoutKept(const SleepSpec& changes, const absl::Status& error) {
  if (!HasKvCache(changes.tags)) return false;  // what is kept is from before
  const bool kept = !scheduler_.blocks().kept().empty();
  scheduler_.AbandonKept();
  if (!kept || !absl::IsResourceExhausted(error)) return false;
  LogWarning("{}the KV cache is not kept: {}", options_.log_name, std::string(error.message()));
  command_->keeps_nothing = true;
  return true;
}

bool EngineLoop::HoldsKept() const {
  if (residency_.state(kKvCacheTag) == TagState::kResident) return false;
  if (scheduler_.blocks().used_host_blocks() > 0) return true;
  const TagBytes host = executor_->bytes().host;
  const auto retained = host.find(kKvCacheTag);
  return retained != host.end() && retained->second > 0;
}

bool EngineLoop::DropsKept(const SleepSpec& spec) const {
  return spec.level == kMaxSleepLevel && (spec.tags.empty() || HasKvCache(spec.tags)) && HoldsKept();
}

void EngineLoop::CallDropKept() {
  const SleepSpec drop = {kMaxSleepLevel, {kKvCacheTag}};
  Executor::LifecycleDone done = Call(drop);
  call_->drops_kept = true;
  executor_->SleepAsync(drop, {}, std::move(done));
}

void EngineLoop::FinishDropKept(absl::StatusOr<TransitionReport> report) {
  if (report.ok()) scheduler_.ForgetComputed(CacheLoss::kSleep);
  EndCommand(std::move(report));
}

void EngineLoop::NoteWokenKv(const std::vector<std::string>& tags) {
  if (HasKvCache(tags)) scheduler_.RestoreKept();
}

}  // namespace somnus
