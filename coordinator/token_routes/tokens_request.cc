#include "coordinator/token_routes/tokens_request.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/answer_fields.h"
#include "coordinator/openai/field_reader.h"
#include "coordinator/openai/request_fields.h"
#include "coordinator/token_routes/tokens_writer.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

using enum FieldType;

// Fields that mean here what they mean on the completion route: members of sampling_params, and those beside
// it.
constexpr const char* kSamplingNames[] = {"n",
                                          "presence_penalty",
                                          "frequency_penalty",
                                          "repetition_penalty",
                                          "temperature",
                                          "top_p",
                                          "top_k",
                                          "min_p",
                                          "seed",
                                          "stop",
                                          "stop_token_ids",
                                          "ignore_eos",
                                          "max_tokens",
                                          "min_tokens",
                                          "logprobs",
                                          "prompt_logprobs",
                                          "skip_special_tokens",
                                          "spaces_between_special_tokens",
                                          "include_stop_str_in_output",
                                          "truncate_prompt_tokens",
                                          "structured_outputs",
                                          "logit_bias",
                                          "allowed_token_ids",
                                          "bad_words",
                                          "thinking_token_budget",
                                          "repetition_detection"};
constexpr const char* kTopNames[] = {"model",
                                     "stream",
                                     "stream_options",
                                     "cache_salt",
                                     "priority",
                                     "request_id",
                                     "return_weight_versions",
                                     "kv_transfer_params",
                                     "ec_transfer_params"};

constexpr FieldSpec kOwnSampling[] = {
    {"max_tokens", kInteger, "the most tokens of a choice (16); null: to the end of the context",
     R"("minimum": 1)"},
    {"detokenize", kBoolean, "has no effect: the answer has no text"},
    {"reasoning", kOther,
     "what goes before a form: whether the prompt ends inside of reasoning, and tokens after which the "
     "reasoning is ended; null: the form begins at once",
     R"("type": "object", "properties": {"is_open": {"type": "boolean"}, "max_tokens": {"type": "integer", )"
     R"("minimum": 0}}, "examples": [{}])"},
    // Of older versions, and of other servers.
    {"extra_args", kOther, ""},
    {"logits_processors", kOther, ""},
    {"guided_decoding", kOther, ""},
    {"best_of", kOther, ""},
};
constexpr FieldSpec kOwnTop[] = {
    {"token_ids", kTokenIds, "the prompt", R"("minItems": 1, "examples": [[97, 98]])", false, true},
    {"sampling_params", kOther, "how tokens are chosen, and when they end", "", false, false,
     &SamplingFieldTable},
    {"output_mode", kString, "tokens: the answer has token ids, and no text", R"("enum": ["tokens"])"},
    {"features", kOther, ""},
};

// null is "not given" here for every field.
std::vector<FieldSpec> OfCompletions(absl::Span<const char* const> names) {
  std::vector<FieldSpec> specs;
  for (const char* name : names) {
    specs.push_back(*CompletionFieldTable().Find(name));
    specs.back().not_null = false;
  }
  return specs;
}

// Members that would change the answer, and that this server does not have.
void RefuseOthers(FieldReader* top, FieldReader* sampling) {
  const auto refuse = [](FieldReader* fields, const char* name) {
    const Json* value = fields->Find(name);
    if (value != nullptr && !(value->is_structured() && value->empty()))
      fields->Fail(name, absl::StrCat(name, " is not supported"));
  };
  refuse(top, "features");
  if (top->String("output_mode", 64).value_or("tokens") != "tokens")
    top->Fail("output_mode", "output_mode must be tokens; /v1/completions takes token ids and gives a text");
  for (const char* name : {"extra_args", "logits_processors", "guided_decoding", "best_of"})
    refuse(sampling, name);
  RefuseOtherServersForms(top);
  RefuseOtherServersForms(sampling);
  sampling->Bool("detokenize");
}

void CopyGiven(FieldReader* from, const char* name, Json* to) {
  if (const Json* value = from->Find(name)) (*to)[name] = *value;
}

// `sampling`: the object sampling_params. Returns the fields of the completion route, without the prompt.
Json CompletionFields(FieldReader* top, FieldReader* sampling, const ServedModel& model) {
  Json fields = Json::object();
  for (const char* name : kTopNames) CopyGiven(top, name, &fields);
  for (const char* name : kSamplingNames) CopyGiven(sampling, name, &fields);
  // null, unlike a field that is not given, means: to the end of the context.
  if (sampling->Has("max_tokens") && sampling->Find("max_tokens") == nullptr)
    fields["max_tokens"] = model.engine->max_model_len();
  return fields;
}

// The text of a body that has the form with its keys in order; empty: the request has no form.
std::string FormInOrder(absl::string_view body, FieldReader* sampling, const ServedModel& model) {
  if (sampling->Find("structured_outputs") == nullptr) return "";
  const nlohmann::ordered_json ordered =
      ParseInOrder(body, {"sampling_params"}, static_cast<size_t>(model.gate.max_keys) + 1);
  return nlohmann::ordered_json{{"structured_outputs", ordered["sampling_params"]["structured_outputs"]}}
      .dump();
}

// Sets the bounds of the reasoning, which the render route tells (render_request.cc).
void ReadReasoning(FieldReader* sampling, const ServedModel& model, GenerateParams* params) {
  constexpr char kField[] = "reasoning";
  const Json* given = sampling->Find(kField);
  if (given == nullptr) return;
  if (!given->is_object()) return sampling->Fail(kField, "reasoning must be an object");
  FieldReader inner(*given);
  const bool is_open = inner.Bool("is_open").value_or(false);
  const std::optional<int64_t> max_tokens = inner.Int("max_tokens", 0);
  if (!inner.ok()) return sampling->Fail(kField, absl::StrCat("reasoning.", inner.error().message));
  std::optional<ReasoningBounds> bounds = ReasoningBoundsOf(model, is_open);
  if (!bounds.has_value()) {
    if (is_open || max_tokens.has_value()) sampling->Fail(kField, "this model has no reasoning");
    return;
  }
  if (max_tokens.has_value() && bounds->forced_end.empty())
    return sampling->Fail(kField, "the reasoning of this model cannot be ended from outside");
  bounds->max_tokens = max_tokens;
  params->reasoning = std::move(bounds);
}

ApiError InSamplingNames(ApiError error) {
  const bool is_member = std::any_of(std::begin(kSamplingNames), std::end(kSamplingNames),
                                     [&](const char* name) { return error.param == name; });
  if (is_member || error.param == "reasoning") error.param = absl::StrCat("sampling_params.", error.param);
  if (error.param == "prompt") error.param = "token_ids";
  return error;
}

}  // namespace

const FieldTable& TokensFieldTable() {
  static const auto* const table =
      new FieldTable({OfCompletions(kTopNames), OfCompletions(kOtherServersForms), kOwnTop});
  return *table;
}

const FieldTable& SamplingFieldTable() {
  static const auto* const table =
      new FieldTable({OfCompletions(kSamplingNames), OfCompletions(kOtherServersForms), kOwnSampling});
  return *table;
}

GenerateOrError ParseTokensRequest(absl::string_view body, const ServedModel& model,
                                   const ApiLimits& limits) {
  const absl::StatusOr<Json> json =
      ParseJsonObject(body, JsonLimits{limits.max_json_depth, limits.max_json_values});
  if (!json.ok()) return BadRequest("", json.status().message());
  FieldReader top(*json, TokensFieldTable());
  const Json none = Json::object();
  const Json* given = top.Find("sampling_params");
  if (given != nullptr && !given->is_object())
    top.Fail("sampling_params", "sampling_params must be an object");
  FieldReader sampling(given != nullptr && given->is_object() ? *given : none, SamplingFieldTable());
  RefuseOthers(&top, &sampling);
  std::optional<std::vector<int32_t>> ids =
      top.TokenIds("token_ids", model.config.vocab_size, std::numeric_limits<size_t>::max());
  if (!ids.has_value() || ids->empty())
    top.Fail("token_ids", "token_ids must be a list of at least one token id");
  if (!top.ok()) return top.error();
  if (!sampling.ok()) {
    ApiError error = sampling.error();
    error.param = absl::StrCat("sampling_params.", error.param);
    return error;
  }

  Json fields = CompletionFields(&top, &sampling, model);
  fields["prompt"] = *std::move(ids);
  GenerateOrError parsed = ParseCompletionFields(fields, model, limits, FormInOrder(body, &sampling, model));
  if (auto* error = std::get_if<ApiError>(&parsed)) return InSamplingNames(std::move(*error));
  auto& params = std::get<GenerateParams>(parsed);
  ReadReasoning(&sampling, model, &params);
  if (!sampling.ok()) return InSamplingNames(sampling.error());
  const Json* id = top.Find("request_id");
  params.response_id = id == nullptr ? NewResponseId(kTokensIdPrefix)
                                     : absl::StrCat(kTokensIdPrefix, id->get_ref<const std::string&>());
  params.tokens_as_ids = true;
  params.return_token_ids = true;
  params.make_writer = MakeTokensWriter;
  return parsed;
}

}  // namespace somnus
