#include "coordinator/token_routes/render_request.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/response_json.h"

namespace somnus {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// The number that clients write: 0.7, not the double nearest to the float 0.7f.
OrderedJson Number(float value) {
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
  return OrderedJson::parse(text, end.ptr);
}

// One of the request's fields that name a form, as a member of structured_outputs.
OrderedJson FormOfField(const std::string& field, const OrderedJson& value) {
  if (field == "structured_outputs") return value;
  if (field == "guided_json") return {{"json", value}};
  if (field == "guided_regex") return {{"regex", value}};
  if (field == "guided_choice") return {{"choice", value}};
  if (field == "guided_grammar") return {{"grammar", value}};
  if (value["type"] == "json_object") return {{"json_object", true}};
  if (value["type"] == "json_schema") return {{"json", value["json_schema"]["schema"]}};
  return {{"structural_tag", value}};
}

class Renderer {
 public:
  // `body` has been parsed to `params`.
  Renderer(absl::string_view body, const Json& json, const GenerateParams& params, const ServedModel& model)
      : body_(body), json_(json), params_(params), model_(model) {}

  // Returns why no request of token ids says the same; nullopt: there is one.
  std::optional<ApiError> Refusal() const {
    if (params_.sampling.beam_search.has_value())
      return BadRequest("use_beam_search", "a beam search cannot be sent as token ids");
    if (params_.best_of > params_.n)
      return BadRequest("best_of", "best_of above n cannot be sent as token ids");
    return std::nullopt;
  }

  void AppendRequest(size_t prompt, std::string* out) const {
    *out += "{\"request_id\":";
    // Each has an id of its own, by which it could be aborted.
    AppendJsonString(prompt == 0 ? params_.response_id : absl::StrCat(params_.response_id, "-", prompt), out);
    *out += ",\"token_ids\":";
    AppendIds(params_.prompts[prompt].ids, out);
    absl::StrAppend(out, ",\"features\":null,\"sampling_params\":", Dump(Sampling(params_.prompts[prompt])),
                    ",\"model\":");
    AppendJsonString(model_.name, out);
    absl::StrAppend(out, ",\"stream\":", params_.stream ? "true" : "false",
                    ",\"stream_options\":", Dump(Given("stream_options")),
                    ",\"cache_salt\":", Dump(Given("cache_salt")), ",\"priority\":", params_.priority,
                    ",\"kv_transfer_params\":null}");
  }

 private:
  static std::string Dump(const OrderedJson& value) {
    return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }

  // A field as the client has given it; null: it is not given.
  OrderedJson Given(const char* name) const {
    const auto value = json_.find(name);
    return value == json_.end() ? OrderedJson(nullptr) : OrderedJson::parse(value->dump());
  }

  OrderedJson Form() const {
    if (!params_.grammar.has_value()) return nullptr;
    const GrammarField& grammar = *params_.grammar;
    // A form that the request has not written: of its tools, alone or beside another form.
    const bool has_tools = !Given("tools").is_null() || !Given("functions").is_null();
    if (has_tools && grammar.source.kind == GrammarKind::kStructuralTag)
      return {{"structural_tag", OrderedJson::parse(grammar.source.text)}};
    const size_t max_keys = static_cast<size_t>(model_.gate.max_keys) + 1;
    return FormOfField(grammar.field, ParseInOrder(body_, {grammar.field}, max_keys)[grammar.field]);
  }

  // The reasoning before the form, as the field `reasoning` of /inference/v1/generate takes it.
  OrderedJson Reasoning() const {
    if (!params_.reasoning.has_value()) return nullptr;
    const std::optional<int64_t>& most = params_.reasoning->max_tokens;
    return {{"is_open", params_.reasoning->is_open},
            {"max_tokens", most.has_value() ? OrderedJson(*most) : OrderedJson(nullptr)}};
  }

  OrderedJson Bias() const {
    if (params_.sampling.logit_bias.empty()) return nullptr;
    OrderedJson bias = OrderedJson::object();
    for (const auto& [id, value] : params_.sampling.logit_bias) bias[absl::StrCat(id)] = Number(value);
    return bias;
  }

  static OrderedJson CountOrNull(bool is_given, int32_t count) {
    return is_given ? OrderedJson(count) : OrderedJson(nullptr);
  }

  // Every parameter as it counts, with the defaults of the model and of the route.
  OrderedJson Sampling(const GenerateParams::Prompt& prompt) const {
    const SamplingParams& s = params_.sampling;
    return {{"n", params_.n},
            {"presence_penalty", Number(s.presence_penalty)},
            {"frequency_penalty", Number(s.frequency_penalty)},
            {"repetition_penalty", Number(s.repetition_penalty)},
            {"temperature", Number(s.temperature)},
            {"top_p", Number(s.top_p)},
            {"top_k", s.top_k},
            {"min_p", Number(s.min_p)},
            {"seed", Given("seed")},
            {"stop", params_.output.stop},
            {"stop_token_ids", s.stop_token_ids},
            {"ignore_eos", Given("ignore_eos") == true},
            {"max_tokens", prompt.max_tokens},
            {"min_tokens", s.min_tokens},
            {"logprobs", CountOrNull(params_.logprobs, params_.num_top_logprobs)},
            {"prompt_logprobs", CountOrNull(params_.prompt_logprobs, s.num_prompt_logprobs)},
            {"detokenize", true},
            {"skip_special_tokens", params_.output.skip_special_tokens},
            {"include_stop_str_in_output", params_.output.include_stop_str_in_output},
            {"structured_outputs", Form()},
            {"reasoning", Reasoning()},
            {"logit_bias", Bias()},
            {"allowed_token_ids", Given("allowed_token_ids")},
            {"bad_words", Given("bad_words").is_null() ? OrderedJson::array() : Given("bad_words")}};
  }

  const absl::string_view body_;
  const Json& json_;
  const GenerateParams& params_;
  const ServedModel& model_;
};

BodyOrError Render(absl::string_view body, const GenerateOrError& parsed, const ServedModel& model,
                   const ApiLimits& limits) {
  if (const auto* error = std::get_if<ApiError>(&parsed)) return *error;
  const auto& params = std::get<GenerateParams>(parsed);
  const absl::StatusOr<Json> json =
      ParseJsonObject(body, JsonLimits{limits.max_json_depth, limits.max_json_values});
  if (!json.ok()) return BadRequest("", json.status().message());
  const Renderer renderer(body, *json, params, model);
  if (std::optional<ApiError> refusal = renderer.Refusal()) return *std::move(refusal);
  std::string out = params.chat ? "" : "[";
  for (size_t i = 0; i < params.prompts.size(); ++i) {
    if (i > 0) out += ',';
    renderer.AppendRequest(i, &out);
    if (static_cast<int64_t>(out.size()) > limits.max_response_bytes)
      return BadRequest(
          "", absl::StrCat("the answer would be longer than ", limits.max_response_bytes, " bytes"));
  }
  return out + (params.chat ? "" : "]");
}

}  // namespace

BodyOrError RenderChatRequest(absl::string_view body, const ServedModel& model, const ApiLimits& limits) {
  return Render(body, ParseChatRequest(body, model, limits), model, limits);
}

BodyOrError RenderCompletionRequest(absl::string_view body, const ServedModel& model,
                                    const ApiLimits& limits) {
  return Render(body, ParseCompletionRequest(body, model, limits), model, limits);
}

}  // namespace somnus
