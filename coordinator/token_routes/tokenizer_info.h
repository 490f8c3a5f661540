#pragma once
// GET /tokenizer_info: the settings of a model's tokenizer. Pure function; thread safe.

#include <nlohmann/json_fwd.hpp>

#include "coordinator/openai/served_model.h"

namespace somnus {

// As vLLM, which answers with what tokenizer_config.json has, and the tokenizer's class. The settings are
// those in use, also of a GGUF file, which has no such file. chat_template: a text, or a list of named
// templates.
nlohmann::ordered_json TokenizerInfo(const ServedModel& model);

}  // namespace somnus
