#include "coordinator/operators/adapter_calls.h"

#include "absl/strings/str_cat.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "coordinator/adapters/adapter_registry.h"
#include "coordinator/operators/lifecycle_calls.h"

namespace somnus {
namespace {

absl::Status CheckEnabled(const ServedModel& model) {
  if (model.adapters != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError("adapters: the server was started without --enable-lora");
}

// Names of models and of adapters are one space of names.
absl::Status CheckName(const ModelTable& models, const ServedModel& model, const std::string& name) {
  const SharedModel other = models.Find(name);
  if (other == nullptr || other->parent == model.name) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "lora_name: '", name, "' is ", other->is_adapter ? "an adapter of another model" : "a served model"));
}

}  // namespace

absl::StatusOr<absl::Duration> LoadAdapter(const ModelTable& models, const ServedModel& model,
                                           const AdapterLoad& load) {
  const MonotonicTime start = MonotonicNow();
  RETURN_IF_ERROR(CheckEnabled(model));
  RETURN_IF_ERROR(CheckName(models, model, load.name));
  RETURN_IF_ERROR(model.adapters->Load(load.name, load.path, load.in_place));
  return MonotonicNow() - start;
}

absl::StatusOr<absl::Duration> UnloadAdapter(const ServedModel& model, const std::string& name) {
  const MonotonicTime start = MonotonicNow();
  RETURN_IF_ERROR(CheckEnabled(model));
  RETURN_IF_ERROR(model.adapters->Unload(name));
  return MonotonicNow() - start;
}

ApiError AdapterError(const absl::Status& status, const Engine& engine) {
  ApiError error = LifecycleError(status, engine);
  if (absl::IsAlreadyExists(status) || absl::IsUnimplemented(status)) error.status = 400;
  if (absl::IsResourceExhausted(status)) error.status = 409;
  for (const char* field : {"lora_name", "lora_path"}) {
    if (error.message.rfind(absl::StrCat(field, ":"), 0) == 0) error.param = field;
  }
  return error;
}

}  // namespace somnus
