#pragma once
// What the APIs need of the model that they serve. Plain data; the pointees are shared and thread safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "checkpoint/model_config.h"
#include "coordinator/api/open_requests.h"
#include "coordinator/engine/engine.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace somnus {

class ChatTemplate;
class KvEventLog;
class Metrics;
class StepTrace;
class WordSpeller;
namespace v1 {
class RankStatus;
}

// Chat templates, compiled. A null one has a problem, which is shown to clients, or does not exist.
struct ModelTemplates {
  std::shared_ptr<const ChatTemplate> chat;  // null: chat requests are refused with a 400
  std::string chat_problem;
  std::shared_ptr<const ChatTemplate> tools;  // for requests with tools; null without a problem: `chat` is
  std::string tools_problem;
};

struct ServedModel {
  std::string name;       // what clients call it (--served-model-name)
  std::string all_names;  // of all models that are served, for messages; ModelTable sets it
  std::shared_ptr<Engine> engine;
  std::shared_ptr<OpenRequests> open_requests = std::make_shared<OpenRequests>();  // of all listeners
  std::shared_ptr<const Tokenizer> tokenizer;
  ModelTemplates templates;
  std::shared_ptr<Metrics> metrics;        // null: those of the API itself
  std::shared_ptr<const StepTrace> trace;  // of the engine's steps; null: there is none
  std::shared_ptr<KvEventLog> kv_events;   // of the prefix caches; null: events are off
  // For /collective_rpc and GetStatus; may be empty. Called on a thread that may block.
  // Said as long as the weights are those of the beginning (served_weights.h); empty: nothing.
  std::string weights_note;
  int64_t first_weights_version = 1;
  std::function<std::vector<v1::RankStatus>()> rank_status;
  ModelConfig config;
  int32_t max_token_bytes = 0;                      // LongestToken(*tokenizer); ModelTable sets it
  std::shared_ptr<const WordSpeller> word_speller;  // of the tokenizer; ModelTable sets it where it is null
  std::string kv_cache_dtype;                       // for GetStatus
  std::string engine_config;  // for /server_info: a JSON object of objects; empty: nothing is known
  int32_t world_size = 1;     // of each replica
  // Of several models, for ListModelStatus. Targets: 0 is none.
  bool pinned = false;
  int32_t priority = 0;
  absl::Duration ttft_target, tpot_target;
  bool generation_defaults =
      true;  // sampling defaults from generation_config.json, as vLLM's --generation-config auto
};

// Returns the most bytes of text that one token can stand for; it bounds a prompt before it is tokenized.
int32_t LongestToken(const Tokenizer& tokenizer);

}  // namespace somnus
