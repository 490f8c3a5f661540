#include "coordinator/operators/call_bounds.h"

#include "absl/strings/str_cat.h"

namespace somnus {

absl::StatusOr<CallBounds::Place> CallBounds::Enter(const std::string& kind, const std::string& model) {
  Place::Key key(kind, model);
  absl::MutexLock lock(&mu_);
  int32_t& count = counts_[key];
  if (count >= most_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        most_, " calls of ", kind, model.empty() ? "" : absl::StrCat(" of ", model),
        " are under way or wait, and no more may (--max-lifecycle-calls); status names what they wait for"));
  }
  ++count;
  return Place(this, std::move(key));
}

void CallBounds::Leave(const Place::Key& key) {
  absl::MutexLock lock(&mu_);
  const auto found = counts_.find(key);
  if (--found->second == 0) counts_.erase(found);
}

}  // namespace somnus
