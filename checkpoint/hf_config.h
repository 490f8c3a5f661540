#pragma once
// config.json and generation_config.json of a Hugging Face directory -> ModelConfig.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/model_config.h"

namespace somnus {

// `generation_text` may be empty: there is no generation_config.json. InvalidArgument: damaged or
// contradictory; Unimplemented: an architecture, rope, quantization or option that this version does not
// support. Both name file and key.
absl::StatusOr<ModelConfig> ParseHfConfig(absl::string_view config_text, absl::string_view generation_text);

// Reads both files from `directory`.
absl::StatusOr<ModelConfig> ReadHfConfig(const std::string& directory);

// Checks the rules for every source of a configuration: sizes that fit each other, ids inside the vocabulary.
absl::Status ValidateConfig(const std::string& file, const ModelConfig& config);

}  // namespace somnus
