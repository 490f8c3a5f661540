#include "coordinator/engine/group_holdings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "base/null_block.h"

namespace somnus {
namespace {

constexpr char kOnlyReplaced[] =
    "only somnus reload-weights (POST /reload_weights) or an update can bring them";

int32_t SmallestCache(const SchedulerOptions& scheduler) {
  return static_cast<int32_t>(
      std::min<int64_t>(NumBlocks(BlocksOfLongest(scheduler)), scheduler.blocks.num_blocks));
}

}  // namespace

GroupHoldings::GroupHoldings(const EngineOptions& options)
    : residency_(options.residency),
      weights_(options.weights),
      smallest_cache_(SmallestCache(options.scheduler)),
      largest_cache_(options.scheduler.blocks.num_blocks),
      mapped_blocks_(options.num_mapped_blocks > 0 ? options.num_mapped_blocks : largest_cache_) {}

Held GroupHoldings::held() const {
  Held held(residency_, weights_, mapped_blocks_);
  held.adapters = adapters_;
  return held;
}

bool GroupHoldings::LacksWeights() const {
  const TagState state = residency_.state(kWeightsTag);
  return state == TagState::kStale || state == TagState::kDiscarded;
}

absl::StatusOr<bool> GroupHoldings::WillReadWeights(const std::vector<std::string>& tags,
                                                    std::optional<bool> load_weights) const {
  const bool named = std::find(tags.begin(), tags.end(), kWeightsTag) != tags.end();
  const TagState state = residency_.state(kWeightsTag);
  const bool reads = load_weights.value_or(weights_.readable());
  if (!named || state == TagState::kBackedUp || (state == TagState::kDiscarded && !reads)) return false;
  if (weights_.readable()) return reads;
  const bool stay = state == TagState::kStale && load_weights == false;
  if (stay) return false;
  return absl::FailedPreconditionError(
      absl::StrCat("the weights are ", TagStateName(state), ": ", kOnlyReplaced));
}

void GroupHoldings::NoteOverwriting() {
  residency_.SetWeightsStale(true);
  weights_.overwritten = true;
}

void GroupHoldings::NoteWeights(Weights weights) {
  weights_ = std::move(weights);
  weights_.overwritten = false;
  residency_.SetWeightsStale(false);
}

void GroupHoldings::NoteMappedBlocks(int32_t num_blocks) {
  num_cache_grows_ += num_blocks > mapped_blocks_;
  num_cache_shrinks_ += num_blocks < mapped_blocks_;
  mapped_blocks_ = num_blocks;
}

void GroupHoldings::RestoreAdapters(const Held& recovered) {
  for (const HeldAdapter& adapter : adapters_) {
    if (adapter.dropped != nullptr && !HasId(recovered.adapters, adapter.id)) adapter.dropped->store(true);
  }
  adapters_ = recovered.adapters;
  for (const auto& dropped : recovered.dropped_adapters) dropped_adapters_.push_back(dropped);
  while (dropped_adapters_.size() > kMaxDroppedAdapters) dropped_adapters_.pop_front();
}

absl::Status GroupHoldings::WhyDropped(const RequestAdapter& adapter) const {
  const auto dropped = std::find_if(dropped_adapters_.begin(), dropped_adapters_.end(),
                                    [&](const auto& one) { return one.first == adapter.id; });
  return AdapterUnreadable(adapter.name,
                           dropped == dropped_adapters_.end() ? absl::OkStatus() : dropped->second);
}

void GroupHoldings::Restore(Residency residency, Weights weights) {
  residency_ = std::move(residency);
  weights_ = std::move(weights);
}

void GroupHoldings::Publish(EngineStats* stats) const {
  stats->sleep_level = residency_.level();
  stats->residency = residency_;
  stats->weights_version = whole_version();
  if (!residency_.weights_stale()) stats->weights_source = weights_.source();
  stats->only_copy = HasOnlyCopy();
  stats->needs_weights = NeedsWeights();
  stats->mapped_blocks = static_cast<int32_t>(TotalBlocks(mapped_blocks_));
  stats->longest_blocks = static_cast<int32_t>(TotalBlocks(smallest_cache_));
  stats->max_blocks = static_cast<int32_t>(TotalBlocks(largest_cache_));
  stats->num_cache_grows = num_cache_grows_;
  stats->num_cache_shrinks = num_cache_shrinks_;
}

}  // namespace somnus
