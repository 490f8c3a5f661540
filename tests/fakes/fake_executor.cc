#include "tests/fakes/fake_executor.h"

#include <algorithm>

namespace somnus {
namespace {

FakeWorker::BlockPairs Pairs(const HostTierBlocks& host) {
  FakeWorker::BlockPairs pairs;
  for (const KeptBlock& block : host.kept) pairs.emplace_back(block.device_block, block.host_block);
  return pairs;
}

}  // namespace

void FakeExecutor::Lose(const absl::Status& reason) {
  std::function<void(absl::Status)> callback;
  std::function<void()> call;
  {
    absl::MutexLock lock(&mu_);
    if (!health_.ok()) return;
    health_ = reason;
    callback = callback_;
    call = std::exchange(held_call_, nullptr);
    if (late_results_) late_call_ = std::exchange(call, nullptr);
  }
  if (callback) callback(reason);
  if (call) call();
}

void FakeExecutor::FinishRecovery(const absl::Status& status) {
  std::function<void(absl::Status)> callback;
  {
    absl::MutexLock lock(&mu_);
    if (status.ok()) {
      worker_.Replace();
      bytes_.host.clear();  // new workers have no host memory except for sleeping tags
      if (retains_backups_ && residency_.state("weights") == TagState::kBackedUp)
        bytes_.host["weights"] = awake_bytes_["weights"];
      if (wanted_.num_mapped_blocks > 0) ResizeCache(wanted_.num_mapped_blocks);
      replies_.clear();
      steps_.clear();
      health_ = absl::OkStatus();
      weights_version_ = wanted_.weights.version;
      for (const auto& [tag, bytes] : awake_bytes_) NoteResident(tag);
    } else {
      bytes_ = GroupBytes();  // the workers have ended
    }
    callback = recovered_;
  }
  if (callback) callback(status);
}

void FakeExecutor::LoseAtOnce(const absl::Status& reason) {
  std::function<void(absl::Status)> failed, recovered;
  {
    absl::MutexLock lock(&mu_);
    worker_.Replace();
    replies_.clear();
    steps_.clear();
    health_ = reason;
    failed = callback_;
    recovered = recovered_;
  }
  if (failed) failed(reason);
  if (recovered) recovered(absl::OkStatus());
}

absl::StatusOr<v1::StepReply> FakeExecutor::Wait(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  const auto never = [] { return false; };
  mu_.AwaitWithTimeout(absl::Condition(&never), step_time_);
  ++num_waits_;
  wait_timeouts_.push_back(timeout);
  const auto released = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !held_ || !health_.ok(); };
  if (!mu_.AwaitWithTimeout(absl::Condition(&released), timeout)) {
    health_ = absl::DeadlineExceededError("rank 0 (pid 1) did not reply");
  }
  if (!health_.ok()) return health_;
  if (replies_.empty()) health_ = absl::InternalError("the oldest step awaits masks");
  if (!health_.ok()) return health_;
  absl::StatusOr<v1::StepReply> reply = std::move(replies_.front());
  replies_.pop_front();
  if (reply.ok()) reply->set_weights_version(weights_version_);
  if (!reply.ok()) health_ = reply.status();
  return reply;
}

// The cache is lost at its sleep; a sleep of other tags alone keeps the cache.
absl::StatusOr<TransitionReport> FakeExecutor::EndSleep(const SleepSpec& spec, const HostTierBlocks& host,
                                                        int64_t epoch) {
  absl::MutexLock lock(&mu_);
  if (absl::Status error = TakeLifecycleError(epoch); !error.ok()) return error;
  if (spec.level == 1 && !backup_error_.ok()) return backup_error_;
  if (worker_.num_slots_in_use() > 0) return absl::InternalError("slots in use at a sleep");
  RankReport rank;
  if (std::find(spec.tags.begin(), spec.tags.end(), "kv_cache") != spec.tags.end()) {
    worker_.CopyToHost(Pairs(host), host.swapped);
    if (absl::Status status = worker_.Sleep(); !status.ok()) return status;
    bytes_.host["kv_cache"] = static_cast<int64_t>(host.kept.size()) * kKvBlockBytes;
  }
  for (const std::string& tag : spec.tags) {
    if (residency_.asleep().count(tag) == 0) rank.tags[tag].freed_bytes = kTagBytes.at(tag);
  }
  residency_.Slept(spec);
  for (const std::string& tag : spec.tags) NoteResident(tag);
  if (retains_backups_ && residency_.state("weights") == TagState::kBackedUp)
    bytes_.host["weights"] = awake_bytes_["weights"];
  if (residency_.state("weights") == TagState::kDiscarded) bytes_.host["weights"] = 0;
  return TransitionReport{.ranks = {rank}};
}

absl::StatusOr<TransitionReport> FakeExecutor::EndWakeUp(const std::vector<std::string>& tags,
                                                         bool weights_stale, const HostTierBlocks& host,
                                                         int64_t epoch) {
  absl::MutexLock lock(&mu_);
  if (absl::Status error = TakeLifecycleError(epoch); !error.ok()) return error;
  if (!wake_up_error_.ok()) return wake_up_error_;
  if (!host.kept.empty()) {
    if (absl::Status status = worker_.CopyFromHost(Pairs(host)); !status.ok()) return status;
  }
  RankReport rank;
  for (const std::string& tag : tags) rank.tags[tag].mapped_bytes = kTagBytes.at(tag);
  residency_.Woke(tags, weights_stale);
  for (const std::string& tag : tags) NoteResident(tag);
  if (residency_.asleep().count("kv_cache") == 0) bytes_.host["kv_cache"] = 0;
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
      if (!outcome.untouched) {
        residency_.SetWeightsStale(!outcome.status.ok() || version == 0);
        bytes_.host["weights"] = 0;
      }
    }
    done(outcome);
  });
}

absl::StatusOr<TransitionReport> FakeExecutor::EndResize(int32_t num_blocks, int64_t epoch) {
  absl::MutexLock lock(&mu_);
  if (absl::Status error = TakeLifecycleError(epoch); !error.ok()) return error;
  if (absl::Status status = worker_.Resize(num_blocks); !status.ok()) return status;
  awake_bytes_["kv_cache"] = kDeviceBlockBytes * num_blocks;
  NoteResident("kv_cache");
  return TransitionReport{.ranks = {RankReport()}};
}

void FakeExecutor::ResizeCache(int32_t num_blocks) {
  (void)worker_.Resize(num_blocks);
  const auto cache = awake_bytes_.find("kv_cache");
  if (cache != awake_bytes_.end()) cache->second = kDeviceBlockBytes * num_blocks;
  for (const auto& [tag, bytes] : awake_bytes_) NoteResident(tag);
}

void FakeExecutor::NoteResident(const std::string& tag) {
  const auto bytes = awake_bytes_.find(tag);
  const bool sleeps = residency_.asleep().count(tag) > 0 || bytes == awake_bytes_.end();
  bytes_.resident[tag] = sleeps ? 0 : bytes->second;
  bytes_.sleeping[tag] = bytes == awake_bytes_.end() ? 0 : bytes->second - bytes_.resident[tag];
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

void FakeExecutor::Dismiss(const absl::Status& reason) {
  std::function<void(absl::Status)> callback;
  {
    absl::MutexLock lock(&mu_);
    recoveries_.push_back("dismiss");
    bytes_ = GroupBytes();
    callback = recovered_;
  }
  if (callback) callback(reason);
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
