#pragma once
// Prometheus metrics under vLLM's names (labels model_name, engine), plus metrics of our own under somnus:*.
//
// Ownership: owns its registry. Thread safety: all methods are thread safe and never block for long; the
// EngineObserver methods are made for the engine's loop thread.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/engine/engine_observer.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/metrics/adapter_numbers.h"
#include "coordinator/metrics/grammar_numbers.h"

namespace somnus {

// Facts for vllm:cache_config_info; set once the cache exists.
struct CacheConfigInfo {
  int32_t block_size = 0;
  int32_t total_blocks = 0;  // without the null block
  bool enable_prefix_caching = true;
  std::string cache_dtype = "auto";
};

// A counter of the process that somebody else keeps, without a model's label.
struct CounterSource {
  std::string name;
  std::string help;
  std::map<std::string, std::string> labels;
  std::function<int64_t()> count;  // since the start; called on any thread, and must not block
};

// An answer that had a parser of tool calls.
struct ParsedAnswer {
  bool streams = false;
  bool has_calls = false;
  std::string request_type;  // "chat_completions", "responses" or "other"
};

class Metrics : public EngineObserver {
 public:
  // Buckets of token counts end at max_model_len. `beside`: another model's metrics, to share their registry;
  // null: a registry of its own.
  static std::unique_ptr<Metrics> Create(const std::string& model_name, int32_t max_model_len,
                                         const Metrics* beside = nullptr);

  virtual void SetCacheConfig(const CacheConfigInfo& info) = 0;

  // The API layer reports the following events. `choices` is n, `max_tokens` the resolved value.
  virtual void OnRequestParams(int32_t choices, int32_t max_tokens) = 0;
  // Seconds between two deliveries of one sequence.
  virtual void OnInterTokenLatency(double seconds) = 0;
  // A sequence has ended, in the client's view: a stop string counts as kStop, though the engine saw an
  // abort.
  virtual void OnSequenceEnd(FinishReason reason) = 0;
  // `reason`: "queue_full", "asleep", "bad_request", ...; `status`: the engine's, where the engine has
  // refused.
  virtual void OnRejected(const std::string& reason, const absl::Status& status = absl::OkStatus()) = 0;
  // An answer was taken apart into content and tool calls: a choice of a response has ended.
  virtual void OnAnswerParsed(const ParsedAnswer& answer) = 0;
  // A grammar was compiled, or refused.
  virtual void OnGrammarCompiled(absl::Duration duration) = 0;
  // An operator's call has begun and ended: "sleep", "release_kv_cache_memory" or "wake".
  virtual void OnSleepOperationBegan(const std::string& operation) = 0;
  virtual void OnSleepOperationEnded(const std::string& operation, absl::Duration duration,
                                     bool succeeded) = 0;
  virtual void OnHttpRequest(const std::string& handler, const std::string& method, int status,
                             double seconds) = 0;

  // A decision of residency_policy.h about this model, by the names used there.
  virtual void OnResidencyDecision(const std::string& action, const std::string& reason) = 0;
  // A model that slept has woken for a request: how long the request waited for room, and for the wake-up.
  virtual void OnModelSwitch(absl::Duration room, absl::Duration wake_up) = 0;

  // From now on each scrape asks the source for its count.
  virtual void AddSource(CounterSource source) = 0;
  // Take over the numbers that the cache of grammars, the registry of adapters and the engine keep
  // themselves.
  virtual void UpdateGrammars(const GrammarNumbers& numbers) = 0;
  virtual void UpdateAdapters(const AdapterNumbers& numbers) = 0;
  virtual void Update(const EngineStats& stats) = 0;
  // Returns all metrics of the registry in Prometheus' text format 0.0.4.
  virtual std::string Serialize() = 0;
  std::string Serialize(const EngineStats& stats) {
    Update(stats);
    return Serialize();
  }
};

}  // namespace somnus
