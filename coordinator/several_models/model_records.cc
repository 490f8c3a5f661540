#include "coordinator/several_models/model_records.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/residency/declined.h"

namespace somnus {

ModelRecord* ModelRecords::Add(SharingModel options) {
  absl::MutexLock lock(&mu);
  const int index = static_cast<int>(models_.size());
  return models_.emplace_back(std::make_unique<ModelRecord>(index, std::move(options), options_)).get();
}

std::vector<ModelView> ModelRecords::Views() {
  const MonotonicTime time = now();
  std::vector<ModelView> views;
  for (const std::unique_ptr<ModelRecord>& model : models_)
    views.push_back(model->View(time, options_.kv_hold));
  return views;
}

std::string ModelRecords::AwakeNames() const {
  std::string names;
  for (const std::unique_ptr<ModelRecord>& model : models_) {
    if (model->engine != nullptr && IsResident(model->engine->state()))
      absl::StrAppend(&names, names.empty() ? "" : ", ", model->options.name);
  }
  return names;
}

void ModelRecords::Stop() {
  {
    absl::MutexLock lock(&mu);
    stopped_ = true;
  }
  Wake();
}

MonotonicTime ModelRecords::NextDeadline(MonotonicTime now) const {
  const auto next = deadlines_.upper_bound(now);
  return next == deadlines_.end() ? absl::InfiniteDuration() : *next;
}

absl::Status AboutToEndError() { return DeclinedError("The server is about to end."); }

}  // namespace somnus
