#include "coordinator/replicas/replica_prefixes.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace somnus {
namespace {

class ReplicaPrefixes : public PinnedPrefixes {
 public:
  explicit ReplicaPrefixes(std::vector<PinnedPrefixes*> replicas) : replicas_(std::move(replicas)) {}

  absl::StatusOr<PinnedPrefix> Pin(const PrefixRequest& request) override {
    absl::MutexLock lock(&mu_);
    absl::StatusOr<PinnedPrefix> pinned;
    for (size_t i = 0; i < replicas_.size(); ++i) {
      absl::StatusOr<PinnedPrefix> one = replicas_[i]->Pin(request);
      if (!one.ok()) {
        // All have the same pins, so that each of them has given it the same id.
        for (size_t before = 0; before < i; ++before) replicas_[before]->Withdraw(pinned->id);
        return one;
      }
      if (i > 0) one->num_held = std::min(one->num_held, pinned->num_held);
      pinned = std::move(one);
    }
    return pinned;
  }

  void Withdraw(const std::string& id) override {
    absl::MutexLock lock(&mu_);
    for (PinnedPrefixes* replica : replicas_) replica->Withdraw(id);
  }

  absl::Status Unpin(const std::string& id) override {
    absl::MutexLock lock(&mu_);
    absl::Status status;
    for (PinnedPrefixes* replica : replicas_) status.Update(replica->Unpin(id));
    return status;
  }

  std::vector<PinnedPrefix> List() const override {
    absl::MutexLock lock(&mu_);
    std::vector<PinnedPrefix> prefixes = replicas_.front()->List();
    for (size_t i = 1; i < replicas_.size(); ++i) {
      const std::vector<PinnedPrefix> others = replicas_[i]->List();
      for (size_t k = 0; k < prefixes.size(); ++k)
        prefixes[k].num_held = std::min(prefixes[k].num_held, others[k].num_held);
    }
    return prefixes;
  }

 private:
  const std::vector<PinnedPrefixes*> replicas_;
  mutable absl::Mutex
      mu_;  // held during every call, so that all replicas have the same pins in the same order
};

}  // namespace

std::unique_ptr<PinnedPrefixes> MakeReplicaPrefixes(std::vector<PinnedPrefixes*> replicas) {
  return std::make_unique<ReplicaPrefixes>(std::move(replicas));
}

}  // namespace somnus
