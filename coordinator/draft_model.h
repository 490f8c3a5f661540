#pragma once
// The conditions under which the model of --draft-model can guess for the served model.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"

namespace somnus {

// Opens the draft model at `path` and returns its configuration. An error names --draft-model: as
// Checkpoint::Open, or InvalidArgument where the vocabulary is not the vocabulary of `model`, or where the
// draft model has no positions for max_model_len tokens. A tokenizer that cannot be read is not compared.
// `log_name` is at the front of log lines.
absl::StatusOr<ModelConfig> CheckDraftModel(const std::string& path, LoadFormat format,
                                            const Checkpoint& model, int32_t max_model_len,
                                            const std::string& log_name = "");

}  // namespace somnus
