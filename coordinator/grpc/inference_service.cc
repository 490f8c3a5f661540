#include "coordinator/grpc/inference_service.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/utf8.h"
#include "coordinator/grpc/bell.h"
#include "coordinator/grpc/error_details.h"
#include "coordinator/grpc/grpc_call.h"
#include "coordinator/http/api_key.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/openai/client_request.h"
#include "coordinator/openai/embeddings.h"
#include "coordinator/openai/grammar_request.h"
#include "coordinator/openai/request_fields.h"
#include "coordinator/openai/response_json.h"
#include "proto/status.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

// A response has at most so many deltas: deltas of best_of come all at once, and clients refuse messages
// above 4 MiB. A delta is the output of a step, which takes 8 KiB at most except for rare texts.
constexpr int kMaxDeltas = 256;
constexpr int64_t kMaxEmbeddingBytes = 1 << 20;  // of a response, unless one embedding takes more

template <typename Ids>
Json IdList(const Ids& ids) {
  return Json(std::vector<int32_t>(ids.begin(), ids.end()));
}

// The parser refuses any other string than "never".
Json EarlyStoppingField(const std::string& value) {
  if (value == "true" || value == "false") return Json(value == "true");
  return Json(value);
}

// As the HTTP API's structured_outputs.
Json StructuredField(const v1::StructuredOutputs& s) {
  Json json = Json::object();
  if (s.has_json_schema()) json["json"] = s.json_schema();
  if (s.json_object()) json["json_object"] = true;
  if (s.has_regex()) json["regex"] = s.regex();
  for (const std::string& text : s.choice().texts()) json["choice"].push_back(text);
  if (s.has_grammar()) json["grammar"] = s.grammar();
  if (s.has_structural_tag()) json["structural_tag"] = s.structural_tag();
  if (s.disable_any_whitespace()) json["disable_any_whitespace"] = true;
  return json;
}

Json SamplingFields(const v1::SamplingParams& s) {
  Json json = Json::object();
  if (s.has_max_tokens()) json["max_tokens"] = s.max_tokens();
  if (s.min_tokens() != 0) json["min_tokens"] = s.min_tokens();
  if (s.has_temperature()) json["temperature"] = s.temperature();
  if (s.has_top_p()) json["top_p"] = s.top_p();
  if (s.top_k() != 0) json["top_k"] = s.top_k();
  if (s.min_p() != 0) json["min_p"] = s.min_p();
  if (s.presence_penalty() != 0) json["presence_penalty"] = s.presence_penalty();
  if (s.frequency_penalty() != 0) json["frequency_penalty"] = s.frequency_penalty();
  if (s.has_repetition_penalty()) json["repetition_penalty"] = s.repetition_penalty();
  for (const auto& [id, bias] : s.logit_bias()) json["logit_bias"][std::to_string(id)] = bias;
  if (s.has_seed()) json["seed"] = s.seed();
  for (const std::string& stop : s.stop()) json["stop"].push_back(stop);
  if (!s.stop_token_ids().empty()) json["stop_token_ids"] = IdList(s.stop_token_ids());
  json["include_stop_str_in_output"] = s.include_stop_str_in_output();
  json["ignore_eos"] = s.ignore_eos();
  if (s.has_logprobs()) json["logprobs"] = s.logprobs();
  if (s.has_prompt_logprobs()) json["prompt_logprobs"] = s.prompt_logprobs();
  if (s.n() != 0) json["n"] = s.n();
  if (s.has_best_of()) json["best_of"] = s.best_of();
  if (s.has_skip_special_tokens()) json["skip_special_tokens"] = s.skip_special_tokens();
  if (!s.allowed_token_ids().empty()) json["allowed_token_ids"] = IdList(s.allowed_token_ids());
  if (s.use_beam_search()) json["use_beam_search"] = true;
  if (s.has_length_penalty()) json["length_penalty"] = s.length_penalty();
  if (!s.early_stopping().empty()) json["early_stopping"] = EarlyStoppingField(s.early_stopping());
  if (s.has_structured_outputs()) json["structured_outputs"] = StructuredField(s.structured_outputs());
  return json;
}

// Counts are checked before the conversion to JSON, in which a list takes many times the bytes that the list
// takes in the message.
std::optional<ApiError> CheckCounts(const v1::GenerateRequest& request, const ServedModel& model,
                                    const ApiLimits& limits) {
  const v1::SamplingParams& s = request.sampling();
  const struct {
    const char* field;
    int64_t count, most;
  } lists[] = {{"prompt", request.token_ids().ids_size(), model.engine->max_model_len()},
               {"logit_bias", static_cast<int64_t>(s.logit_bias_size()), limits.max_logit_bias},
               {"stop", s.stop_size(), limits.max_stop_strings},
               {"stop_token_ids", s.stop_token_ids_size(), limits.max_stop_token_ids},
               {"allowed_token_ids", s.allowed_token_ids_size(), limits.max_allowed_token_ids},
               {"bad_words", s.bad_words_size(), limits.max_bad_words}};
  for (const auto& list : lists) {
    if (list.count > list.most)
      return BadRequest(list.field, absl::StrCat(list.field, " must have at most ", list.most, " entries"));
  }
  return std::nullopt;
}

std::optional<ApiError> CheckBadWords(const v1::SamplingParams& sampling, const ServedModel& model,
                                      const ApiLimits& limits) {
  for (const v1::TokenIds& word : sampling.bad_words()) {
    if (word.ids_size() > limits.max_bad_word_tokens) {
      return BadRequest("bad_words", absl::StrCat("bad_words must hold words of at most ",
                                                  limits.max_bad_word_tokens, " tokens"));
    }
    for (const int32_t id : word.ids()) {
      if (id < 0 || id >= model.config.vocab_size)
        return BadRequest("bad_words", "bad_words must hold token ids");
    }
    if (word.ids().empty()) return BadRequest("bad_words", "bad_words must not be empty");
  }
  return std::nullopt;
}

// The texts of the words that are text. Words of control tokens, of white space or of parts of a character
// are held as ids alone.
Json TextsOfBadWords(const v1::SamplingParams& sampling, const Tokenizer& tokenizer) {
  Json texts = Json::array();
  for (const v1::TokenIds& word : sampling.bad_words()) {
    std::string text;
    bool is_text = true;
    for (const int32_t id : word.ids()) {
      is_text = is_text && id < tokenizer.vocab_size() && !tokenizer.IsSpecial(id);
      if (is_text) text += tokenizer.TokenBytes(id);
    }
    if (is_text && IsUtf8(text) && !absl::StripAsciiWhitespace(text).empty())
      texts.push_back(std::move(text));
  }
  return texts;
}

// The HTTP API has the same fields under the same names, so the parser of the HTTP API applies the same
// rules.
GenerateOrError ReadFields(const v1::GenerateRequest& request, const ServedModel& model,
                           const ApiLimits& limits) {
  if (std::optional<ApiError> error = CheckGenerates(model)) return *std::move(error);
  if (std::optional<ApiError> error = CheckCounts(request, model, limits)) return *std::move(error);
  if (std::optional<ApiError> error = CheckBadWords(request.sampling(), model, limits)) return *error;
  Json json = SamplingFields(request.sampling());
  if (Json texts = TextsOfBadWords(request.sampling(), *model.tokenizer); !texts.empty())
    json["bad_words"] = std::move(texts);
  if (request.prompt_case() == v1::GenerateRequest::kText) json["prompt"] = request.text();
  if (request.prompt_case() == v1::GenerateRequest::kTokenIds)
    json["prompt"] = IdList(request.token_ids().ids());
  if (!request.model().empty()) json["model"] = request.model();
  if (!request.request_id().empty()) json["request_id"] = request.request_id();
  if (request.priority() != 0) json["priority"] = request.priority();
  if (!request.cache_salt().empty()) json["cache_salt"] = request.cache_salt();
  if (!request.user().empty()) json["user"] = request.user();
  GenerateOrError parsed = ParseCompletionFields(json, model, limits);
  auto* params = std::get_if<GenerateParams>(&parsed);
  if (params == nullptr) return parsed;
  if (!request.request_id().empty()) params->response_id = request.request_id();
  if (params->sampling.beam_search.has_value()) return parsed;  // bad words are checked, and change nothing
  for (const v1::TokenIds& word : request.sampling().bad_words())
    params->sampling.bad_words.emplace_back(word.ids().begin(), word.ids().end());
  return parsed;
}

std::optional<ApiError> CheckInputs(const v1::EmbedRequest& request, const ServedModel& model,
                                    const ApiLimits& limits) {
  if (request.inputs_size() > limits.max_prompts)
    return BadRequest("inputs", absl::StrCat("inputs has more than ", limits.max_prompts, " entries"));
  for (const v1::EmbedInput& input : request.inputs()) {
    if (input.input_case() == v1::EmbedInput::INPUT_NOT_SET)
      return BadRequest("inputs", "inputs has an entry without a text and without token_ids");
    if (input.input_case() != request.inputs(0).input_case())
      return BadRequest("inputs", "inputs must hold entries of one kind");
    // Before the conversion to JSON, as CheckCounts.
    if (!request.has_truncate_prompt_tokens() &&
        input.token_ids().ids_size() > model.engine->max_model_len()) {
      return BadRequest("inputs", absl::StrCat("inputs must have at most ", model.engine->max_model_len(),
                                               " token_ids each"));
    }
  }
  return std::nullopt;
}

Json InputsField(const v1::EmbedRequest& request) {
  Json inputs = Json::array();
  for (const v1::EmbedInput& input : request.inputs())
    inputs.push_back(input.has_text() ? Json(input.text()) : IdList(input.token_ids().ids()));
  return inputs;
}

// As ReadFields of a GenerateRequest.
GenerateOrError ReadFields(const v1::EmbedRequest& request, const ServedModel& model,
                           const ApiLimits& limits) {
  if (std::optional<ApiError> error = CheckInputs(request, model, limits)) return *std::move(error);
  Json json = Json::object();
  json["input"] = InputsField(request);
  if (!request.model().empty()) json["model"] = request.model();
  if (!request.request_id().empty()) json["request_id"] = request.request_id();
  if (request.has_normalize()) json["normalize"] = request.normalize();
  if (request.has_dimensions()) json["dimensions"] = request.dimensions();
  if (request.has_truncate_prompt_tokens()) json["truncate_prompt_tokens"] = request.truncate_prompt_tokens();
  if (!request.truncation_side().empty()) json["truncation_side"] = request.truncation_side();
  if (request.has_add_special_tokens()) json["add_special_tokens"] = request.add_special_tokens();
  if (request.priority() != 0) json["priority"] = request.priority();
  if (!request.cache_salt().empty()) json["cache_salt"] = request.cache_salt();
  if (!request.user().empty()) json["user"] = request.user();
  GenerateOrError parsed = ParseEmbeddingsFields(json, EmbeddingOptions::Api::kEmbeddings, model, limits);
  auto* params = std::get_if<GenerateParams>(&parsed);
  if (params != nullptr && !request.request_id().empty()) params->response_id = request.request_id();
  return parsed;
}

// `ttft_target_s`: of the message, if it has one.
TimesOrError ReadTimes(const grpc::ServerContext& context, std::optional<double> ttft_target_s,
                       const ApiLimits& limits) {
  const auto now = std::chrono::system_clock::now();
  const MonotonicTime received = MonotonicNow();
  const bool has_deadline = context.deadline() != std::chrono::system_clock::time_point::max();
  const absl::Duration timeout =
      has_deadline ? absl::FromChrono(context.deadline() - now) : absl::InfiniteDuration();
  if (ttft_target_s.has_value()) return TimesOfFields(timeout, *ttft_target_s, received, limits);
  const auto ttft = context.client_metadata().find(absl::AsciiStrToLower(kTtftHeader));
  std::optional<std::string> value;
  if (ttft != context.client_metadata().end()) value.emplace(ttft->second.data(), ttft->second.size());
  return TimesOfCall(timeout, value, received, limits);
}

std::optional<double> TtftTargetOf(const v1::GenerateRequest& request) {
  return request.has_ttft_target_s() ? std::optional(request.ttft_target_s()) : std::nullopt;
}
std::optional<double> TtftTargetOf(const v1::EmbedRequest&) { return std::nullopt; }

template <typename Request>
GenerateOrError Resolve(const grpc::ServerContext& context, const Request& request, const ServedModel& model,
                        const ApiLimits& limits) {
  const TimesOrError times = ReadTimes(context, TtftTargetOf(request), limits);
  if (const auto* error = std::get_if<ApiError>(&times)) return *error;
  GenerateOrError parsed = ReadFields(request, model, limits);
  if (auto* params = std::get_if<GenerateParams>(&parsed)) {
    params->times = std::get<RequestTimes>(times);
    if (params->user.empty()) params->user = UserOfKey(AuthorizationOf(context));
  }
  return parsed;
}

void FillLogprobs(const Tokenizer& tokenizer, const Logprobs& from, v1::PositionLogprobs* to) {
  for (size_t i = 0; i < from.token_ids.size(); ++i) {
    v1::TokenLogprob* token = to->add_tokens();
    token->set_token_id(from.token_ids[i]);
    token->set_logprob(from.logprobs[i]);
    token->set_rank(i == 0 ? from.rank : static_cast<int32_t>(i));
    token->set_text(tokenizer.TokenBytes(from.token_ids[i]));
  }
}

void FillResponse(const Tokenizer& tokenizer, const GenerateParams& params, ChoiceUpdate update,
                  v1::GenerateResponse* response) {
  const OutputDelta& delta = update.delta;
  if (update.index == 0) {
    for (const Logprobs& position : delta.prompt_logprobs) {
      FillLogprobs(tokenizer, position, response->add_prompt_logprobs());
    }
  }
  v1::ChoiceDelta* choice = response->add_choices();
  choice->set_index(update.index);
  choice->set_text(delta.text);
  choice->mutable_token_ids()->Add(delta.token_ids.begin(), delta.token_ids.end());
  if (params.logprobs) {  // for best_of they are computed where nobody asks
    for (const Logprobs& logprobs : delta.logprobs) FillLogprobs(tokenizer, logprobs, choice->add_logprobs());
  }
  choice->set_finish_reason(FinishReasonName(delta.finish_reason));
  if (delta.stop_string.has_value()) choice->set_stop_reason(*delta.stop_string);
  if (delta.stop_token_id.has_value()) choice->set_stop_reason(absl::StrCat(*delta.stop_token_id));
}

void FillResponse(const Tokenizer&, const GenerateParams& params, ChoiceUpdate update,
                  v1::EmbedResponse* response) {
  const std::vector<float> numbers = FinishEmbedding(*params.embedding, std::move(update.delta.pooled));
  v1::Embedding* embedding = response->add_embeddings();
  embedding->set_index(update.index);
  embedding->mutable_values()->Add(numbers.begin(), numbers.end());
}

// How many updates a response has, and the most.
int NumParts(const v1::GenerateResponse& response) { return response.choices_size(); }
int NumParts(const v1::EmbedResponse& response) { return response.embeddings_size(); }
int MaxParts(const v1::GenerateResponse&) { return kMaxDeltas; }
int MaxParts(const v1::EmbedResponse& response) {
  const int64_t numbers =
      std::max(1, response.embeddings().empty() ? 1 : response.embeddings(0).values_size());
  return static_cast<int>(std::max<int64_t>(1, kMaxEmbeddingBytes / (numbers * int64_t{sizeof(float)})));
}

grpc::Status Submit(const ServedModel& model, const std::shared_ptr<Bell>& bell, ClientRequest* request) {
  const absl::Status status = request->Submit([bell] { bell->Ring(); });
  if (status.ok()) return grpc::Status::OK;
  model.metrics->OnRejected(RejectionReason(status), status);
  const grpc::Status refusal = EngineRefusal(status, *model.engine);
  // The engine is asleep, and may be woken.
  return absl::IsFailedPrecondition(status) ? WithRetry(refusal, kRetryDelay) : refusal;
}

// Ok unless the choice has ended without what the client asked for: there is no half of an embedding.
grpc::Status ErrorOf(const OutputDelta& delta, const GenerateParams& params, const ServedModel& model) {
  if (delta.finish_reason == FinishReason::kError)
    return EngineRefusal(delta.error.ok() ? absl::InternalError("") : delta.error, *model.engine);
  if (delta.finish_reason == FinishReason::kAbort && params.embedding.has_value())
    return {grpc::StatusCode::ABORTED, "the request was aborted"};
  return grpc::Status::OK;
}

// `error` is a ResponseBudget's.
grpc::Status HeldTooMuch(const ApiError& error) {
  if (error.status == 503) return {grpc::StatusCode::UNAVAILABLE, error.message};
  return ToGrpcStatus(BadRequest("best_of",
                                 "the candidates take too much memory: ask for fewer, or for fewer tokens or "
                                 "log-probabilities"));
}

std::string MetadataOf(const grpc::ServerContext& context, const char* name) {
  const auto found = context.client_metadata().find(name);
  return found == context.client_metadata().end() ? ""
                                                  : std::string(found->second.data(), found->second.size());
}

RequestRecord NewRecord(grpc::ServerContext* context, const char* method) {
  RequestRecord record;
  record.protocol = "grpc";
  record.client = PeerOf(*context);
  record.request_id = MetadataOf(*context, "x-request-id");
  record.traceparent = MetadataOf(*context, "traceparent");
  record.method = method;
  record.route = v1::InferenceService::service_full_name();
  record.generates = true;
  record.begin = absl::Now();
  return record;
}

void FillUsage(const ClientRequest& request, v1::Usage* usage) {
  usage->set_prompt_tokens(static_cast<int32_t>(request.prompt_tokens()));
  usage->set_completion_tokens(static_cast<int32_t>(request.completion_tokens()));
  usage->set_cached_tokens(static_cast<int32_t>(request.cached_tokens()));
}

}  // namespace

InferenceServiceImpl::InferenceServiceImpl(const ModelTable* models, std::shared_ptr<Metrics> metrics,
                                           std::string api_key, const ApiLimits& limits,
                                           std::shared_ptr<WriteWatch> write_watch,
                                           std::shared_ptr<RequestRecorder> recorder)
    : models_(models),
      metrics_(std::move(metrics)),
      api_key_(std::move(api_key)),
      limits_(limits),
      held_responses_(limits.max_response_bytes, limits.max_buffered_response_bytes),
      write_watch_(std::move(write_watch)),
      recorder_(std::move(recorder)) {}

grpc::Status InferenceServiceImpl::Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                                            grpc::ServerWriter<v1::GenerateResponse>* writer) {
  return Admit(context, "Generate", *request, writer);
}

grpc::Status InferenceServiceImpl::Embed(grpc::ServerContext* context, const v1::EmbedRequest* request,
                                         grpc::ServerWriter<v1::EmbedResponse>* writer) {
  return Admit(context, "Embed", *request, writer);
}

template <typename Request, typename Response>
grpc::Status InferenceServiceImpl::Admit(grpc::ServerContext* context, const char* method,
                                         const Request& request, grpc::ServerWriter<Response>* writer) {
  if (recorder_ == nullptr) {
    RequestRecord ignored;
    return Guard(context, request, writer, &ignored);
  }
  RequestRecord record = NewRecord(context, method);
  grpc::Status status = Guard(context, request, writer, &record);
  record.status = status.error_code();
  record.end = absl::Now();
  recorder_->Record(record);
  return status;
}

template <typename Request, typename Response>
grpc::Status InferenceServiceImpl::Guard(grpc::ServerContext* context, const Request& request,
                                         grpc::ServerWriter<Response>* writer, RequestRecord* record) {
  const int32_t open = ++open_calls_;
  const absl::Cleanup leave = [this] { --open_calls_; };
  if (open > limits_.max_open_calls) {
    metrics_->OnRejected("too_many_calls");
    return WithRetry({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many open calls"}, kRetryDelay);
  }
  if (grpc::Status status = CheckKey(*context, api_key_); !status.ok()) return status;
  try {
    return Serve(context, request, writer, record);
  } catch (const std::exception&) {
    return {grpc::StatusCode::INTERNAL, "internal error"};
  }
}

template <typename Request, typename Response>
grpc::Status InferenceServiceImpl::Serve(grpc::ServerContext* context, const Request& request,
                                         grpc::ServerWriter<Response>* writer, RequestRecord* record) {
  SharedModel model = models_->Find(request.model());
  if (model == nullptr) model = models_->Get();  // Resolve names the fault of the name
  if (model == nullptr) {
    metrics_->OnRejected("not_serving");
    return LoadingStatus(*models_);
  }
  GenerateOrError parsed = Resolve(*context, request, *model, limits_);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    model->metrics->OnRejected("bad_request");
    return ToGrpcStatus(*error);
  }
  GenerateParams params = std::get<GenerateParams>(std::move(parsed));
  if (const std::optional<ApiError> error = AwaitConstraint(*model, &params)) {
    model->metrics->OnRejected("bad_request");
    return ToGrpcStatus(*error);
  }
  ClientRequest client_request(model, &params, model->metrics, limits_.max_stream_backlog_bytes);
  const auto bell = std::make_shared<Bell>();
  if (grpc::Status status = Submit(*model, bell, &client_request); !status.ok()) return status;
  record->summary = client_request.NewSummary();
  const absl::Cleanup summarize = [&] { client_request.UpdateSummary(&*record->summary); };
  ResponseBudget::Part held(&held_responses_);
  Response response;
  grpc::WriteOptions options;
  const auto write = [&] {
    response.set_request_id(params.response_id);
    const bool written =
        write_watch_->Run(*context, client_request, [&] { return writer->Write(response, options); });
    response.Clear();
    return written;
  };
  while (!client_request.done()) {
    bell->Wait();
    if (context->IsCancelled()) return grpc::Status::CANCELLED;  // ~ClientRequest aborts the request
    for (ChoiceUpdate& update : client_request.Take()) {
      if (grpc::Status status = ErrorOf(update.delta, params, *model); !status.ok()) return status;
      // Weights may be replaced between two tokens.
      const int64_t version = update.delta.weights_version;
      const bool another = NumParts(response) >= MaxParts(response) || response.weights_version() != version;
      if (NumParts(response) > 0 && another && !write()) return grpc::Status::CANCELLED;
      response.set_weights_version(version);
      FillResponse(*model->tokenizer, params, std::move(update), &response);
    }
    if (client_request.overflowed())
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the client reads too slowly"};
    if (const std::optional<ApiError> error = held.Hold(client_request.held_bytes()))
      return HeldTooMuch(*error);
    if (NumParts(response) == 0) continue;
    if (client_request.done()) {
      // The last write ends when the client's window has taken everything: the end of the call, which nobody
      // watches, then has to wait for nothing.
      options.set_write_through();
      FillUsage(client_request, response.mutable_usage());
    }
    if (!write()) return grpc::Status::CANCELLED;
  }
  return grpc::Status::OK;
}

grpc::Status InferenceServiceImpl::ListModels(grpc::ServerContext* context, const v1::ListModelsRequest*,
                                              v1::ListModelsResponse* response) {
  if (grpc::Status status = CheckKey(*context, api_key_); !status.ok()) return status;
  const std::vector<SharedModel> models = models_->All();
  if (models.empty()) return LoadingStatus(*models_);
  for (const SharedModel& model : models) {
    v1::ModelCard* card = response->add_models();
    card->set_id(model->name);
    card->set_max_model_len(model->engine->max_model_len());
    card->set_vocab_size(model->config.vocab_size);
  }
  return grpc::Status::OK;
}

}  // namespace somnus
