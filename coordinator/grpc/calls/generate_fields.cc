#include "coordinator/grpc/calls/generate_fields.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "coordinator/grpc/calls/grpc_call.h"
#include "coordinator/http/api_key.h"
#include "coordinator/openai/embeddings.h"
#include "coordinator/openai/request_fields.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

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
GenerateOrError Read(const grpc::ServerContext& context, const Request& request, const ServedModel& model,
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

}  // namespace

GenerateOrError ReadRequest(const grpc::ServerContext& context, const v1::GenerateRequest& request,
                            const ServedModel& model, const ApiLimits& limits) {
  return Read(context, request, model, limits);
}

GenerateOrError ReadRequest(const grpc::ServerContext& context, const v1::EmbedRequest& request,
                            const ServedModel& model, const ApiLimits& limits) {
  return Read(context, request, model, limits);
}

}  // namespace somnus
