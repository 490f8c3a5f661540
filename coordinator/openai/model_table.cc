#include "coordinator/openai/model_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/adapters/adapter_registry.h"
#include "coordinator/openai/word_speller.h"

namespace somnus {
namespace {

constexpr size_t kMaxNames = 8;

std::string JoinNames(const std::vector<std::string>& names) {
  const auto end = names.begin() + static_cast<ptrdiff_t>(std::min(names.size(), kMaxNames));
  return absl::StrCat(absl::StrJoin(names.begin(), end, ", "), names.size() > kMaxNames ? ", ..." : "");
}

}  // namespace

ModelTable::ModelTable(std::function<StateReport()> starting) : starting_(std::move(starting)) {}

StateReport ModelTable::Starting() const {
  if (starting_) return starting_();
  return {.what = WhyNotReady(EngineState::kLoading),
          .why = "the server has started",
          .since = start_,
          .way_out = "it ends by itself"};
}

void ModelTable::Set(std::vector<ServedModel> models) {
  std::vector<std::string> all_names;
  for (const ServedModel& model : models) {
    all_names.push_back(model.name);
    all_names.insert(all_names.end(), model.aliases.begin(), model.aliases.end());
  }
  const std::string listed = JoinNames(all_names);
  std::vector<SharedModel> shared;
  for (ServedModel& model : models) {
    model.max_token_bytes = LongestToken(*model.tokenizer);
    model.all_names = listed;
    if (model.word_speller == nullptr) model.word_speller = std::make_shared<WordSpeller>(model.tokenizer);
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
  const std::vector<SharedModel> models = All();
  for (const SharedModel& model : models) {
    if (model->HasName(name)) return model;
  }
  for (const SharedModel& model : models) {
    if (model->adapters == nullptr || !model->adapters->Knows(std::string(name))) continue;
    auto named = std::make_shared<ServedModel>(*model);
    named->name = std::string(name);
    named->aliases.clear();
    named->parent = model->name;
    named->is_adapter = true;
    return named;
  }
  return nullptr;
}

bool ModelTable::HasSeveralNames() const {
  absl::MutexLock lock(&mutex_);
  return models_.size() > 1 || std::any_of(models_.begin(), models_.end(), [](const SharedModel& model) {
           return model->adapters != nullptr;
         });
}

std::vector<SharedModel> ModelTable::All() const {
  absl::MutexLock lock(&mutex_);
  return models_;
}

std::string ModelNames(const std::vector<SharedModel>& models) {
  return models.empty() ? "" : models.front()->all_names;
}

}  // namespace somnus
