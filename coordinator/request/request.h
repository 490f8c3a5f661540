#pragma once
// The engine's requests and outputs: token ids in, token ids out. api/output_processor.h turns ids into text.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "coordinator/request/prompt_ids.h"
#include "coordinator/request/request_adapter.h"
#include "coordinator/request/token_constraint.h"

namespace somnus {

class RequestTrail;  // request_trail.h

// When a beam search ends before its last step.
enum class EarlyStopping {
  kNever,      // where the answers are certain; vLLM goes on, and ends with the same answers
  kHeuristic,  // where the best beam, at its present length, is worse than `width` answers
  kAtWidth,    // where the search has `width` answers
};

// A beam search. Numbers have the meaning of vLLM's server.
struct BeamSearchParams {
  int32_t width = 1;  // of beams that go on, and of answers
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kNever;
  std::vector<int32_t>
      eos_token_ids;  // end an answer, unless ignore_eos, and do not count in the answer's length
  bool ignore_eos = false;
  bool includes_eos = false;  // the tokens of an answer include the EOS token that ended the answer
  int32_t num_logprobs = -1;  // alternatives to each token of an answer; -1: no log-probabilities at all
};

// A text that the outputs never complete, by any sequence of tokens. The fields are the same as of BadText in
// proto/step.proto.
struct BadText {
  struct Piece {
    int32_t token_id = 0, from = 0, to = 0;
    friend auto operator<=>(const Piece&, const Piece&) = default;
  };
  int32_t num_bytes = 0;
  std::vector<Piece> pieces;  // sorted
};

// Fully resolved and validated by the API layer; names as in proto/inference.proto. A single record, which is
// never changed, serves every choice and every prompt of a client's request; differences among choices and
// prompts are in EngineRequest.
struct SamplingParams {
  int32_t min_tokens = 0;
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0: off
  float min_p = 0.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  std::map<int32_t, float> logit_bias;
  // These ids end the sequence. Until min_tokens outputs exist they are suppressed.
  std::vector<int32_t> stop_token_ids;  // stop_reason is the id
  std::vector<int32_t> eos_token_ids;   // stop_reason is null; empty under ignore_eos
  int32_t num_logprobs = -1;            // -1: none; 0: the chosen token only
  int32_t num_prompt_logprobs = -1;     // -1: none; a request with prompt log-probabilities adopts no cached
                                        // prefix
  std::vector<int32_t> allowed_token_ids;
  std::vector<std::vector<int32_t>> bad_words;  // the last token never follows the rest
  std::vector<BadText> bad_texts;
  // A beam search uses no other parameter but num_logprobs, which is twice the width; temperature is 0.
  std::optional<BeamSearchParams> beam_search;
};

// Which vector a request gives in the place of tokens, made of the final hidden states of the prompt's
// tokens. As StepPooling of proto/step.proto.
enum class Pooling {
  kNone,  // the request gives tokens
  kLast,
  kCls,
  kMean,
};

enum class FinishReason { kNone, kStop, kLength, kAbort, kError };

struct Logprobs {
  // [0] is the chosen (or given) token, then the likeliest in order.
  std::vector<int32_t> token_ids;
  std::vector<float> logprobs;
  int32_t rank = 0;  // of token_ids[0]; 1 is the likeliest
};

// A beam of a search: the tokens after the prompt.
struct Beam {
  std::vector<int32_t> outputs;
  std::vector<std::shared_ptr<const Logprobs>> logprobs;  // of outputs, when asked for
  double cum_logprob = 0;
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<int32_t> stop_token_id;  // the EOS token that ended the beam
  double score = 0;                      // of an ended beam
};

// How far a beam search has come.
struct BeamState {
  std::vector<Beam> live = {Beam()};  // beams that go on, best first, all of one length
  std::vector<Beam> ended;            // the best ended beams, best first
};

// When a request has got on, by the wall clock. InfinitePast: the moment has not come.
struct RequestMoments {
  absl::Time scheduled = absl::InfinitePast();  // for the first time
  absl::Time first_token = absl::InfinitePast();
  absl::Time last_token = absl::InfinitePast();  // until now
};

// The result of one step for one request. After finish_reason != kNone nothing follows.
struct RequestOutput {
  std::vector<int32_t> token_ids;
  std::vector<Logprobs> logprobs;  // parallel to token_ids when asked for
  // Appended as chunks are computed; position 0 has none (empty vectors).
  std::vector<Logprobs> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<int32_t> stop_token_id;  // the member of stop_token_ids that ended the request
  // The vector of a request that pools, with kStop: as many numbers as the model's hidden size.
  std::vector<float> pooled;
  std::vector<Beam> beams;        // the answers of a beam search that has ended, best first
  absl::Status error;             // with kError: the error for the client
  int32_t num_cached_tokens = 0;  // prompt tokens served by the prefix cache
  int64_t weights_version = 0;    // of the weights that computed the tokens; 0: none, the weights are stale
  std::shared_ptr<const RequestMoments> moments;  // with the first tokens and with the end; else null
};

// Receives a request's outputs, on the engine loop's thread, in order: hand the outputs over and return;
// never block, never call back into the engine from within.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void OnOutput(RequestOutput output) = 0;
};

// The progress of a request that one engine gave away and another engine continues: the client notices
// nothing, and nothing counts twice. A value; the engine that takes the request begins from here.
struct RequestProgress {
  std::vector<int32_t> output_tokens;      // tokens that were delivered
  std::shared_ptr<const BeamState> beams;  // of a beam search; output_tokens are the best beam's, undelivered
  int32_t num_prompt_logprobs = 0;         // positions whose prompt log-probabilities were delivered
  int32_t num_cached_tokens = 0;           // prompt tokens that the prefix cache served at first
  bool was_scheduled = false;
  int64_t num_charged = 0;  // tokens of the prompt for which the user was charged, or that cost nothing
  bool avoids_prefix_cache = false;
  // Failures of the workers, counted as in scheduler/sequence.h.
  int32_t num_failures = 0;
  int64_t num_tokens_at_failure = 0;
  bool runs_alone = false;
  // For the priority policy, as in waiting_queue.h.
  int64_t effective_priority = 0;
  int64_t waited_steps = 0;
  RequestMoments moments;
  int32_t num_preemptions = 0;
};

struct EngineRequest {
  std::string id;  // unique among live requests
  std::string
      client_id;     // the id by which the client knows the request, for the log; any bytes; may be empty
  PromptIds prompt;  // at least one token, ids below the vocabulary size
  std::shared_ptr<const SamplingParams> sampling = std::make_shared<SamplingParams>();  // never null
  std::shared_ptr<const TokenConstraint> constraint;  // of the outputs; null: none. Not with a beam search
  int32_t max_tokens = 16;
  // Not kNone: the request ends with its prompt. max_tokens is 0, and there is no constraint and no fork.
  Pooling pooling = Pooling::kNone;
  uint64_t seed = 0;  // drawn by the API layer when the client gave none
  int32_t priority = 0;
  std::string cache_salt;
  std::string adapter_name;  // the adapter by which the client chose the model; empty: the model itself
  std::shared_ptr<const RequestAdapter> adapter;  // of that name; given by AdapterEngine, with its salt
  std::string user;  // the sender, where users have accounts; empty: a sender without a name
  // The id of another choice of the same prompt: a request that was submitted before this request, with the
  // same prompt, sampling and salt. Where possible, the prompt is computed once for both. Empty: there is no
  // such request.
  std::string fork_of;
  absl::Time arrival;
  // By the engine's monotonic clock. At the deadline the request ends with DeadlineExceeded, waiting or
  // running. A request that is not scheduled by first_token_by, or has no chance of a token by then, is
  // refused.
  MonotonicTime deadline = absl::InfiniteDuration();
  MonotonicTime first_token_by = absl::InfiniteDuration();
  std::shared_ptr<OutputSink> sink;
  int64_t held_bytes = 0;    // of memory that the sender keeps until the request ends, beside the request
  int64_t queued_bytes = 0;  // the request's bytes in the queue (request_bytes.h); set by the engine
  std::shared_ptr<const RequestProgress> progress;  // null: no engine has worked on the request
  std::shared_ptr<RequestTrail> trail;              // of the client's request; null: nobody will ask

  // The name of the request in messages.
  const std::string& name() const { return client_id.empty() ? id : client_id; }
};

}  // namespace somnus
