#include "coordinator/openai/field_table.h"

namespace somnus {
namespace {

using enum FieldType;

// Fields of completions and chat.
constexpr FieldSpec kCommon[] = {
    {"model", kString, "the served model; of several the first where it is not given"},
    {"n", kInteger, "choices for each prompt", R"("minimum": 1)"},
    {"best_of", kInteger, "candidates for each prompt, of which the n likeliest are the choices",
     R"("minimum": 1)"},
    {"max_tokens", kInteger, "the most tokens of a choice", R"("minimum": 1)"},
    {"min_tokens", kInteger, "no end before this many tokens", R"("minimum": 0)", true},
    {"temperature", kNumber, "0 is greedy", R"("minimum": 0, "maximum": 2)"},
    {"top_p", kNumber, "share of probability from which tokens are chosen",
     R"("exclusiveMinimum": 0, "maximum": 1)"},
    {"top_k", kInteger, "number of tokens among which one is chosen; -1 or 0: all", R"("minimum": -1)"},
    {"min_p", kNumber, "least probability, as a share of the likeliest token's",
     R"("minimum": 0, "maximum": 1)"},
    {"presence_penalty", kNumber, "penalty of tokens that the text has", R"("minimum": -2, "maximum": 2)"},
    {"frequency_penalty", kNumber, "penalty of a token for each time that the text has it",
     R"("minimum": -2, "maximum": 2)"},
    {"repetition_penalty", kNumber, "divides the logits of tokens that prompt or text have",
     R"("exclusiveMinimum": 0, "examples": [1.1])"},
    {"seed", kInteger, "the same seed and request give the same tokens"},
    {"logit_bias", kOther, "token ids and what is added to their logits",
     R"("type": "object", "additionalProperties": {"type": "number"}, "examples": [{"17": 1.5}])"},
    {"allowed_token_ids", kTokenIds, "only these tokens are chosen"},
    {"bad_words", kStrings, "words that are never completed", "", true},
    {"stop", kTexts, "texts that end a choice"},
    {"stop_token_ids", kTokenIds, "tokens that end a choice"},
    {"ignore_eos", kBoolean, "the model's end tokens end nothing", "", true},
    {"include_stop_str_in_output", kBoolean, "the text has the stop that ended it", "", true},
    {"skip_special_tokens", kBoolean, "the text has no special tokens", "", true},
    {"add_special_tokens", kBoolean, "the tokenizer adds its special tokens to the prompt", "", true},
    {"truncate_prompt_tokens", kInteger, "keeps so many tokens of the prompt; -1: as many as fit",
     R"("minimum": -1, "examples": [1])"},
    {"truncation_side", kString, "which side of the prompt is cut", R"("enum": ["left", "right"])"},
    {"prompt_logprobs", kInteger, "alternatives to each token of the prompt",
     R"("minimum": 0, "maximum": 20)"},
    {"echo", kBoolean, "the prompt, or the message that is continued, comes before the text"},
    {"stream", kBoolean, "the answer comes as server-sent events"},
    {"stream_options", kOther, "of a stream",
     R"("type": "object", "properties": {"include_usage": {"type": "boolean"}, "continuous_usage_stats": )"
     R"({"type": "boolean"}}, "examples": [{"include_usage": true}])"},
    {"stream_interval", kInteger, "tokens for each event", R"("minimum": 1)"},
    {"return_token_ids", kBoolean, "each choice has its token ids and its prompt's"},
    {"return_tokens_as_token_ids", kBoolean, "log-probabilities name tokens by ids"},
    {"return_weight_versions", kBoolean,
     "each choice has spans of its tokens with the version of their weights"},
    {"cache_salt", kString, "prompts share cached blocks only under the same salt", R"("minLength": 1)"},
    {"priority", kInteger, "lower is served first, under --scheduling-policy=priority", "", true},
    {"request_id", kString, "the id of the answer", "", true},
    {"user", kString, "whose request it is, under --fairness=user"},
    {"use_beam_search", kBoolean, "a beam search with n beams", "", true},
    {"length_penalty", kNumber, "of a beam search", "", true},
    {"early_stopping", kOther, "of a beam search",
     R"("anyOf": [{"type": "boolean"}, {"const": "never"}], "examples": ["never"])"},
    {"response_format", kOther, "the form of the text",
     R"("type": "object", "properties": {"type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]}}, )"
     R"("required": ["type"], "examples": [{"type": "text"}])"},
    {"structured_outputs", kOther,
     "the form of the text: one of json, regex, choice, grammar, json_object, structural_tag",
     R"("type": "object", "examples": [{"choice": ["a", "b"]}])"},
    {"guided_json", kOther, "structured_outputs.json, by its older name",
     R"("type": ["object", "boolean", "string"], "examples": [{"type": "object"}])"},
    {"guided_regex", kOther, "structured_outputs.regex, by its older name",
     R"("type": "string", "examples": ["a+"])"},
    {"guided_choice", kOther, "structured_outputs.choice, by its older name",
     R"("type": "array", "items": {"type": "string"}, "examples": [["a", "b"]])"},
    {"guided_grammar", kOther, "structured_outputs.grammar, by its older name",
     R"("type": "string", "examples": ["root ::= \"a\""])"},
    // Checked, without an effect.
    {"spaces_between_special_tokens", kBoolean, "has no effect", "", true},
    {"return_token_offsets", kBoolean, "has no effect"},
    {"watermarking", kBoolean, "has no effect"},
    {"session_id", kString, "has no effect"},
    {"routed_experts_prompt_start", kInteger, "has no effect", R"("minimum": 0)", true},
    {"mm_payload", kString, "has no effect", R"("enum": ["tensors", "none"])", true},
    // Fields that only other servers know.
    {"repetition_detection", kOther, ""},
    {"kv_transfer_params", kOther, ""},
    {"ec_transfer_params", kOther, ""},
    {"logits_processors", kOther, ""},
    {"mm_processor_kwargs", kOther, ""},
    {"media_io_kwargs", kOther, ""},
    {"logprob_token_ids", kOther, ""},
    {"grammar", kOther, ""},
    {"json_schema", kOther, ""},
    {"ebnf", kOther, ""},
    {"regex", kOther, ""},
    {"structural_tag", kOther, ""},
    {"modalities", kOther, ""},
    {"n_predict", kOther, ""},
    {"max_completion_tokens", kInteger, ""},
    {"thinking_token_budget", kInteger, ""},
};

constexpr FieldSpec kCompletion[] = {
    {"prompt", kOther, "one prompt or several, as text or as token ids",
     R"("anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, )"
     R"({"type": "array", "items": {"type": "integer"}}, )"
     R"({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}], "examples": ["abc"])",
     false, true},
    {"n", kInteger, "choices for each prompt", R"("minimum": 1)", true},
    {"max_tokens", kInteger, "the most tokens of a choice (16); with echo also 0",
     R"("minimum": 0, "examples": [4])"},
    {"logprobs", kInteger, "alternatives to each token", R"("minimum": 0, "maximum": 20)"},
    {"suffix", kOther, ""},
    {"prompt_embeds", kOther, ""},
};

constexpr char kMessagesSchema[] =
    R"("type": "array", "minItems": 1, "items": {"type": "object", "properties": {"role": {"enum": ["system", )"
    R"("developer", "user", "assistant", "tool", "function"]}, "content": {"anyOf": [{"type": "string"}, )"
    R"({"type": "array", "items": {"type": "object"}}, {"type": "null"}]}, "tool_calls": {"type": "array", "items": )"
    R"({"type": "object"}}, "token_ids": {"type": "array", "items": {"type": "integer"}}, "prompt_token_ids": )"
    R"({"type": "array", "items": {"type": "integer"}}}, "required": ["role"]}, )"
    R"("examples": [[{"role": "user", "content": "abc"}]])";

// Variables of the chat template.
constexpr FieldSpec kTemplate[] = {
    {"messages", kOther, "the conversation", kMessagesSchema, false, true},
    {"tools", kOther, "functions that the model may call",
     R"("type": "array", "items": {"type": "object"}, )"
     R"("examples": [[{"type": "function", "function": {"name": "f"}}]])"},
    {"documents", kOther, "for the chat template",
     R"("type": "array", "items": {"type": "object"}, "examples": [[{"title": "t", "text": "x"}]])"},
    {"add_generation_prompt", kBoolean, "the prompt ends with the beginning of an answer", "", true},
    {"continue_final_message", kBoolean, "the model goes on with the last message", "", true},
    {"chat_template_kwargs", kOther, "variables of the chat template",
     R"("type": "object", "examples": [{"enable_thinking": false}])"},
    {"reasoning_effort", kString, "for the chat template",
     R"("enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max"])"},
    {"add_special_tokens", kBoolean, "the tokenizer adds its special tokens to the prompt", "", true},
    {"chat_template", kOther, ""},
};

constexpr FieldSpec kChat[] = {
    {"max_tokens", kInteger, "the older name of max_completion_tokens", R"("minimum": 1)"},
    {"max_completion_tokens", kInteger, "the most tokens of a choice", R"("minimum": 1)"},
    {"logprobs", kBoolean, "the answer has log-probabilities"},
    {"top_logprobs", kInteger, "alternatives to each token; needs logprobs",
     R"("minimum": 0, "maximum": 20)"},
    {"echo", kBoolean, "the message that is continued comes before the text", "", true},
    {"tool_choice", kOther, "whether tools are called; needs tools",
     R"("anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}], "examples": ["none"])"},
    {"parallel_tool_calls", kBoolean, "an answer may have several calls"},
    {"include_reasoning", kBoolean, "the answer shows the reasoning", "", true},
    {"thinking_token_budget", kInteger, "tokens after which the reasoning is ended; -1: none",
     R"("minimum": -1, "examples": [-1])"},
    {"return_prompt_text", kBoolean, "the answer has the rendered messages"},
    {"functions", kOther, "tools, in OpenAI's first form; the answer has function_call",
     R"("type": "array", "items": {"type": "object"}, "examples": [[{"name": "f"}]])"},
    {"function_call", kOther, "tool_choice, in OpenAI's first form; needs functions",
     R"("anyOf": [{"enum": ["none", "auto"]}, {"type": "object"}], "examples": ["none"])"},
    {"audio", kOther, ""},
};

constexpr FieldSpec kTokenize[] = {
    {"model", kString, "the served model"},
    {"prompt", kString, "a text, where there are no messages"},
    {"messages", kOther, "the conversation, in place of prompt", kMessagesSchema},
    {"return_token_strs", kBoolean, "the answer has the tokens as the vocabulary writes them"},
};

constexpr FieldSpec kDetokenize[] = {
    {"model", kString, "the served model"},
    {"tokens", kTokenIds, "token ids", "", false, true},
};

constexpr FieldSpec kEmbeddings[] = {
    {"model", kString, "the served model"},
    {"input", kOther, "one text or several, or token ids, where there are no messages",
     R"("anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, )"
     R"({"type": "array", "items": {"type": "integer"}}, )"
     R"({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}], "examples": ["abc"])"},
    {"messages", kOther, "the conversation, in place of input", kMessagesSchema},
    {"encoding_format", kString, "the form of a vector", R"("enum": ["float", "base64"])"},
    {"dimensions", kInteger, "the first numbers of a vector, of models that allow this", R"("minimum": 1)"},
    {"normalize", kBoolean, "vectors have length 1"},
    {"use_activation", kBoolean, "normalize, by vLLM's name"},
    {"embed_dtype", kString, "the type of the numbers", R"("enum": ["float32"])"},
    {"endianness", kString, "of base64", R"("enum": ["native", "little"])"},
    {"padding", kString, "of the inputs", R"("enum": ["do_not_pad"])"},
    {"truncate_prompt_tokens", kInteger, "keeps so many tokens of an input; -1: as many as fit",
     R"("minimum": -1, "examples": [1])"},
    {"truncation_side", kString, "which side of an input is cut", R"("enum": ["left", "right"])"},
    {"add_special_tokens", kBoolean, "the tokenizer adds its special tokens"},
    {"add_generation_prompt", kBoolean, "the prompt ends with the beginning of an answer"},
    {"continue_final_message", kBoolean, "the prompt ends within the last message"},
    {"priority", kInteger, "lower is served first, under --scheduling-policy=priority"},
    {"request_id", kString, "the id of the answer"},
    {"cache_salt", kString, "prompts share cached blocks only under the same salt", R"("minLength": 1)"},
    {"user", kString, "whose request it is, under --fairness=user"},
    // Fields that only other servers know.
    {"mm_processor_kwargs", kOther, ""},
    {"media_io_kwargs", kOther, ""},
};

constexpr FieldSpec kPooling[] = {
    {"task", kString, "what the vectors are for", R"("enum": ["embed"])"},
    {"data", kOther, ""},
};

}  // namespace

FieldTable::FieldTable(std::initializer_list<absl::Span<const FieldSpec>> parts) {
  for (const absl::Span<const FieldSpec> part : parts) {
    for (const FieldSpec& spec : part) {
      const auto [at, is_new] = index_.emplace(spec.name, specs_.size());
      if (is_new) {
        specs_.push_back(spec);
      } else {
        specs_[at->second] = spec;
      }
    }
  }
}

const FieldSpec* FieldTable::Find(absl::string_view name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &specs_[at->second];
}

const FieldTable& CompletionFieldTable() {
  static const auto* const table = new FieldTable({kCommon, kCompletion});
  return *table;
}

const FieldTable& ChatFieldTable() {
  static const auto* const table = new FieldTable({kCommon, kTemplate, kChat});
  return *table;
}

// Of messages, where both are given, roles and templates are as of the chat route; every role goes to the
// template.
const FieldTable& TokenizeFieldTable() {
  static const auto* const table = new FieldTable({kTemplate, kTokenize});
  return *table;
}

const FieldTable& DetokenizeFieldTable() {
  static const auto* const table = new FieldTable({kDetokenize});
  return *table;
}

const FieldTable& EmbeddingsFieldTable() {
  static const auto* const table = new FieldTable({kTemplate, kEmbeddings});
  return *table;
}

const FieldTable& PoolingFieldTable() {
  static const auto* const table = new FieldTable({kTemplate, kEmbeddings, kPooling});
  return *table;
}

std::vector<FieldSpec> SameAsChat(absl::Span<const char* const> names) {
  std::vector<FieldSpec> specs;
  for (const char* name : names) {
    specs.push_back(*ChatFieldTable().Find(name));
    specs.back().not_null = specs.back().required = false;
  }
  return specs;
}

}  // namespace somnus
