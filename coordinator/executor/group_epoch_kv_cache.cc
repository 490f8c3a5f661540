// GroupEpoch's part for the size of the KV cache.

#include "absl/strings/str_cat.h"
#include "base/memory_tags.h"
#include "coordinator/executor/group_epoch.h"

namespace somnus {

absl::Status GroupEpoch::ResizeRanks(const Ranks& ranks, int32_t num_blocks, std::vector<int64_t>* bytes) {
  sleep_.ForgetHeldBytes();
  v1::ResizeKvCacheRequest request;
  request.set_num_blocks(num_blocks);
  calls_.Stamp(&request);
  bytes->assign(workers_.size(), 0);
  return calls_.FirstError(calls_.RunOperation(
      options_.lifecycle_timeout, [&](const WorkerLink& worker, size_t rank, grpc::ClientContext* context) {
        if (!ranks[rank]) return grpc::Status::OK;
        v1::ResizeKvCacheResponse response;
        const grpc::Status status = worker.stub->ResizeKvCache(context, request, &response);
        (*bytes)[rank] = response.kv_cache_bytes();
        return status;
      }));
}

absl::StatusOr<TransitionReport> GroupEpoch::ResizeKvCache(int32_t num_blocks, int32_t num_before) {
  const Ranks all(workers_.size(), true);
  std::vector<int64_t> bytes;
  const absl::Status error = ResizeRanks(all, num_blocks, &bytes);
  if (!error.ok()) {
    if (!latch_.status().ok()) return error;
    const absl::Status undone = ResizeRanks(all, num_before, &bytes);
    if (!undone.ok()) {
      latch_.Fail(absl::UnavailableError(absl::StrCat("the KV cache may have different sizes on the ranks (",
                                                      error.message(), "): ", undone.message())));
    }
    return error;
  }
  TransitionReport report;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    report.ranks.emplace_back().rank = static_cast<int>(rank);
    report.ranks.back().tags[kKvCacheTag].resident_bytes = bytes[rank];
  }
  return report;
}

absl::Status GroupEpoch::SetKvCacheSize(const std::vector<v1::WorkerSnapshot>& snapshots,
                                        int32_t num_blocks) {
  Ranks others;
  for (const v1::WorkerSnapshot& snapshot : snapshots)
    others.push_back((snapshot.num_mapped_blocks() > 0 ? snapshot.num_mapped_blocks()
                                                       : snapshot.num_blocks()) != num_blocks);
  std::vector<int64_t> bytes;
  return NumIn(others) == 0 ? absl::OkStatus() : ResizeRanks(others, num_blocks, &bytes);
}

}  // namespace somnus
