#include "coordinator/openai/client_request.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/http/api_key.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/openai/best_of.h"
#include "coordinator/openai/response_json.h"
#include "coordinator/request/request_trail.h"

namespace somnus {
namespace {

std::string NextEngineId() {
  static std::atomic<uint64_t> counter{0};
  return absl::StrCat("r", counter.fetch_add(1, std::memory_order_relaxed));
}

// The bytes that a client can make large in `params` and in the choices that are made from `params`.
int64_t ParamsBytes(const GenerateParams& params) {
  size_t bytes = params.prompt_text.size() + params.response_id.size();
  for (const GenerateParams::Prompt& prompt : params.prompts)
    bytes += prompt.ids.size() * sizeof(int32_t) + prompt.echo_text.size();
  // Each choice has a copy of the stop strings.
  size_t stop_bytes = 0;
  for (const std::string& stop : params.output.stop) stop_bytes += sizeof(std::string) + stop.size();
  const size_t num_sequences = params.prompts.size() * static_cast<size_t>(params.num_candidates());
  bytes += stop_bytes * (1 + num_sequences);
  const int64_t constraint = params.constraint == nullptr ? 0 : params.constraint->bytes();
  return static_cast<int64_t>(bytes) + constraint * static_cast<int64_t>(num_sequences);
}

// Puts an answer of a beam search into the fields that other outputs have.
void UnfoldBeam(RequestOutput* output) {
  if (output->beams.empty()) return;
  Beam& beam = output->beams[0];
  output->token_ids = std::move(beam.outputs);
  for (const std::shared_ptr<const Logprobs>& logprobs : beam.logprobs) output->logprobs.push_back(*logprobs);
  output->finish_reason = beam.finish_reason;
  output->stop_token_id = beam.stop_token_id;
}

// Moves the first of several tokens into an output of its own, which goes before the rest.
RequestOutput TakeFirstToken(RequestOutput* output) {
  RequestOutput first;
  first.token_ids = {output->token_ids[0]};
  output->token_ids.erase(output->token_ids.begin());
  if (!output->logprobs.empty()) {
    first.logprobs.push_back(std::move(output->logprobs[0]));
    output->logprobs.erase(output->logprobs.begin());
  }
  first.prompt_logprobs = std::exchange(output->prompt_logprobs, {});
  first.num_cached_tokens = output->num_cached_tokens;
  first.weights_version = output->weights_version;
  return first;
}

}  // namespace

class ClientRequest::Sink : public OutputSink {
 public:
  // `labels`: null where the response does not tell versions.
  Sink(std::shared_ptr<OutputQueue> queue, int32_t index, std::shared_ptr<const WeightLabels> labels)
      : queue_(std::move(queue)), index_(index), labels_(std::move(labels)) {}
  // A label that an operator sets during a pause is of later tokens alone, hence the look at the labels on
  // this thread.
  void OnOutput(RequestOutput output) override {
    std::string name = labels_ == nullptr ? "" : labels_->NameOf(output.weights_version);
    queue_->Push({index_, std::move(output), std::move(name)});
  }

 private:
  const std::shared_ptr<OutputQueue> queue_;
  const int32_t index_;
  const std::shared_ptr<const WeightLabels> labels_;
};

// For a beam search: the answers come with the last output, which holds for each choice.
class ClientRequest::BeamSink : public OutputSink {
 public:
  BeamSink(std::shared_ptr<OutputQueue> queue, int32_t first, int32_t count)
      : queue_(std::move(queue)), first_(first), count_(count) {}
  void OnOutput(RequestOutput output) override {
    if (output.finish_reason == FinishReason::kNone) return;  // a step of the search
    std::vector<Beam> beams = std::exchange(output.beams, {});
    OutputQueue::Outputs answers;
    for (int32_t i = 0; i < count_; ++i) {
      RequestOutput answer = output;
      if (static_cast<size_t>(i) < beams.size()) answer.beams.push_back(std::move(beams[i]));
      answers.push_back({first_ + i, std::move(answer)});
    }
    queue_->PushAll(std::move(answers));
  }

 private:
  const std::shared_ptr<OutputQueue> queue_;
  const int32_t first_, count_;
};

ClientRequest::ClientRequest(std::shared_ptr<const ServedModel> model, const GenerateParams* params,
                             std::shared_ptr<Metrics> metrics, int64_t max_queued_bytes)
    : model_(std::move(model)),
      params_(params),
      metrics_(std::move(metrics)),
      max_queued_bytes_(max_queued_bytes) {
  for (const GenerateParams::Prompt& prompt : params_->prompts) {
    prompt_tokens_ += prompt.ids.size();
    const bool at_start = BeginsText(*model_->tokenizer, prompt.ids, params_->output.skip_special_tokens);
    for (int32_t i = 0; i < params_->num_candidates(); ++i) {
      choices_.push_back(
          Choice{HasBeams() && i > 0 ? "" : NextEngineId(),
                 OutputProcessor(model_->tokenizer.get(), params_->output, at_start),
                 params_->answer == nullptr ? nullptr : std::make_unique<TurnReader>(params_->answer)});
    }
  }
  open_ = static_cast<int32_t>(choices_.size());
  if (params_->num_candidates() > params_->n) {
    best_of_ = std::make_unique<BestOf>(static_cast<int32_t>(params_->prompts.size()), params_->n,
                                        params_->num_candidates());
  }
}

int64_t ClientRequest::held_bytes() const { return best_of_ == nullptr ? 0 : best_of_->held_bytes(); }

ClientRequest::~ClientRequest() {
  if (trail_ != nullptr && open_ > 0) trail_->NoteEnd("abort", "the client has left");
  LeaveOpenRequests();
  if (open_ == 0) return;
  Abort();
  if (metrics_ == nullptr || queue_ == nullptr) return;
  // The ends of aborted sequences arrive after this object is gone, and so are counted here.
  for (; open_ > 0; --open_) metrics_->OnSequenceEnd(FinishReason::kAbort);
}

void ClientRequest::LeaveOpenRequests() {
  if (const int64_t key = std::exchange(open_request_, 0); key != 0) {
    model_->open_requests->Remove(key);
    model_->history->End(trail_);
  }
}

EngineRequest ClientRequest::MakeRequest(int32_t index, const PromptIds& ids,
                                         const std::shared_ptr<const SamplingParams>& sampling) const {
  const int32_t num_candidates = params_->num_candidates(), candidate = index % num_candidates;
  const GenerateParams::Prompt& prompt = params_->prompts[index / num_candidates];
  EngineRequest request;
  request.id = choices_[index].engine_id;
  request.client_id = params_->response_id;
  request.prompt = ids;
  request.sampling = sampling;
  request.constraint = params_->constraint;
  request.max_tokens = prompt.max_tokens;
  if (params_->embedding.has_value()) request.pooling = params_->embedding->pooling;
  request.seed = params_->seed + (params_->own_seeds ? index : candidate);
  request.cache_salt = params_->cache_salt;
  if (model_->is_adapter) request.adapter_name = model_->name;
  request.user = params_->user;
  if (candidate > 0) request.fork_of = choices_[index - candidate].engine_id;
  request.priority = params_->priority;
  request.trail = trail_;
  request.deadline = params_->times.deadline;
  request.first_token_by = params_->times.first_token_by;
  request.sink = HasBeams()
                     ? std::shared_ptr<OutputSink>(std::make_shared<BeamSink>(queue_, index, params_->n))
                     : std::make_shared<Sink>(
                           queue_, index, params_->return_weight_versions ? model_->weight_labels : nullptr);
  return request;
}

absl::Status ClientRequest::Submit(std::function<void()> on_ready) {
  queue_ = std::make_shared<OutputQueue>(max_queued_bytes_, std::move(on_ready));
  const absl::Time now = absl::Now();
  arrival_ = now;
  trail_ = NewTrail();
  auto sampling = std::make_shared<SamplingParams>(params_->sampling);
  if (best_of_ != nullptr) sampling->num_logprobs = std::max(0, sampling->num_logprobs);
  const auto num_choices = static_cast<int32_t>(choices_.size());
  const int64_t num_requests = HasBeams() ? num_choices / params_->n : num_choices;
  const int64_t held_bytes = ParamsBytes(*params_) / num_requests;
  std::vector<EngineRequest> requests;
  std::vector<std::string> engine_ids;
  PromptIds ids;  // shared by the choices of a prompt
  for (int32_t index = 0; index < num_choices; ++index) {
    if (index % params_->num_candidates() == 0) ids = params_->prompts[index / params_->num_candidates()].ids;
    if (choices_[index].engine_id.empty()) continue;
    EngineRequest request = MakeRequest(index, ids, sampling);
    request.arrival = now;
    request.held_bytes = held_bytes;
    engine_ids.push_back(request.id);
    requests.push_back(std::move(request));
  }
  open_request_ = model_->open_requests->Add(params_->response_id, std::move(engine_ids));
  model_->history->Add(trail_);
  const absl::Status status = model_->engine->SubmitAll(std::move(requests));
  if (!status.ok()) {
    open_ = 0;
    model_->history->Forget(trail_);
    LeaveOpenRequests();
    return status;
  }
  if (metrics_ != nullptr && !params_->embedding.has_value()) {
    for (const GenerateParams::Prompt& prompt : params_->prompts)
      metrics_->OnRequestParams(params_->n, prompt.max_tokens);
  }
  return absl::OkStatus();
}

void ClientRequest::Abort() {
  if (aborted_.exchange(true)) return;
  for (const Choice& choice : choices_) {
    if (!choice.engine_id.empty()) model_->engine->Abort(choice.engine_id);
  }
}

std::vector<ChoiceUpdate> ClientRequest::Take() {
  std::vector<ChoiceUpdate> updates;
  for (OutputQueue::Queued& queued : queue_->TakeAll()) {
    if (choices_[queued.index].processor.finished()) continue;  // made before the engine saw the abort
    Process(std::move(queued), &updates);
  }
  if (queue_->overflowed()) Abort();
  return updates;
}

void ClientRequest::Process(OutputQueue::Queued queued, std::vector<ChoiceUpdate>* updates) {
  const int32_t index = queued.index;
  RequestOutput& output = queued.output;
  UnfoldBeam(&output);
  if (output.moments != nullptr) NoteMoments(*output.moments);
  const auto add = [&](RequestOutput part) {
    ChoiceUpdate update = ProcessOne(index, std::move(part));
    update.delta.weights_name = queued.weights_name;
    best_of_ == nullptr ? updates->push_back(std::move(update)) : best_of_->Add(std::move(update), updates);
  };
  if (choices_[index].turn == nullptr) return add(std::move(output));
  while (output.token_ids.size() > 1 && !choices_[index].processor.finished()) add(TakeFirstToken(&output));
  if (!choices_[index].processor.finished()) add(std::move(output));
}

ChoiceUpdate ClientRequest::ProcessOne(int32_t index, RequestOutput output) {
  Choice& choice = choices_[index];
  ChoiceUpdate update{index, choice.processor.Process(std::move(output))};
  OutputDelta& delta = update.delta;
  if (choice.turn != nullptr) {
    choice.turn->Read(&delta);
    reasoning_tokens_ += delta.num_reasoning_tokens;
    for (const TurnEvent& event : delta.events) choice.has_calls |= event.call >= 0;
  }
  if (!params_->echo_only) completion_tokens_ += static_cast<int64_t>(delta.token_ids.size());
  if (index % params_->num_candidates() == 0 && !choice.counted_cache) {
    choice.counted_cache = true;
    cached_tokens_ += delta.num_cached_tokens;
  }
  if (!delta.token_ids.empty()) {
    const absl::Time now = absl::Now();
    if (metrics_ != nullptr && choice.last_output != absl::InfinitePast()) {
      metrics_->OnInterTokenLatency(absl::ToDoubleSeconds(now - choice.last_output) / delta.token_ids.size());
    }
    choice.last_output = now;
  }
  if (delta.engine_still_runs) model_->engine->Abort(choice.engine_id);
  if (delta.finish_reason != FinishReason::kNone) {
    const bool is_call = choice.has_calls && delta.finish_reason == FinishReason::kStop && !delta.cuts_call;
    if (index == 0) finish_reason_ = is_call ? "tool_calls" : FinishReasonName(delta.finish_reason);
    if (--open_ == 0) {
      trail_->NoteEnd(FinishReasonName(delta.finish_reason), delta.error.message());
      LeaveOpenRequests();
      ended_ = absl::Now();
    }
    CountEnd(choice, delta.finish_reason);
  }
  return update;
}

std::shared_ptr<RequestTrail> ClientRequest::NewTrail() const {
  RequestTrail::Facts facts;
  facts.id = params_->response_id;
  facts.model = model_->name;
  facts.user = ShownUser(params_->user);
  facts.num_choices = static_cast<int32_t>(choices_.size());
  facts.max_tokens = params_->prompts.empty() ? 0 : params_->prompts.front().max_tokens;
  facts.priority = params_->priority;
  facts.prompt_tokens = prompt_tokens_;
  return std::make_shared<RequestTrail>(std::move(facts), arrival_, model_->max_request_events);
}

void ClientRequest::NoteMoments(const RequestMoments& moments) {
  const auto keep_first = [](absl::Time one, absl::Time* first) {
    if (one != absl::InfinitePast() && (*first == absl::InfinitePast() || one < *first)) *first = one;
  };
  keep_first(moments.scheduled, &moments_.scheduled);
  keep_first(moments.first_token, &moments_.first_token);
}

RequestSummary ClientRequest::NewSummary() const {
  RequestSummary summary;
  summary.response_id = params_->response_id;
  summary.model = model_->name;
  summary.prompt_tokens = prompt_tokens_;
  summary.num_choices = params_->n * static_cast<int32_t>(params_->prompts.size());
  summary.max_tokens = params_->prompts.empty() ? 0 : params_->prompts.front().max_tokens;
  summary.temperature = params_->sampling.temperature;
  summary.top_p = params_->sampling.top_p;
  return summary;
}

void ClientRequest::UpdateSummary(RequestSummary* summary) const {
  summary->finish_reason = finish_reason_;
  summary->prompt_tokens = prompt_tokens_;
  summary->completion_tokens = completion_tokens_;
  summary->cached_tokens = cached_tokens_;
  summary->arrival = arrival_;
  summary->moments = moments_;
  summary->ended = ended_;
}

void ClientRequest::CountEnd(const Choice& choice, FinishReason reason) {
  if (metrics_ == nullptr) return;
  metrics_->OnSequenceEnd(reason);
  if (params_->answer == nullptr || params_->answer->format.tools == nullptr) return;
  metrics_->OnAnswerParsed(
      {.streams = params_->stream, .has_calls = choice.has_calls, .request_type = params_->request_type});
}

}  // namespace somnus
