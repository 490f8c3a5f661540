#pragma once
// Loading and unloading of adapters (LoRA) for operators: the rules that HTTP and gRPC share. Thread safe.
// Both calls block until all ranks have replied; an unload waits for the adapter's open requests, too.
//
// A path is read on the workers' hosts: only operators' listeners have these calls.

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/http/api_error.h"
#include "coordinator/openai/model_table.h"

namespace somnus {

struct AdapterLoad {
  std::string name;
  std::string path;       // a directory on the workers' hosts
  bool in_place = false;  // takes the place of an adapter of the name
};

// How long the call took. Errors as AdapterRegistry; FailedPrecondition: the server was started without
// --enable-lora. `models`: all served models, none of which has the adapter's name.
absl::StatusOr<absl::Duration> LoadAdapter(const ModelTable& models, const ServedModel& model,
                                           const AdapterLoad& load);
absl::StatusOr<absl::Duration> UnloadAdapter(const ServedModel& model, const std::string& name);

// The HTTP error of either call: a name or an adapter that cannot be is a 400, as in vLLM.
ApiError AdapterError(const absl::Status& status, const Engine& engine);

}  // namespace somnus
