#include "coordinator/membership/adoption.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace somnus {
namespace {

Adoption Reset(const std::string& reason) { return {v1::REGISTER_ACTION_RESET, reason}; }

Adoption Differs(absl::string_view what, absl::string_view held, absl::string_view wanted) {
  return Reset(absl::StrCat(what, ": the worker's is ", held.substr(0, 12), ", this coordinator's is ",
                            wanted.substr(0, 12)));
}

}  // namespace

Adoption DecideAdoption(const v1::RegisterRequest& worker, int32_t rank, const AdoptionTerms& terms) {
  const v1::WorkerSnapshot& held = worker.snapshot();
  const int32_t world_size = static_cast<int32_t>(terms.options_digests.size());
  if (rank >= world_size) {
    return {v1::REGISTER_ACTION_LEAVE,
            absl::StrCat("rank: ", rank, " is not among the ", world_size, " of this coordinator")};
  }
  if (!terms.build_id.empty() && worker.build_id() != terms.build_id)
    return Differs("build_id", worker.build_id(), terms.build_id);
  if (rank >= 0 && worker.device_type() == v1::DEVICE_TYPE_CUDA && !terms.device_indices.empty() &&
      worker.device_index() != terms.device_indices[rank]) {
    return Reset(absl::StrCat("device_index: it is ", worker.device_index(), ", rank ", rank, " runs on ",
                              terms.device_indices[rank]));
  }
  if (held.weights_stale()) return Reset("weights_version: the worker's weights are stale");
  if (held.weights_version() == 0 && held.group_epoch() > 0)
    return Reset("state: nobody knows what it is loading");
  if (held.weights_version() == 0) return {};
  // The KV cache would begin asleep in a group that may be awake, and memory that sleeps cannot be measured.
  if (held.num_blocks() == 0 && held.sleep_level() > 0)
    return Reset("state: the worker was loaded for a group that slept, and has no KV cache yet");
  if (held.world_size() != world_size || held.rank() != rank) {
    return Reset(absl::StrCat("rank: the weights are those of rank ", held.rank(), " of ", held.world_size(),
                              ", not of ", rank, " of ", world_size));
  }
  if (held.checkpoint_fingerprint() != terms.checkpoint_fingerprint)
    return Differs("checkpoint_fingerprint", held.checkpoint_fingerprint(), terms.checkpoint_fingerprint);
  if (held.options_digest() != terms.options_digests[rank])
    return Differs("options_digest", held.options_digest(), terms.options_digests[rank]);
  if (held.weights_version() != terms.weights_version)
    return Differs("weights_version", absl::StrCat(held.weights_version()),
                   absl::StrCat(terms.weights_version));
  return {};
}

Adoption DecideAdoption(const v1::RegisterRequest& worker, const AdoptionTerms& terms) {
  if (worker.snapshot().weights_version() > 0) {
    return DecideAdoption(worker, worker.snapshot().rank(), terms);
  }
  return DecideAdoption(worker, worker.has_preferred_rank() ? worker.preferred_rank() : -1, terms);
}

}  // namespace somnus
