#pragma once
// The parts and facts of a served model that the APIs need. Plain data; the pointees are shared and thread
// safe.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "checkpoint/model_config.h"
#include "coordinator/engine/engine.h"
#include "coordinator/openai/answer_format.h"
#include "coordinator/openai/open_requests.h"
#include "coordinator/openai/request_history.h"
#include "coordinator/request/pooling_options.h"
#include "coordinator/residency/rank_checksums.h"
#include "coordinator/residency/weight_labels.h"
#include "coordinator/structured/gate_options.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tools/template_traits.h"

namespace somnus {

class AdapterRegistry;
class ChatTemplate;
class ForcedTokenizer;
class GrammarCache;
class KvEventLog;
class LatencySums;
class Metrics;
class StepTrace;
class WordSpeller;
namespace v1 {
class RankStatus;
}

// Compiled chat templates. A null template has a problem, which clients are shown, or does not exist.
struct ModelTemplates {
  std::shared_ptr<const ChatTemplate> chat;  // null: chat requests are refused with a 400
  std::string chat_problem;
  std::shared_ptr<const ChatTemplate> tools;  // of requests with tools; null without a problem: use `chat`
  std::string tools_problem;
};

struct ServedModel {
  std::string name;                  // the name that clients use (--served-model-name)
  std::vector<std::string> aliases;  // further names, under which clients may ask for the model
  std::string all_names;             // of all served models, for messages; set by ModelTable
  std::shared_ptr<Engine> engine;
  std::shared_ptr<AdapterRegistry> adapters;  // null: the model takes no adapters
  // Set where clients name an adapter like a model (ModelTable::Find): `name` is the adapter's, and `parent`
  // the model's name.
  bool is_adapter = false;
  std::string parent;
  std::shared_ptr<OpenRequests> open_requests = std::make_shared<OpenRequests>();  // of all listeners
  std::shared_ptr<RequestHistory> history = std::make_shared<RequestHistory>();    // of all listeners
  int32_t max_request_events = 64;  // kept in the trail of one request (request_trail.h)
  std::shared_ptr<const Tokenizer> tokenizer;
  ModelTemplates templates;
  TurnFormat turn_format;  // of chat answers, by the template and by flags
  ArgumentsForm arguments_form =
      ArgumentsForm::kObject;  // in which the template takes the calls of a conversation
  // Variables of the template where a request does not set them: a JSON object; null: none.
  std::shared_ptr<const nlohmann::ordered_json> default_template_kwargs;
  bool auto_tool_choice = true;  // tools may be called where the request does not force a call
  PoolingOptions pooling;
  std::shared_ptr<GrammarCache> grammars;  // of the tokenizer's vocabulary; null: no structured outputs
  std::shared_ptr<const ForcedTokenizer> forced_tokenizer;  // null: grammars force no drafts
  std::string grammar_problem;                              // why there are none, for clients
  GateOptions gate;                                         // of the schemas of structured outputs
  std::shared_ptr<Metrics> metrics;                         // null: the API's own metrics
  std::shared_ptr<const StepTrace> trace;                   // of the engine's steps; null: no trace
  std::shared_ptr<const LatencySums> latencies;             // of the engine; null: nobody adds up
  std::shared_ptr<KvEventLog> kv_events;                    // of the prefix caches; null: events are off
  // The note of GetStatus as long as the weights have first_weights_version (served_weights.h); or empty.
  std::string weights_note;
  int64_t first_weights_version = 1;
  // For /collective_rpc and GetStatus; may be empty. Called on a thread that may block.
  std::function<std::vector<v1::RankStatus>()> rank_status;
  // For /weight_checker; may be empty. Blocks while the ranks read their weights; the errors are for
  // operators.
  std::function<absl::StatusOr<ModelChecksums>()> weight_checksums;
  std::shared_ptr<ChecksumSnapshot> weight_snapshot =
      std::make_shared<ChecksumSnapshot>();                                        // of all listeners
  std::shared_ptr<WeightLabels> weight_labels = std::make_shared<WeightLabels>();  // of all listeners
  ModelConfig config;
  int32_t max_token_bytes = 0;                      // LongestToken(*tokenizer); set by ModelTable
  std::shared_ptr<const WordSpeller> word_speller;  // of the tokenizer; ModelTable replaces null
  std::string kv_cache_dtype;                       // for GetStatus
  std::string dtype;                                // of weights, for gateways: "bfloat16"
  int32_t max_num_seqs = 0;                         // that run at once in each replica
  // The directory with the tokenizer's files, for gateways; empty: the model is one file.
  std::string tokenizer_folder;
  std::string chat_template;  // in place of the files' own, for gateways; empty: the files' own
  std::string engine_config;  // for /server_info: a JSON object of objects; empty: nothing is known
  int32_t world_size = 1;     // of each replica
  // Where several models are served, for ListModelStatus. Targets: 0 is none.
  bool pinned = false;
  int32_t priority = 0;
  absl::Duration ttft_target, tpot_target;
  bool generation_defaults =
      true;  // sampling defaults from generation_config.json, as vLLM's --generation-config auto

  bool HasName(absl::string_view asked) const {
    return asked == name || std::find(aliases.begin(), aliases.end(), asked) != aliases.end();
  }
};

// Returns the most bytes of text that one token can stand for; the number bounds a prompt before the prompt
// is tokenized.
int32_t LongestToken(const Tokenizer& tokenizer);

}  // namespace somnus
