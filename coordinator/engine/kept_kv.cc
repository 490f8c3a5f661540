#include "coordinator/engine/kept_kv.h"

#include <algorithm>

#include "base/log.h"
#include "base/memory_tags.h"
#include "base/request_bounds.h"

namespace somnus {
namespace {

bool HasKvCache(const std::vector<std::string>& tags) {
  return std::find(tags.begin(), tags.end(), kKvCacheTag) != tags.end();
}

}  // namespace

bool KeptKv::KeptBy(const SleepSpec& spec) const {
  return options_.keep_kv_on_sleep && spec.level < kMaxSleepLevel;
}

HostTierBlocks KeptKv::Choose(const SleepSpec& changes, std::optional<int64_t> max_bytes) {
  if (!KeptBy(changes) || !HasKvCache(changes.tags)) return {};
  KeepLimits limits;
  limits.cached_blocks = options_.keeps_cached_blocks;
  if (max_bytes.has_value() && options_.kv_block_bytes > 0)
    limits.num_blocks = std::max<int64_t>(0, *max_bytes) / options_.kv_block_bytes;
  const std::vector<KeptBlock> kept = scheduler_.kept().Choose(limits);
  return {kept,
          scheduler_.blocks().swapped().Sources()};  // cached swapped blocks may have given way to kept ones
}

HostTierBlocks KeptKv::ChooseNothing(const SleepSpec& changes) const {
  if (!KeptBy(changes) || !HasKvCache(changes.tags)) return {};
  return {{}, scheduler_.blocks().swapped().Sources()};
}

int64_t KeptKv::KeepableBytes() const {
  if (!options_.keep_kv_on_sleep) return 0;
  constexpr int64_t kGrowth = 2;  // blocks that a running sequence may take until the sleep begins
  const BlockManager& blocks = scheduler_.blocks();
  int64_t count = blocks.pool().num_used() + kGrowth * scheduler_.num_running();
  if (options_.keeps_cached_blocks) count += blocks.pool().num_cached();
  const int32_t room = blocks.host().pool().num_total() - blocks.swapped().num_blocks();
  return std::min<int64_t>(count, room) * options_.kv_block_bytes;
}

HostTierBlocks KeptKv::BroughtBackBy(const std::vector<std::string>& woken) const {
  if (!HasKvCache(woken)) return {};
  return {scheduler_.blocks().kept().blocks(), scheduler_.blocks().swapped().Sources()};
}

void KeptKv::NoteSlept(const SleepSpec& changes) {
  if (changes.level == kMaxSleepLevel) return scheduler_.ForgetComputed(CacheLoss::kSleep);
  if (!HasKvCache(changes.tags)) return;
  scheduler_.kept().ForgetUnkept(/*keeps_swapped=*/KeptBy(changes));
  if (!options_.keep_kv_on_sleep) return;
  LogInfo("{}{} KV blocks are kept in host memory, with those of {} open requests", options_.log_name,
          scheduler_.blocks().host().pool().num_used(),
          scheduler_.sequences().num_suspended() + scheduler_.num_swapped());
}

void KeptKv::NoteWoken(const std::vector<std::string>& tags) {
  if (HasKvCache(tags)) scheduler_.kept().Restore();
}

bool KeptKv::Abandon(const SleepSpec& changes, const absl::Status& error) {
  if (!HasKvCache(changes.tags)) return false;  // the kept blocks are from an earlier sleep
  const bool kept = !scheduler_.blocks().kept().blocks().empty();
  scheduler_.kept().Abandon();
  if (!kept || !absl::IsResourceExhausted(error)) return false;
  LogWarning("{}the KV cache is not kept: {}", options_.log_name, std::string(error.message()));
  return true;
}

bool KeptKv::Holds(const Residency& residency) const {
  if (residency.state(kKvCacheTag) == TagState::kResident) return false;
  if (scheduler_.blocks().host().pool().num_used() > 0) return true;
  const TagBytes host = executor_.bytes().host;
  const auto retained = host.find(kKvCacheTag);
  return retained != host.end() && retained->second > 0;
}

bool KeptKv::DroppedBy(const SleepSpec& spec, const Residency& residency) const {
  return spec.level == kMaxSleepLevel && (spec.tags.empty() || HasKvCache(spec.tags)) && Holds(residency);
}

}  // namespace somnus
