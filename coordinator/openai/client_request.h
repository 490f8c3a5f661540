#pragma once
// A client's request on the way through the engine. Each of the n choices of each prompt becomes an engine
// request; with best_of, each candidate for the choices does. A beam search of a prompt, which has the
// choices as its answers, is a single engine request. The outputs are collected, and become text off the
// engine's loop.
//
// Threads: Submit, Take and the accessors are for one thread at a time, the consumer's. Take turns ids into
// text and searches stop strings, so Take runs neither on an I/O thread nor on the engine's: over HTTP on the
// output threads, over gRPC on the call's own thread. Abort may come from any thread. `on_ready` is called on
// the engine's thread when there is something to Take after there was nothing, and must be cheap. Errors of
// Submit are the engine's. A ClientRequest that is destroyed before its end aborts the open sequences, and
// counts each in request_success_total as aborted. When more than `max_queued_bytes` of outputs wait, all
// sequences are aborted and overflowed() turns true.

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
#include "coordinator/openai/turn_reader.h"
#include "coordinator/request/request_summary.h"

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
  // Returns the engine's output since the last call, as text, in order per choice. Not before Submit.
  std::vector<ChoiceUpdate> Take();
  void Abort();

  bool done() const { return open_ == 0; }
  bool overflowed() const { return queue_->overflowed(); }  // not before Submit

  // Totals so far; final when done().
  int64_t prompt_tokens() const { return prompt_tokens_; }
  int64_t completion_tokens() const { return completion_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  // Brings the numbers and moments of a summary up to date; the texts of the request are there from the
  // beginning (NewSummary).
  RequestSummary NewSummary() const;
  void UpdateSummary(RequestSummary* summary) const;
  // The bytes of outputs that were taken from the engine and that Take holds back.
  int64_t held_bytes() const;

 private:
  class Sink;
  class BeamSink;
  // Or a candidate, of which index / num_candidates() is the prompt, too.
  struct Choice {
    std::string engine_id;  // empty: the request of a different choice makes this choice
    OutputProcessor processor;
    std::unique_ptr<TurnReader> turn;  // null: the text is the answer
    absl::Time last_output = absl::InfinitePast();
    bool counted_cache = false;
    bool has_calls = false;  // of tools
  };
  bool HasBeams() const { return params_->sampling.beam_search.has_value(); }
  EngineRequest MakeRequest(int32_t index, const PromptIds& ids,
                            const std::shared_ptr<const SamplingParams>& sampling) const;
  // An answer that is taken apart gives an update for each token.
  void Process(OutputQueue::Queued queued, std::vector<ChoiceUpdate>* updates);
  ChoiceUpdate ProcessOne(int32_t index, RequestOutput output);
  void CountEnd(const Choice& choice, FinishReason reason);
  void NoteMoments(const RequestMoments& moments);
  void LeaveOpenRequests();
  std::shared_ptr<RequestTrail> NewTrail() const;

  const std::shared_ptr<const ServedModel> model_;
  const GenerateParams* const params_;
  const std::shared_ptr<Metrics> metrics_;
  const int64_t max_queued_bytes_;
  std::shared_ptr<OutputQueue> queue_;  // set by Submit
  std::vector<Choice> choices_;
  std::unique_ptr<BestOf> best_of_;  // null: every candidate is a choice
  int32_t open_ = 0;
  int64_t open_request_ = 0;             // the key among the model's open requests; 0: not there
  std::shared_ptr<RequestTrail> trail_;  // null before Submit
  std::atomic<bool> aborted_{false};
  int64_t prompt_tokens_ = 0;
  int64_t completion_tokens_ = 0;
  int64_t cached_tokens_ = 0;
  int64_t reasoning_tokens_ = 0;
  // By the wall clock, as in RequestSummary.
  absl::Time arrival_ = absl::InfinitePast();
  RequestMoments moments_;
  absl::Time ended_ = absl::InfinitePast();
  const char* finish_reason_ = "";
};

}  // namespace somnus
