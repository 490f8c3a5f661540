#include "worker/worker_kv_cache.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "proto/limits.h"
#include "worker/kv_memory.h"

namespace somnus {
namespace {

// The blocks that sequences get in the step, and the sources and targets of its copies. A step writes a block
// that it swaps out only where a sequence gets the block, with one exception: the source of a fork, which the
// step has yet to copy, and in which its sequence goes on.
absl::flat_hash_set<int32_t> BlocksGivenBy(const v1::StepRequest& request) {
  absl::flat_hash_set<int32_t> blocks;
  const auto add = [&blocks](const google::protobuf::RepeatedField<int32_t>& ids) {
    blocks.insert(ids.begin(), ids.end());
  };
  for (const v1::NewSequence& sequence : request.new_sequences()) add(sequence.block_ids());
  for (const v1::ScheduledSequence& sequence : request.sequences()) add(sequence.new_block_ids());
  for (const v1::SequenceFork& fork : request.forks()) add(fork.block_ids());
  for (const v1::SequenceFork& branch : request.branches()) add(branch.block_ids());
  for (const v1::BlockCopy& copy : request.copies()) blocks.insert({copy.src(), copy.dst()});
  return blocks;
}

std::vector<BlockSwap> SwapsOf(const google::protobuf::RepeatedPtrField<v1::BlockCopy>& copies,
                               SwapDirection direction) {
  const bool to_host = direction == SwapDirection::kToHost;
  std::vector<BlockSwap> swaps;
  swaps.reserve(copies.size());
  for (const v1::BlockCopy& copy : copies)
    swaps.push_back(to_host ? BlockSwap{copy.src(), copy.dst()} : BlockSwap{copy.dst(), copy.src()});
  return swaps;
}

bool HasKvCache(const std::vector<std::string>& tags) {
  return std::find(tags.begin(), tags.end(), kKvCacheTag) != tags.end();
}

}  // namespace

absl::StatusOr<v1::ProfileResponse> WorkerKvCache::Profile() {
  RETURN_IF_ERROR(epoch_.lifecycle()->Require({WorkerState::kLoaded}, "Profile"));
  RETURN_IF_ERROR(epoch_.RequireGroup("Profile"));
  const absl::StatusOr<KvMemory> memory =
      MeasureKvMemory(load_.options(), load_.runner(), epoch_.communicator(), load_.driver());
  if (!memory.ok()) return epoch_.FailCurrent(memory.status());
  graph_bytes_ = memory->graph_bytes;
  v1::ProfileResponse response;
  response.set_available_kv_cache_memory_bytes(memory->available_bytes);
  response.set_graph_bytes(memory->graph_bytes);
  response.set_graph_capture_us(static_cast<int64_t>(memory->graph_seconds * 1e6));
  return response;
}

absl::Status WorkerKvCache::Check(const v1::KvCacheConfig& config) const {
  if (config.num_blocks() < 2)
    return absl::InvalidArgumentError(absl::StrCat("num_blocks: ", config.num_blocks(), " is less than 2"));
  if (config.block_size() != load_.request().block_size() ||
      config.dtype() != load_.request().kv_cache_dtype()) {
    return absl::InvalidArgumentError("kv_cache: block_size and kv_cache_dtype must be those of LoadModel");
  }
  if (config.num_host_blocks() < 0 || config.num_host_blocks() > kMaxKeptBlocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_host_blocks: ", config.num_host_blocks(), " is not from 0 to ", kMaxKeptBlocks));
  }
  if (config.swap_space_ahead_bytes() < 0)
    return absl::InvalidArgumentError("swap_space_ahead_bytes: must not be negative");
  return absl::OkStatus();
}

absl::StatusOr<int64_t> WorkerKvCache::Allocate(const v1::KvCacheConfig& config, bool defer_graphs) {
  RETURN_IF_ERROR(epoch_.lifecycle()->Require({WorkerState::kLoaded}, "AllocateKvCache"));
  if (!defer_graphs) RETURN_IF_ERROR(epoch_.RequireGroup("AllocateKvCache"));
  RETURN_IF_ERROR(Check(config));
  const int32_t mapped = config.num_mapped_blocks() > 0 ? config.num_mapped_blocks() : config.num_blocks();
  if (mapped < 2 || mapped > config.num_blocks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_mapped_blocks: ", mapped, " is not from 2 to ", config.num_blocks()));
  }
  ModelRunner* const runner = load_.runner();
  RETURN_IF_ERROR(runner->AllocateKvCache(config.num_blocks(), mapped, defer_graphs));
  const int64_t block_bytes = runner->kv_block_bytes();
  tier_ = std::make_unique<KvHostTier>(
      KvHostTierOptions{
          .block_bytes = block_bytes,
          .num_blocks = config.num_host_blocks(),
          .retains_memory = load_.options().backup == BackupPolicy::kRetain,
          .ahead_bytes = std::min(config.swap_space_ahead_bytes(), block_bytes * config.num_blocks()),
          .ready_bytes = &ready_bytes_,
          .meter = meter_},
      load_.device(), load_.driver(), runner);
  if (defer_graphs) epoch_.SetRanksMayDiffer();
  absl::MutexLock lock(&mu_);
  blocks_ = {.all = config.num_blocks(), .mapped = mapped, .host = config.num_host_blocks()};
  return block_bytes * mapped;
}

absl::StatusOr<v1::ResizeKvCacheResponse> WorkerKvCache::Resize(int32_t num_blocks) {
  RETURN_IF_ERROR(epoch_.lifecycle()->Require({WorkerState::kAwake, WorkerState::kAsleep}, "ResizeKvCache"));
  RETURN_IF_ERROR(epoch_.lifecycle()->RequireNoTransition("ResizeKvCache"));
  RETURN_IF_ERROR(load_.runner()->ResizeKvCache(num_blocks));
  if (num_blocks < tier_->end_of_held()) ForgetKept();
  v1::ResizeKvCacheResponse response;
  response.set_kv_cache_bytes(load_.allocator()->ResidentBytes()[kKvCacheTag]);
  absl::MutexLock lock(&mu_);
  blocks_.mapped = num_blocks;
  return response;
}

// The swaps come before the rest of the step: a block that leaves the cache is copied before the step writes
// the block again, and a block that comes back is there when the step reads it. A step swaps in one
// direction, so no order is needed between swaps. Blocks that leave are copied beside the step, as far as the
// step does not give them to a sequence; the next step, which may, waits for these copies.
absl::Status WorkerKvCache::BeginStep(const v1::StepRequest& request, absl::Status* refused) {
  load_.device()->AwaitSwaps();
  tier_->BeginStep();
  const auto outs = SwapsOf(request.swap_outs(), SwapDirection::kToHost);
  const auto ins = SwapsOf(request.swap_ins(), SwapDirection::kToDevice);
  if (outs.empty() && ins.empty()) return absl::OkStatus();
  if (!outs.empty() && !ins.empty())
    return absl::InvalidArgumentError("swap_ins: a step that swaps out swaps nothing in");
  absl::Status status = ins.empty() ? tier_->SwapOut(outs, BlocksGivenBy(request)) : tier_->SwapIn(ins);
  PublishTierBytes();
  if (!absl::IsResourceExhausted(status) && !absl::IsUnavailable(status)) return status;
  // The other ranks may have room; the coordinator computes these blocks again on all ranks.
  LogWarning("the step's swaps to host memory are not done: {}", std::string(status.message()));
  *refused = std::move(status);
  return absl::OkStatus();
}

absl::Status WorkerKvCache::PrepareKept(const v1::Transition& transition,
                                        const std::vector<std::string>& tags) {
  if (transition.kept_blocks_size() > 0 && !HasKvCache(tags))
    return absl::InvalidArgumentError("kept_blocks: the transition does not change kv_cache");
  const absl::Status status = tier_->Prepare(transition);
  PublishTierBytes();
  return status;
}

void WorkerKvCache::CommitKept(int sleep_level, const std::vector<std::string>& tags,
                               v1::CommitResponse* response) {
  v1::TagReport& cache = (*response->mutable_tags())[kKvCacheTag];
  // A level-2 sleep of a cache that sleeps already changes no tag, and drops the blocks that were kept.
  if (!tags.empty() || sleep_level == kMaxSleepLevel) tier_->Commit(sleep_level, HasKvCache(tags));
  PublishTierBytes();
  cache.set_host_bytes(cache.host_bytes() + host_bytes());
  if (tags.empty()) return;
  v1::PhaseSeconds& seconds = *response->mutable_seconds();
  seconds.set_copy(seconds.copy() + tier_->copy_seconds());
  const int64_t held = tier_->held_bytes();
  cache.set_backed_up_bytes(cache.backed_up_bytes() + held);
  cache.set_discarded_bytes(std::max<int64_t>(0, cache.discarded_bytes() - held));
}

void WorkerKvCache::AbortKept() {
  tier_->Abort();
  PublishTierBytes();
}

void WorkerKvCache::ForgetKept() {
  if (tier_ == nullptr) return;
  tier_->Forget();
  PublishTierBytes();
}

void WorkerKvCache::ForgetAll() {
  if (tier_ == nullptr) return;
  tier_->ForgetAll();
  PublishTierBytes();
}

void WorkerKvCache::FillSnapshot(v1::WorkerSnapshot* snapshot) const {
  absl::MutexLock lock(&mu_);
  snapshot->set_num_blocks(blocks_.all);
  snapshot->set_num_mapped_blocks(blocks_.mapped);
  snapshot->set_num_host_blocks(blocks_.host);
}

}  // namespace somnus
