#pragma once
// The model that the APIs serve, as they need it. Plain data, copied by value; the pointees are shared and
// thread safe.

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
  int32_t max_token_bytes = 0;  // LongestToken(*tokenizer); set by the servers
  std::string kv_cache_dtype;   // what the KV cache holds, for status
  bool generation_defaults =
      true;  // sampling defaults from generation_config.json, as vLLM's --generation-config auto
};

// Bytes of text that one token can stand for, at most: what bounds a prompt before it is tokenized.
int32_t LongestToken(const Tokenizer& tokenizer);

}  // namespace somnus
