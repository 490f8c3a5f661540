#pragma once
// The holdings of a group's ranks, as of the last lifecycle call that has ended: the memory that is resident,
// the weights, and the number of KV blocks that have memory.
//
// Weights that are being replaced are stale from the moment before the executor is called: in any case
// nothing is computed until a command has brought weights that every rank has. Plain state of the loop
// thread.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/engine/engine_options.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/request/request_adapter.h"
#include "coordinator/residency/residency.h"
#include "coordinator/residency/weights.h"

namespace somnus {

class GroupHoldings {
 public:
  // The most dropped adapters whose causes are kept, the latest ones.
  static constexpr size_t kMaxDroppedAdapters = 1024;

  explicit GroupHoldings(const EngineOptions& options);

  const Residency& residency() const { return residency_; }
  const Weights& weights() const { return weights_; }
  // Blocks of the KV cache, the null block included.
  int32_t mapped_blocks() const { return mapped_blocks_; }
  // No cache is smaller: a sequence of max_model_len has so many blocks at once, with the null block.
  int32_t smallest_cache() const { return smallest_cache_; }
  // For the executor, which brings ranks to this after a loss.
  Held held() const;
  const std::vector<HeldAdapter>& adapters() const { return adapters_; }
  // Every tag is resident, and the weights are not stale.
  bool awake() const { return residency_.awake(); }
  // The version that every rank has; 0: the weights are stale.
  int64_t whole_version() const { return residency_.weights_stale() ? 0 : weights_.version; }

  // The workers have the weights, and nothing else has.
  bool HasOnlyCopy() const { return !weights_.readable() && !LacksWeights(); }
  // The weights have to be brought by a reload or an update.
  bool NeedsWeights() const { return !weights_.readable() && LacksWeights(); }
  // Whether a wake-up of these tags reads the checkpoint; `load_weights` as of WakeUpRequest. An error: the
  // wake-up cannot bring the weights.
  absl::StatusOr<bool> WillReadWeights(const std::vector<std::string>& tags,
                                       std::optional<bool> load_weights) const;

  // A sleep or a wake-up of exactly the tags that are given has been committed.
  void NoteSlept(const SleepSpec& changes) { residency_.Slept(changes); }
  void NoteWoken(const std::vector<std::string>& tags, bool weights_stale) {
    residency_.Woke(tags, weights_stale);
  }
  // A change begins to write over the weights, which are stale from now on.
  void NoteOverwriting();
  // Every rank has `weights`.
  void NoteWeights(Weights weights);
  void NoteMappedBlocks(int32_t num_blocks);
  void NoteAdapters(std::vector<HeldAdapter> adapters) { adapters_ = std::move(adapters); }
  // A recovery has led to `recovered`: it has brought these adapters back, and has dropped the other
  // adapters.
  void RestoreAdapters(const Held& recovered);
  // The error for clients of an adapter that the ranks do not hold any more, also where an earlier recovery
  // has dropped the adapter.
  absl::Status WhyDropped(const RequestAdapter& adapter) const;
  // Nothing has changed after all, or a recovery has led to this.
  void Restore(Residency residency, Weights weights);

  void Publish(EngineStats* stats) const;

 private:
  bool LacksWeights() const;

  Residency residency_;
  Weights weights_;
  const int32_t smallest_cache_;
  const int32_t largest_cache_;
  int32_t mapped_blocks_;
  std::vector<HeldAdapter> adapters_;
  // By id, in the order of the recoveries: why a recovery has dropped the adapter.
  std::deque<std::pair<uint64_t, absl::Status>> dropped_adapters_;
  int64_t num_cache_grows_ = 0, num_cache_shrinks_ = 0;
};

}  // namespace somnus
