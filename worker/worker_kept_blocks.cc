// The Worker's part for blocks of the KV cache in the host tier: those that outlive a sleep, and those that
// steps swap.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/request_bounds.h"
#include "worker/worker.h"

namespace somnus {
namespace {

// The blocks that sequences get in the step, and those between which it copies. No step writes a block that
// it swaps out without giving it to a sequence, but for a fork's source, whose copy has not been made: its
// sequence goes on in the source.
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

// After the memory: of a sleep it can still be read, of a wake-up it is mapped.
absl::Status Worker::PrepareKept(const v1::Transition& transition, const Prepared& prepared) {
  absl::Status status;
  if (transition.kept_blocks_size() > 0 && !HasKvCache(prepared.tags)) {
    status = absl::InvalidArgumentError("kept_blocks: the transition does not change kv_cache");
  } else {
    status = kv_host_tier_->Prepare(transition);
    kv_host_bytes_ = kv_host_tier_->host_bytes();
  }
  if (!status.ok() && !prepared.tags.empty()) AbortMemory(prepared.sleep_level);
  return status;
}

void Worker::CommitKept(const Prepared& prepared, v1::CommitResponse* response) {
  v1::TagReport& cache = (*response->mutable_tags())[kKvCacheTag];
  // Level 2 of a cache that sleeps already changes no tag, and drops what was kept of it.
  if (!prepared.tags.empty() || prepared.sleep_level == kMaxSleepLevel)
    kv_host_tier_->Commit(prepared.sleep_level, HasKvCache(prepared.tags));
  kv_host_bytes_ = kv_host_tier_->host_bytes();
  cache.set_host_bytes(cache.host_bytes() + KvHostBytes());
  if (prepared.tags.empty()) return;
  v1::PhaseSeconds& seconds = *response->mutable_seconds();
  seconds.set_copy(seconds.copy() + kv_host_tier_->copy_seconds());
  const int64_t held = kv_host_tier_->held_bytes();
  cache.set_backed_up_bytes(cache.backed_up_bytes() + held);
  cache.set_discarded_bytes(std::max<int64_t>(0, cache.discarded_bytes() - held));
}

void Worker::ForgetKept(bool with_swapped) {
  if (kv_host_tier_ == nullptr) return;
  with_swapped ? kv_host_tier_->ForgetAll() : kv_host_tier_->Forget();
  kv_host_bytes_ = kv_host_tier_->host_bytes();
}

// Before the rest of the step: what leaves the cache leaves it before its blocks are written again, and what
// comes back is there when the step reads it. A step has one direction, so no order is needed between them.
// Blocks that leave are copied beside the step, as far as the step does not get them; the next step, which
// may, waits for that.
absl::Status Worker::SwapBlocksOf(const v1::StepRequest& request, absl::Status* refused) {
  device_->AwaitSwaps();
  kv_host_tier_->BeginStep();
  const auto outs = SwapsOf(request.swap_outs(), SwapDirection::kToHost);
  const auto ins = SwapsOf(request.swap_ins(), SwapDirection::kToDevice);
  if (outs.empty() && ins.empty()) return absl::OkStatus();
  if (!outs.empty() && !ins.empty())
    return absl::InvalidArgumentError("swap_ins: a step that swaps out swaps nothing in");
  absl::Status status =
      ins.empty() ? kv_host_tier_->SwapOut(outs, BlocksGivenBy(request)) : kv_host_tier_->SwapIn(ins);
  kv_host_bytes_ = kv_host_tier_->host_bytes();
  if (!absl::IsResourceExhausted(status) && !absl::IsUnavailable(status)) return status;
  // The other ranks may have room; the coordinator computes these blocks again on all of them.
  LogWarning("the step's swaps to host memory are not done: {}", std::string(status.message()));
  *refused = std::move(status);
  return absl::OkStatus();
}

}  // namespace somnus
