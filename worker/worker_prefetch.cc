// The Worker's part for weights that are read ahead of a wake-up.
#include <utility>

#include "absl/strings/str_cat.h"
#include "allocator/host_memory.h"
#include "base/status_macros.h"
#include "worker/worker.h"

namespace somnus {

absl::StatusOr<v1::PrefetchResponse> Worker::Prefetch(const v1::PrefetchRequest& request) {
  using Response = absl::StatusOr<v1::PrefetchResponse>;
  return InEpoch<Response>(request.group_epoch(), [&] { return DoPrefetch(request.cpu_share()); });
}

absl::StatusOr<v1::PrefetchResponse> Worker::DoPrefetch(double cpu_share) {
  if (!(cpu_share >= 0 && cpu_share <= 1))
    return absl::InvalidArgumentError(absl::StrCat("cpu_share: ", cpu_share, " is not from 0 to 1"));
  v1::PrefetchResponse response;
  const bool sleeps = weights_.discarded() || checkpoint_backup_.in_use();
  const bool reads = sleeps && weights_.in_checkpoint() && !prepared_.has_value();
  if (!reads) return response;
  if (prefetch_ == nullptr) {
    ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                     parts_.open_checkpoint(load_request_.model_path(), load_format_));
    ASSIGN_OR_RETURN(std::vector<FileRange> ranges, runner_->WeightRanges(*checkpoint));
    // What is read must still be there at the wake-up, beside what other processes read meanwhile.
    WeightPrefetchOptions options{.max_bytes = AvailableHostMemory() / 2};
    if (cpu_share > 0) options.cpu_share = cpu_share;
    prefetch_ = std::make_unique<WeightPrefetch>(std::move(checkpoint), std::move(ranges), options);
  }
  response.set_num_bytes(prefetch_->num_bytes());
  return response;
}

}  // namespace somnus
