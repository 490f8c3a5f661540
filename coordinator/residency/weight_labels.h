#pragma once
// Labels: the names that a trainer gives to its weights, such as "step-12". The version of the weights, a
// number that the engine counts, says which weights there are; a label says how clients read the version of
// tokens from now on. Labels are kept by the coordinator alone. A version without a label is called by its
// number.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace somnus {

inline constexpr size_t kMaxWeightLabelBytes = 128;

// Of the versions that were given a label last. Thread safe.
class WeightLabels {
 public:
  static constexpr size_t kMaxLabels = 16;  // more than one version is in use only while replicas change

  void Set(int64_t version, std::string label) {
    absl::MutexLock lock(&mu_);
    std::erase_if(labels_, [&](const auto& entry) { return entry.first == version; });
    labels_.emplace_back(version, std::move(label));
    if (labels_.size() > kMaxLabels) labels_.erase(labels_.begin());
  }
  std::string NameOf(int64_t version) const {
    absl::MutexLock lock(&mu_);
    for (const auto& [labelled, label] : labels_) {
      if (labelled == version) return label;
    }
    return absl::StrCat(version);
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<std::pair<int64_t, std::string>> labels_ ABSL_GUARDED_BY(mu_);  // the latest last
};

}  // namespace somnus
