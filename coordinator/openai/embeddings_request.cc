// The fields of a request for embeddings.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/http/json_body.h"
#include "coordinator/openai/embeddings.h"
#include "coordinator/openai/request_fields.h"

namespace somnus {
namespace {

using Json = nlohmann::json;
using Api = EmbeddingOptions::Api;

constexpr size_t kMaxFormatBytes = 64;
constexpr char kInputKinds[] =
    "input must be a string, a list of strings, a list of token ids or a list of such lists";

const FieldTable& TableOf(Api api) {
  return api == Api::kPooling ? PoolingFieldTable() : EmbeddingsFieldTable();
}

// A word out of `taken`; any of `others` is vLLM's, and not supported here.
std::string ReadWord(FieldReader* fields, const char* name, std::initializer_list<absl::string_view> taken,
                     std::initializer_list<absl::string_view> others) {
  const std::optional<std::string> word = fields->String(name, kMaxFormatBytes);
  if (!word.has_value() || std::find(taken.begin(), taken.end(), *word) != taken.end())
    return word.value_or("");
  const bool is_known = std::find(others.begin(), others.end(), *word) != others.end();
  fields->Fail(name, is_known ? absl::StrCat(name, " ", *word, " is not supported; it may be ",
                                             absl::StrJoin(taken, " or "))
                              : absl::StrCat(name, " must be ", absl::StrJoin(taken, " or ")));
  return "";
}

// The errors are vLLM's; but the model's own number of dimensions is always fine, since nothing is cut then.
void ReadDimensions(FieldReader* fields, const ServedModel& model, EmbeddingOptions* options) {
  const std::optional<int64_t> dimensions = fields->Int("dimensions");
  if (!dimensions.has_value() || *dimensions == model.config.embedding_dim) return;
  const MatryoshkaDimensions& may_be = model.pooling.matryoshka;
  const auto fail = [fields](const std::string& message) { fields->Fail("dimensions", message); };
  if (!may_be.any && may_be.listed.empty())
    return fail(
        absl::StrCat("Model \"", model.name,
                     "\" does not support matryoshka representation, changing output dimensions will lead "
                     "to poor results."));
  if (!may_be.any &&
      std::find(may_be.listed.begin(), may_be.listed.end(), *dimensions) == may_be.listed.end())
    return fail(
        absl::StrCat("Model \"", model.name, "\" only supports [", absl::StrJoin(may_be.listed, ", "),
                     "] matryoshka dimensions, use other output dimensions will lead to poor results."));
  if (*dimensions < 1) return fail("Dimensions must be greater than 0");
  if (*dimensions > model.config.embedding_dim)
    return fail(absl::StrCat("dimensions must be at most ", model.config.embedding_dim, ", the model's own"));
  options->dimensions = static_cast<int32_t>(*dimensions);
}

// vLLM 0.33 has `use_activation` in the place of `normalize`.
void ReadNormalize(FieldReader* fields, bool by_default, EmbeddingOptions* options) {
  const std::optional<bool> normalize = fields->Bool("normalize");
  const std::optional<bool> activation = fields->Bool("use_activation");
  if (normalize.has_value() && activation.has_value() && *normalize != *activation)
    return fields->Fail("normalize", "normalize and use_activation mean the same, and differ");
  options->normalize = normalize.value_or(activation.value_or(by_default));
}

void ReadOptions(FieldReader* fields, const ServedModel& model, EmbeddingOptions* options) {
  options->pooling = model.pooling.type;
  options->base64 =
      ReadWord(fields, "encoding_format", {"float", "base64"}, {"bytes", "bytes_only"}) == "base64";
  ReadWord(fields, "embed_dtype", {"float32"}, {"float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"});
  ReadWord(fields, "endianness", {"native", "little"}, {"big"});
  ReadWord(fields, "padding", {"do_not_pad"}, {"max_length"});
  if (options->api == Api::kPooling) {
    ReadWord(
        fields, "task", {"embed"},
        {"token_embed", "token_classify", "classify", "score", "plugin", "encode", "embed&token_classify"});
    if (fields->Find("data") != nullptr) fields->Fail("data", "data is not supported; input has the texts");
  }
  for (const char* name : {"mm_processor_kwargs", "media_io_kwargs"}) {
    const Json* value = fields->Find(name);
    if (value != nullptr && !(value->is_structured() && value->empty()))
      fields->Fail(name, absl::StrCat(name, " is not supported"));
  }
  ReadDimensions(fields, model, options);
  ReadNormalize(fields, model.pooling.normalizes, options);
  if (!model.pooling.problem.empty()) fields->Fail("model", model.pooling.problem);
}

// `field`: the name of the text in the request.
void AddText(FieldReader* fields, const ServedModel& model, const char* field, absl::string_view text,
             bool add_special_tokens, GenerateParams* params) {
  if (!MayFitContext(text, model)) {
    return fields->Fail(field, absl::StrCat("The ", field, " is longer than the context of ",
                                            model.engine->max_model_len(), " tokens"));
  }
  params->prompts.emplace_back().ids = model.tokenizer->Encode(text, add_special_tokens);
}

void AddIds(FieldReader* fields, const ServedModel& model, const Json& ids, GenerateParams* params) {
  GenerateParams::Prompt prompt;
  const int32_t vocab = model.config.vocab_size;
  for (const Json& item : ids) {
    const int64_t id = *AsInt(item);
    if (id < 0 || id >= vocab)
      return fields->Fail("input", absl::StrCat("input ids must be in [0, ", vocab, ")"));
    prompt.ids.push_back(static_cast<int32_t>(id));
  }
  params->prompts.push_back(std::move(prompt));
}

void AddInput(FieldReader* fields, const ServedModel& model, const Json& input, bool add_special_tokens,
              GenerateParams* params) {
  if (input.is_string())
    return AddText(fields, model, "input", input.get_ref<const std::string&>(), add_special_tokens, params);
  if (IsIdList(input)) return AddIds(fields, model, input, params);
  const bool is_empty = input.is_array() && input.empty();
  fields->Fail("input", is_empty ? "input must not be empty" : kInputKinds);
}

void ReadInputs(FieldReader* fields, const ServedModel& model, const ApiLimits& limits,
                GenerateParams* params) {
  const Json* input = fields->Find("input");
  if (input == nullptr) return fields->Fail("input", "input is missing");
  const bool special = fields->Bool("add_special_tokens").value_or(true);
  if (!input->is_array() || input->empty() || IsIdList(*input))
    return AddInput(fields, model, *input, special, params);
  if (input->size() > static_cast<size_t>(limits.max_prompts) && !(*input)[0].is_number())
    return fields->Fail("input", absl::StrCat("input has more than ", limits.max_prompts, " entries"));
  const bool texts = (*input)[0].is_string();
  for (const Json& item : *input) {
    if (texts != item.is_string()) return fields->Fail("input", "input must hold entries of one kind");
    AddInput(fields, model, item, special, params);
    if (!fields->ok()) return;
  }
}

// A prompt that pools may fill the whole context: no output follows.
void FitInputs(FieldReader* fields, const ServedModel& model, const char* field, GenerateParams* params) {
  const int64_t context = model.engine->max_model_len();
  const std::optional<int64_t> truncate = fields->Int("truncate_prompt_tokens", -1, context);
  if (truncate == 0) fields->Fail("truncate_prompt_tokens", "truncate_prompt_tokens must not be 0");
  const std::string side = ReadWord(fields, "truncation_side", {"left", "right"}, {});
  if (!fields->ok()) return;
  for (GenerateParams::Prompt& prompt : params->prompts) {
    const auto keep =
        static_cast<size_t>(truncate.value_or(-1) == -1 ? context : std::min(*truncate, context));
    if (truncate.has_value() && prompt.ids.size() > keep) {
      const auto rest = static_cast<std::ptrdiff_t>(prompt.ids.size() - keep);
      side == "right" ? prompt.ids.resize(keep)
                      : static_cast<void>(prompt.ids.erase(prompt.ids.begin(), prompt.ids.begin() + rest));
    }
    if (prompt.ids.empty()) return fields->Fail(field, absl::StrCat(field, " must not be empty"));
    if (static_cast<int64_t>(prompt.ids.size()) > context) {
      return fields->Fail(
          field, absl::StrCat("The ", field, " has ", prompt.ids.size(), " tokens, more than the context of ",
                              context, "; truncate_prompt_tokens cuts it"));
    }
  }
}

// A response that is too large would be refused only once all of it has been computed.
void CheckResponseBytes(FieldReader* fields, const ServedModel& model, const ApiLimits& limits,
                        const GenerateParams& params) {
  const EmbeddingOptions& options = *params.embedding;
  const int64_t numbers = options.dimensions > 0 ? options.dimensions : model.config.embedding_dim;
  const int64_t list_bytes = 12;  // of a usual number
  const int64_t bytes = options.base64 ? numbers * 16 / 3 : numbers * list_bytes;
  const auto count = static_cast<int64_t>(params.prompts.size());
  if (count * bytes <= limits.max_response_bytes) return;
  fields->Fail("input", absl::StrCat("the embeddings of ", count, " inputs take about ", count * bytes,
                                     " bytes, and a response may take ", limits.max_response_bytes));
}

GenerateParams BeginParams(FieldReader* fields, Api api, const ServedModel& model) {
  GenerateParams params;
  params.embedding = EmbeddingOptions{.api = api};
  params.sampling.temperature = 0;
  ReadIdentity(fields, EmbeddingsIdPrefix(api), &params);
  ReadOptions(fields, model, &*params.embedding);
  return params;
}

GenerateOrError Complete(FieldReader* fields, const ServedModel& model, const ApiLimits& limits,
                         const char* field, GenerateParams params) {
  if (fields->ok()) FitInputs(fields, model, field, &params);
  if (fields->ok()) CheckResponseBytes(fields, model, limits, params);
  if (!fields->ok()) return fields->error();
  return params;
}

}  // namespace

const char* EmbeddingsIdPrefix(Api api) { return api == Api::kPooling ? "pooling-" : "embd-"; }

GenerateOrError ParseEmbeddingsRequest(absl::string_view body, Api api, const ServedModel& model,
                                       const ApiLimits& limits) {
  const absl::StatusOr<Json> json =
      ParseJsonObject(body, JsonLimits{limits.max_json_depth, limits.max_json_values});
  if (!json.ok()) return BadRequest("", json.status().message());
  FieldReader fields(*json, TableOf(api));
  if (fields.Find("messages") == nullptr) return ParseEmbeddingsFields(*json, api, model, limits);
  if (std::optional<ApiError> error = CheckModel(&fields, model)) return *std::move(error);
  if (fields.Find("input") != nullptr) return BadRequest("messages", "messages and input exclude each other");
  GenerateParams params = BeginParams(&fields, api, model);
  const bool special = fields.Bool("add_special_tokens").value_or(false);
  RenderedChat chat;
  if (fields.ok()) chat = RenderChat(body, &fields, model, /*any_role=*/false, /*generation_prompt=*/false);
  if (fields.ok()) AddText(&fields, model, "messages", chat.text, special, &params);
  return Complete(&fields, model, limits, "messages", std::move(params));
}

GenerateOrError ParseEmbeddingsFields(const Json& json, Api api, const ServedModel& model,
                                      const ApiLimits& limits) {
  FieldReader fields(json, TableOf(api));
  if (std::optional<ApiError> error = CheckModel(&fields, model)) return *std::move(error);
  GenerateParams params = BeginParams(&fields, api, model);
  if (fields.ok()) ReadInputs(&fields, model, limits, &params);
  return Complete(&fields, model, limits, "input", std::move(params));
}

}  // namespace somnus
