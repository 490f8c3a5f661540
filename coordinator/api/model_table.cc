#include "coordinator/api/model_table.h"

#include <utility>

namespace somnus {
void ModelTable::Set(std::vector<ServedModel> models) {
  std::vector<SharedModel> shared;
  for (ServedModel& model : models) {
    model.max_token_bytes = LongestToken(*model.tokenizer);
    shared.push_back(std::make_shared<const ServedModel>(std::move(model)));
  }
  absl::MutexLock lock(&mutex_);
  models_ = std::move(shared);
}

SharedModel ModelTable::Get() const {
  absl::MutexLock lock(&mutex_);
  return models_.empty() ? nullptr : models_.front();
}

SharedModel ModelTable::Find(absl::string_view name) const {
  absl::MutexLock lock(&mutex_);
  for (const SharedModel& model : models_) {
    if (model->name == name) return model;
  }
  return nullptr;
}

std::vector<SharedModel> ModelTable::All() const {
  absl::MutexLock lock(&mutex_);
  return models_;
}

}  // namespace somnus
