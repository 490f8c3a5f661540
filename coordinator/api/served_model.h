#pragma once
// What the APIs need of the model that they serve. Plain data; the pointees are shared and thread safe.

#include <cstdint>
#include <memory>
#include <string>

#include "checkpoint/model_config.h"
#include "coordinator/api/open_requests.h"
#include "coordinator/engine/engine.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace somnus {

class ChatTemplate;

struct ServedModel {
  std::string name;  // what clients call it (--served-model-name)
  std::shared_ptr<Engine> engine;
  std::shared_ptr<OpenRequests> open_requests = std::make_shared<OpenRequests>();  // of all listeners
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;  // null: chat requests are refused with a 400
  ModelConfig config;
  int32_t max_token_bytes = 0;  // LongestToken(*tokenizer); ModelSlot sets it
  std::string kv_cache_dtype;   // for GetStatus
  bool generation_defaults =
      true;  // sampling defaults from generation_config.json, as vLLM's --generation-config auto
};

// Returns the most bytes of text that one token can stand for; it bounds a prompt before it is tokenized.
int32_t LongestToken(const Tokenizer& tokenizer);

}  // namespace somnus
