#pragma once
// The model that the APIs serve, as they need it. Plain data, copied by value; the pointees are shared and thread safe.

#include <cstdint>
#include <memory>
#include <string>

#include "checkpoint/model_config.h"
#include "coordinator/engine/engine.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace somnus {

class ChatTemplate;

struct ServedModel {
  std::string name;  // what clients call it (--served-model-name)
  std::shared_ptr<Engine> engine;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: chat requests are refused with a 400
  ModelConfig config;
  bool generation_defaults = true;  // sampling defaults from generation_config.json, as vLLM's --generation-config auto
};

}  // namespace somnus
