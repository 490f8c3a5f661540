#include "tests/fakes/fake_executor.h"

#include <algorithm>

namespace somnus {
namespace {

FakeWorker::BlockPairs Pairs(const std::vector<KeptBlock>& kept) {
  FakeWorker::BlockPairs pairs;
  for (const KeptBlock& block : kept) pairs.emplace_back(block.device_block, block.host_block);
  return pairs;
}

}  // namespace

// The cache is lost once it sleeps; with other tags alone it stays.
absl::StatusOr<TransitionReport> FakeExecutor::EndSleep(const SleepSpec& spec,
                                                        const std::vector<KeptBlock>& kept, int64_t epoch) {
  absl::MutexLock lock(&mu_);
  if (absl::Status error = TakeLifecycleError(epoch); !error.ok()) return error;
  if (worker_.num_slots_in_use() > 0) return absl::InternalError("slots in use at a sleep");
  RankReport rank;
  if (std::find(spec.tags.begin(), spec.tags.end(), "kv_cache") != spec.tags.end()) {
    worker_.CopyToHost(Pairs(kept));
    if (absl::Status status = worker_.Sleep(); !status.ok()) return status;
    rank.tags["kv_cache"].host_bytes = static_cast<int64_t>(kept.size()) * kKvBlockBytes;
  }
  for (const std::string& tag : spec.tags) {
    if (residency_.asleep().count(tag) == 0) rank.tags[tag].freed_bytes = kTagBytes.at(tag);
  }
  residency_.Slept(spec);
  return TransitionReport{.ranks = {rank}};
}

absl::StatusOr<TransitionReport> FakeExecutor::EndWakeUp(const std::vector<std::string>& tags,
                                                         bool weights_stale,
                                                         const std::vector<KeptBlock>& kept, int64_t epoch) {
  absl::MutexLock lock(&mu_);
  if (absl::Status error = TakeLifecycleError(epoch); !error.ok()) return error;
  if (!kept.empty()) {
    if (absl::Status status = worker_.CopyFromHost(Pairs(kept)); !status.ok()) return status;
  }
  RankReport rank;
  for (const std::string& tag : tags) rank.tags[tag].mapped_bytes = kTagBytes.at(tag);
  residency_.Woke(tags, weights_stale);
  return TransitionReport{.ranks = {rank}};
}

void FakeExecutor::ChangeWeights(const std::string& name, int64_t version, WeightsDone done) {
  RunOrHold(name, [this, version, epoch = group_epoch(), done = std::move(done)] {
    WeightsOutcome outcome;
    {
      absl::MutexLock lock(&mu_);
      outcome = std::exchange(weights_outcome_, WeightsOutcome());
      if (const absl::Status error = TakeLifecycleError(epoch); !error.ok()) outcome.status = error;
      if (outcome.status.ok() && version > 0) weights_version_ = version;
      if (!outcome.untouched) residency_.SetWeightsStale(!outcome.status.ok() || version == 0);
    }
    done(outcome);
  });
}

absl::StatusOr<TransitionReport> FakeExecutor::EndResize(int32_t num_blocks, int64_t epoch) {
  absl::MutexLock lock(&mu_);
  if (absl::Status error = TakeLifecycleError(epoch); !error.ok()) return error;
  if (absl::Status status = worker_.Resize(num_blocks); !status.ok()) return status;
  RankReport rank;
  if (residency_.asleep().count("kv_cache") == 0) rank.tags["kv_cache"].resident_bytes = 10 * num_blocks;
  return TransitionReport{.ranks = {rank}};
}

absl::StatusOr<SelfCheckResult> FakeExecutor::EndCheck(int64_t epoch) {
  absl::MutexLock lock(&mu_);
  if (absl::Status error = TakeLifecycleError(epoch); !error.ok()) return error;
  if (worker_.num_slots_in_use() > 0) return absl::InternalError("slots in use at a self-check");
  if (!residency_.awake()) return absl::InternalError("a self-check of an engine that sleeps");
  SelfCheckResult result = checked_;
  result.weights_version = weights_version_;
  return result;
}

void FakeExecutor::Recover(const Held& wanted) {
  const Residency& held = wanted.residency;
  Recovery recovery;
  absl::Status failure;
  {
    absl::MutexLock lock(&mu_);
    std::string what = held.awake() ? "awake" : "asleep " + std::to_string(held.level());
    for (const std::string& tag : held.asleep()) what += " " + tag;
    if (held.weights_stale()) what = "stale";
    recoveries_.push_back(what);
    residency_ = held;
    wanted_ = wanted;
    ++group_epoch_;
    recovery = recovery_;
    failure = health_;
  }
  if (recovery == Recovery::kFails) FinishRecovery(failure);
  if (recovery == Recovery::kSucceeds) FinishRecovery(absl::OkStatus());
}

void FakeExecutor::Restart(const Held& wanted) {
  Recovery recovery;
  {
    absl::MutexLock lock(&mu_);
    wanted_ = wanted;
    recoveries_.push_back("restart");
    ++group_epoch_;
    recovery = recovery_;
  }
  if (recovery == Recovery::kFails) FinishRecovery(absl::UnavailableError("the new workers did not come"));
  if (recovery == Recovery::kSucceeds) FinishRecovery(absl::OkStatus());
}

}  // namespace somnus
