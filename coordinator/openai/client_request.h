#pragma once
// One client request on its way through the engine: each of the n choices of each prompt, or with best_of
// each of the candidates to become them, becomes an engine request, and a beam search of a prompt, whose
// answers are the choices, becomes one; their outputs are collected, and become text off the engine's loop.
//
// Threads: Submit, Take and the accessors are for one thread at a time, the consumer's. Take turns ids into
// text and searches stop strings, so it runs neither on an I/O thread nor on the engine's: over HTTP it runs
// on the output threads, over gRPC on the call's own thread. Abort may come from any thread. `on_ready` is
// called on the engine's thread when there is something to Take after there was nothing; it must be cheap.
// Errors of Submit are the engine's. A ClientRequest that is destroyed before its end aborts the sequences
// that are left, and counts each in request_success_total as aborted. When more than `max_queued_bytes` of
// outputs wait, all sequences are aborted and overflowed() turns true.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/output_processor.h"
#include "coordinator/openai/output_queue.h"
#include "coordinator/openai/served_model.h"

namespace somnus {

class BestOf;
class Metrics;

struct ChoiceUpdate {
  int32_t index;  // prompt * n + choice
  OutputDelta delta;
};

class ClientRequest {
 public:
  // `params` must outlive the ClientRequest. `metrics` may be null.
  ClientRequest(std::shared_ptr<const ServedModel> model, const GenerateParams* params,
                std::shared_ptr<Metrics> metrics, int64_t max_queued_bytes);
  ~ClientRequest();
  ClientRequest(const ClientRequest&) = delete;
  ClientRequest& operator=(const ClientRequest&) = delete;

  // Submits all choices or none. To be called once.
  absl::Status Submit(std::function<void()> on_ready);
  // Returns what the engine has made since the last call, as text, in order per choice. Not before Submit.
  std::vector<ChoiceUpdate> Take();
  void Abort();

  bool done() const { return open_ == 0; }
  bool overflowed() const { return queue_->overflowed(); }  // not before Submit

  // Totals so far; final when done().
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t completion_tokens() const { return completion_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  // Of outputs that were taken from the engine and that Take holds back.
  int64_t held_bytes() const;

 private:
  class Sink;
  class BeamSink;
  // Or a candidate, of which index / num_candidates() is the prompt, too.
  struct Choice {
    std::string engine_id;  // empty: another choice's request makes it
    OutputProcessor processor;
    absl::Time last_output = absl::InfinitePast();
    bool counted_cache = false;
  };
  bool HasBeams() const { return params_->sampling.beam_search.has_value(); }
  EngineRequest MakeRequest(int32_t index, const PromptIds& ids,
                            const std::shared_ptr<const SamplingParams>& sampling) const;
  ChoiceUpdate Process(int32_t index, RequestOutput output);
  void LeaveOpenRequests();

  const std::shared_ptr<const ServedModel> model_;
  const GenerateParams* const params_;
  const std::shared_ptr<Metrics> metrics_;
  const int64_t max_queued_bytes_;
  std::shared_ptr<OutputQueue> queue_;  // set by Submit
  std::vector<Choice> choices_;
  std::unique_ptr<BestOf> best_of_;  // null: every candidate is a choice
  int32_t open_ = 0;
  int64_t open_request_ = 0;  // its key among the model's open requests; 0: it is not there
  std::atomic<bool> aborted_{false};
  int64_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  int64_t cached_tokens_ = 0;
};

}  // namespace somnus
