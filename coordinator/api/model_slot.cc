#include "coordinator/api/model_slot.h"

#include <utility>

namespace somnus {

void ModelSlot::Set(ServedModel model) {
  model.max_token_bytes = LongestToken(*model.tokenizer);
  absl::MutexLock lock(&mutex_);
  model_ = std::make_shared<const ServedModel>(std::move(model));
}

std::shared_ptr<const ServedModel> ModelSlot::Get() const {
  absl::MutexLock lock(&mutex_);
  return model_;
}

}  // namespace somnus
