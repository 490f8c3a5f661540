#include "coordinator/openai/request_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/request_bounds.h"
#include "coordinator/http/api_key.h"
#include "coordinator/openai/word_speller.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBadWordBytes = 16 << 10;
constexpr size_t kMaxBadWordEntries = 16 << 10;  // before repeated entries are dropped
constexpr size_t kMaxWordBytes = 64;
constexpr double kHuge = 1e6;          // larger numbers are cut to this, which is far from float's limits
constexpr double kGreedyBelow = 1e-5;  // as in vLLM

std::mt19937_64& Random() {
  thread_local std::mt19937_64 random{[] {
    std::random_device device;
    return (static_cast<uint64_t>(device()) << 32) ^ device();
  }()};
  return random;
}

void Refuse(FieldReader* fields, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (fields->Find(name) != nullptr) fields->Fail(name, absl::StrCat(name, " is not supported"));
  }
}

// Refuses the fields of foreign servers that, if ignored, would give a text of a wrong kind or length.
void RefuseOtherServersFields(FieldReader* fields) {
  RefuseOtherServersForms(fields);
  const Json* modalities = fields->Find("modalities");
  if (modalities != nullptr && *modalities != Json::array() && *modalities != Json::array({"text"}))
    fields->Fail("modalities", "only modalities [\"text\"] are supported");
  const bool has_length =
      fields->Find("max_tokens") != nullptr || fields->Find("max_completion_tokens") != nullptr;
  if (fields->Find("n_predict") != nullptr && !has_length)
    fields->Fail("n_predict", "n_predict is not supported; max_tokens says how many tokens come");
}

// Refuses fields that this server does not support. A field of the other route is unknown here, and unknown
// fields are ignored.
void RefuseUnsupported(FieldReader* fields, bool chat) {
  Refuse(fields, {"repetition_detection", "kv_transfer_params", "ec_transfer_params", "logits_processors"});
  if (chat) {
    Refuse(fields, {"audio", "chat_template"});
  } else {
    Refuse(fields, {"suffix", "prompt_embeds"});
  }
  if (!chat && fields->Int("thinking_token_budget", -1).value_or(-1) != -1)
    fields->Fail("thinking_token_budget", "thinking_token_budget is of /v1/chat/completions");
  for (const char* name : {"mm_processor_kwargs", "media_io_kwargs", "logprob_token_ids"}) {
    const Json* value = fields->Find(name);
    if (value != nullptr && !(value->is_structured() && value->empty()))
      fields->Fail(name, absl::StrCat(name, " is not supported"));
  }
}

// Only the scheduling policy `priority` uses the field.
void ReadPriority(FieldReader* fields, GenerateParams* params) {
  const int64_t priority = fields->Int("priority").value_or(0);
  params->priority = static_cast<int32_t>(std::clamp<int64_t>(priority, std::numeric_limits<int32_t>::min(),
                                                              std::numeric_limits<int32_t>::max()));
}

// Fields that change nothing here must have the right type all the same, and null only where vLLM accepts it.
void CheckOtherFields(FieldReader* fields, bool chat) {
  fields->CheckNulls();
  if (chat) {
    for (const char* name : {"include_reasoning", "parallel_tool_calls"}) fields->Bool(name);
  }
  for (const char* name : {"return_token_offsets", "watermarking", "spaces_between_special_tokens"})
    fields->Bool(name);
  fields->String("session_id", std::numeric_limits<size_t>::max());
  fields->Number("length_penalty", std::numeric_limits<double>::lowest(), std::numeric_limits<double>::max());
  fields->Int("routed_experts_prompt_start", 0);
  const std::optional<std::string> payload = fields->String("mm_payload", kMaxWordBytes);
  if (payload.has_value() && *payload != "tensors" && *payload != "none")
    fields->Fail("mm_payload", "mm_payload must be tensors or none");
}

// The rules are vLLM's: the salt may become part of a name in external caches.
void ReadCacheSalt(FieldReader* fields, GenerateParams* params) {
  constexpr size_t kMaxSaltBytes = 128;
  const std::optional<std::string> salt = fields->String("cache_salt", kMaxSaltBytes);
  if (!salt.has_value()) return;
  if (salt->empty() || salt->find_first_of("@/\\\0", 0, 4) != std::string::npos) {
    return fields->Fail("cache_salt", "cache_salt must not be empty nor hold '@', '/', '\\' or NUL");
  }
  params->cache_salt = *salt;
}

void ReadLogitBias(FieldReader* fields, int32_t vocab_size, const ApiLimits& limits,
                   SamplingParams* sampling) {
  const Json* bias = fields->Find("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object())
    return fields->Fail("logit_bias", "logit_bias must be an object of token ids and numbers");
  if (bias->size() > static_cast<size_t>(limits.max_logit_bias)) {
    return fields->Fail("logit_bias",
                        absl::StrCat("logit_bias must have at most ", limits.max_logit_bias, " entries"));
  }
  for (const auto& [key, item] : bias->items()) {
    int64_t id;
    if (!absl::SimpleAtoi(key, &id) || id < 0 || id >= vocab_size) {
      return fields->Fail("logit_bias",
                          absl::StrCat("logit_bias must have token ids in [0, ", vocab_size, ") as keys"));
    }
    const std::optional<double> value = AsNumber(item);
    if (!value.has_value() || !std::isfinite(*value)) {
      return fields->Fail("logit_bias", "logit_bias must have finite numbers as values");
    }
    sampling->logit_bias[static_cast<int32_t>(id)] = static_cast<float>(std::clamp(*value, -100.0, 100.0));
  }
}

// The text never completes a bad word, however the word is cut into tokens. White space around a word is
// dropped: a word may stand at the start of a text, or after anything.
void ReadBadWords(FieldReader* fields, const ServedModel& model, const ApiLimits& limits,
                  SamplingParams* sampling) {
  const auto given =
      fields->Strings("bad_words", /*lone_string=*/false, kMaxBadWordEntries, kMaxBadWordBytes);
  if (!given.has_value()) return;
  std::set<absl::string_view> words;
  for (const std::string& word : *given) words.insert(absl::StripAsciiWhitespace(word));
  if (words.size() > static_cast<size_t>(limits.max_bad_words))
    return fields->Fail("bad_words",
                        absl::StrCat("bad_words must have at most ", limits.max_bad_words, " words"));
  for (const absl::string_view word : words) {
    if (word.empty()) return fields->Fail("bad_words", "bad_words must hold words that make tokens");
    const size_t num_tokens = std::max(model.tokenizer->Encode(word, false).size(),
                                       model.tokenizer->Encode(absl::StrCat(" ", word), false).size());
    if (num_tokens > static_cast<size_t>(limits.max_bad_word_tokens)) {
      return fields->Fail("bad_words", absl::StrCat("bad_words must hold words of at most ",
                                                    limits.max_bad_word_tokens, " tokens"));
    }
    sampling->bad_texts.push_back(model.word_speller->Spell(word));
  }
}

// A top_k above the vocabulary's size is no limit; so is a top_k that no integer can hold.
std::optional<int64_t> ReadTopK(FieldReader* fields) {
  const Json* value = fields->Find("top_k");
  if (value != nullptr && value->is_number() && value->get<double>() >= 1e18) return 0;
  return fields->Int("top_k", -1);
}

void ReadSampling(FieldReader* fields, const ServedModel& model, GenerateParams* params) {
  SamplingParams* s = &params->sampling;
  const GenerationDefaults none;
  const GenerationDefaults& d = model.generation_defaults ? model.config.generation : none;
  const auto number = [&](const char* name, double fallback, double min, double max) {
    return static_cast<float>(std::min(fields->Number(name, min, max).value_or(fallback), kHuge));
  };
  constexpr double kMax = std::numeric_limits<double>::max();
  s->temperature = number("temperature", d.temperature.value_or(1.0), 0.0, kMaxTemperature);
  if (s->temperature < kGreedyBelow) s->temperature = 0.0f;
  s->top_p = number("top_p", d.top_p.value_or(1.0), 0.0, 1.0);
  if (fields->Find("top_p") != nullptr && !(s->top_p > 0.0f))
    fields->Fail("top_p", "top_p must be in (0, 1]");
  const int64_t top_k = ReadTopK(fields).value_or(d.top_k.value_or(0));
  s->top_k = static_cast<int32_t>(std::clamp<int64_t>(top_k, 0, model.config.vocab_size));
  s->min_p = number("min_p", d.min_p.value_or(0.0), 0.0, 1.0);
  s->presence_penalty = number("presence_penalty", 0.0, -2.0, 2.0);
  s->frequency_penalty = number("frequency_penalty", 0.0, -2.0, 2.0);
  s->repetition_penalty = number("repetition_penalty", d.repetition_penalty.value_or(1.0), 0.0, kMax);
  if (!(s->repetition_penalty > 0.0f))
    fields->Fail("repetition_penalty", "repetition_penalty must be greater than 0");
  const std::optional<int64_t> seed = fields->Int("seed");
  params->own_seeds = !seed.has_value();
  params->seed = seed.has_value() ? static_cast<uint64_t>(*seed) : RandomSeed();
}

void ReadStops(FieldReader* fields, const ServedModel& model, const ApiLimits& limits,
               GenerateParams* params) {
  SamplingParams& s = params->sampling;
  const int32_t vocab = model.config.vocab_size;
  if (auto stop = fields->Strings("stop", /*lone_string=*/true, static_cast<size_t>(limits.max_stop_strings),
                                  static_cast<size_t>(limits.max_stop_string_bytes)))
    params->output.stop = *std::move(stop);
  if (auto ids = fields->TokenIds("stop_token_ids", vocab, static_cast<size_t>(limits.max_stop_token_ids)))
    s.stop_token_ids = *std::move(ids);
  if (!fields->Bool("ignore_eos").value_or(false)) s.eos_token_ids = model.config.eos_token_ids;
  if (auto ids =
          fields->TokenIds("allowed_token_ids", vocab, static_cast<size_t>(limits.max_allowed_token_ids))) {
    if (ids->empty()) fields->Fail("allowed_token_ids", "allowed_token_ids must not be empty");
    s.allowed_token_ids = *std::move(ids);
  }
  ReadLogitBias(fields, vocab, limits, &s);
  ReadBadWords(fields, model, limits, &s);
  params->output.include_stop_str_in_output = fields->Bool("include_stop_str_in_output").value_or(false);
  params->output.skip_special_tokens = fields->Bool("skip_special_tokens").value_or(true);
}

void ReadStreaming(FieldReader* fields, GenerateParams* params) {
  params->stream = fields->Bool("stream").value_or(false);
  params->stream_interval = static_cast<int32_t>(
      std::min<int64_t>(fields->Int("stream_interval", 1).value_or(1), std::numeric_limits<int32_t>::max()));
  const Json* options = fields->Find("stream_options");
  if (options == nullptr) return;
  if (options->is_object() && options->empty()) return;
  if (!params->stream) return fields->Fail("stream_options", "stream_options needs stream to be true");
  if (!options->is_object()) return fields->Fail("stream_options", "stream_options must be an object");
  FieldReader inner(*options);
  params->include_usage = inner.Bool("include_usage").value_or(false);
  const bool continuous = inner.Bool("continuous_usage_stats").value_or(false);
  params->continuous_usage = params->include_usage && continuous;
  if (!inner.ok()) fields->Fail("stream_options", inner.error().message);
}

void ReadBestOf(FieldReader* fields, const ApiLimits& limits, bool has_beams, GenerateParams* params) {
  const std::optional<int64_t> best_of = fields->Int("best_of", 1, limits.max_n);
  if (!best_of.has_value() || *best_of == params->n || !fields->ok()) return;
  if (*best_of < params->n) return fields->Fail("best_of", "best_of must be at least n");
  if (has_beams) return fields->Fail("best_of", "a beam search has n beams, and no other best_of");
  if (params->stream) return fields->Fail("best_of", "the best of several cannot be streamed");
  if (params->sampling.temperature == 0.0f)
    return fields->Fail("best_of", "best_of must be n with temperature 0: all would be the same");
  params->best_of = static_cast<int32_t>(*best_of);
}

}  // namespace

void RefuseOtherServersForms(FieldReader* fields) {
  for (const char* name : kOtherServersForms) {
    const Json* value = fields->Find(name);
    if (value != nullptr && *value != "") fields->Fail(name, absl::StrCat(name, " is not supported"));
  }
}

std::string NewResponseId(absl::string_view prefix) {
  return absl::StrCat(prefix, absl::StrFormat("%016x%016x", Random()(), Random()()));
}

// The seed has 63 bits, so that seed + i cannot wrap.
uint64_t RandomSeed() { return Random()() >> 1; }

std::optional<ApiError> CheckGenerates(const ServedModel& model) {
  if (model.pooling.generates) return std::nullopt;
  return BadRequest("model",
                    absl::StrCat("The model ", model.name,
                                 " does not generate text here: it is served with --runner=pooling, for "
                                 "/v1/embeddings and /pooling alone"));
}

std::optional<ApiError> CheckModel(FieldReader* fields, const ServedModel& model) {
  const std::optional<std::string> name = fields->String("model", std::numeric_limits<size_t>::max());
  if (!fields->ok()) return fields->error();
  if (!name.has_value() || model.HasName(*name)) return std::nullopt;
  return UnknownModel(*name, model.all_names.empty() ? model.name : model.all_names);
}

void ReadCommonFields(FieldReader* fields, const ServedModel& model, const ApiLimits& limits,
                      GenerateParams* params) {
  RefuseUnsupported(fields, params->chat);
  RefuseOtherServersFields(fields);
  CheckOtherFields(fields, params->chat);
  params->n = static_cast<int32_t>(fields->Int("n", 1, limits.max_n).value_or(1));
  ReadSampling(fields, model, params);
  const bool has_beams = fields->Bool("use_beam_search").value_or(false);
  if (fields->ok() && params->n > 1 && params->sampling.temperature == 0.0f && !has_beams) {
    fields->Fail("n", "n must be 1 with temperature 0: all choices would be the same");
  }
  ReadStops(fields, model, limits, params);
  ReadStreaming(fields, params);
  ReadBestOf(fields, limits, has_beams, params);
  params->echo = fields->Bool("echo").value_or(false);
  params->return_token_ids = fields->Bool("return_token_ids").value_or(false);
  params->return_weight_versions = fields->Bool("return_weight_versions").value_or(false);
  params->tokens_as_ids = fields->Bool("return_tokens_as_token_ids").value_or(false);
  ReadIdentity(fields, params->chat ? "chatcmpl-" : "cmpl-", params);
}

void ReadIdentity(FieldReader* fields, const char* id_prefix, GenerateParams* params) {
  ReadPriority(fields, params);
  const std::optional<std::string> id = fields->String("request_id", kMaxRequestIdBytes);
  params->response_id = id.has_value() ? absl::StrCat(id_prefix, *id) : NewResponseId(id_prefix);
  ReadCacheSalt(fields, params);
  const std::optional<std::string> user = fields->String("user", std::numeric_limits<size_t>::max());
  if (user.has_value() && !user->empty()) params->user = UserOfField(*user);
}

void CheckGrammar(FieldReader* fields, const GenerateParams& params) {
  if (!params.grammar.has_value() || !params.sampling.beam_search.has_value()) return;
  fields->Fail("use_beam_search", absl::StrCat("a beam search goes with no ", params.grammar->field));
}

void CheckPromptLogprobs(FieldReader* fields, const ApiLimits& limits, const GenerateParams& params) {
  if (!fields->ok() || params.sampling.num_prompt_logprobs < 0) return;
  int64_t tokens = 0;
  for (const GenerateParams::Prompt& prompt : params.prompts)
    tokens += static_cast<int64_t>(prompt.ids.size());
  if (tokens * params.num_candidates() * (params.sampling.num_prompt_logprobs + 1) >
      limits.max_prompt_logprobs) {
    // With echo, logprobs asks for log-probabilities of the prompt, too.
    const char* field = fields->Has("prompt_logprobs") ? "prompt_logprobs" : "logprobs";
    fields->Fail(field, absl::StrCat("the request asks for more than ", limits.max_prompt_logprobs,
                                     " prompt log-probabilities"));
  }
}

bool IsIdList(const Json& value) {
  return value.is_array() && !value.empty() && std::all_of(value.begin(), value.end(), [](const Json& item) {
           return item.is_number() && AsInt(item).has_value();
         });
}

bool MayFitContext(absl::string_view text, const ServedModel& model) {
  // NFC can make a single code point of three; max_token_bytes includes added tokens and tokens of many
  // spaces.
  constexpr int64_t kNormalizationShrinks = 4;
  return static_cast<int64_t>(text.size()) <= kNormalizationShrinks * model.max_token_bytes *
                                                  (static_cast<int64_t>(model.engine->max_model_len()) + 1);
}

void FitContext(FieldReader* fields, const ServedModel& model, std::optional<int64_t> max_tokens,
                GenerateParams* params, const char* field) {
  const int64_t context = model.engine->max_model_len();
  const std::optional<int64_t> truncate = fields->Int("truncate_prompt_tokens", -1, context);
  if (truncate == 0) fields->Fail("truncate_prompt_tokens", "truncate_prompt_tokens must not be 0");
  const std::optional<std::string> side = fields->String("truncation_side", kMaxWordBytes);
  if (side.has_value() && *side != "left" && *side != "right")
    fields->Fail("truncation_side", "truncation_side must be left or right");
  const std::optional<int64_t> min_tokens = fields->Int("min_tokens", 0);
  if (max_tokens.value_or(1) > context) {
    fields->Fail(field, absl::StrCat(field, " must be at most the context of ", context, " tokens"));
  }
  if (max_tokens.has_value() && min_tokens.value_or(0) > *max_tokens) {
    fields->Fail("min_tokens", absl::StrCat("min_tokens must be at most ", field));
  }
  if (!fields->ok()) return;
  for (GenerateParams::Prompt& prompt : params->prompts) {
    if (truncate.has_value()) {
      const size_t keep =
          *truncate == -1 ? std::max<int64_t>(1, context - max_tokens.value_or(1)) : *truncate;
      if (prompt.ids.size() > keep) {
        if (side == "right") {
          prompt.ids.resize(keep);
        } else {
          prompt.ids.erase(prompt.ids.begin(), prompt.ids.end() - keep);
        }
        if (params->echo) prompt.echo_text = model.tokenizer->Decode(prompt.ids, false);
      }
    }
    if (static_cast<int64_t>(prompt.ids.size()) >= context) {
      return fields->Fail(
          params->chat ? "messages" : "prompt",
          absl::StrCat("The prompt has ", prompt.ids.size(),
                       " tokens; with at least one of output it must fit ", "the context of ", context));
    }
    const int64_t left = context - static_cast<int64_t>(prompt.ids.size());
    prompt.max_tokens = static_cast<int32_t>(std::min(max_tokens.value_or(left), left));
  }
  params->sampling.min_tokens = static_cast<int32_t>(std::min(min_tokens.value_or(0), context));
  params->output.min_tokens = params->sampling.min_tokens;
}

}  // namespace somnus
