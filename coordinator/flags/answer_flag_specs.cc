// The coordinator's flags for what chat answers and structured outputs are, and what they may cost.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/small_file.h"
#include "base/status_macros.h"
#include "coordinator/flags/flag_specs.h"

namespace somnus {
namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;
constexpr size_t kMaxKwargs = 64;

// A FIFO gives its text once, and flags are parsed twice where there is a --config.
absl::StatusOr<std::string> ReadTemplate(const std::string& path) {
  static absl::Mutex mu(absl::kConstInit);
  static auto* const fifos = new std::map<std::string, std::string>();
  absl::MutexLock lock(&mu);
  if (const auto read = fifos->find(path); read != fifos->end()) return read->second;
  std::error_code error;
  const bool is_fifo = std::filesystem::is_fifo(path, error);
  ASSIGN_OR_RETURN(std::string text, ReadPipedFile(path, kMaxTemplateBytes));
  if (is_fifo) (*fifos)[path] = text;
  return text;
}

// As for vLLM: a file, or else the template's own text.
absl::Status SetChatTemplate(const std::string& value, std::string* chat_template) {
  absl::StatusOr<std::string> text = ReadTemplate(value);
  if (absl::IsNotFound(text.status())) {
    if (value.find('{') == std::string::npos)
      return absl::InvalidArgumentError(
          "is neither a file that can be read nor a template, which has a brace");
    text = value;
  }
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  if (text->empty()) return absl::InvalidArgumentError("is an empty template");
  if (text->size() > kMaxTemplateBytes)
    return absl::InvalidArgumentError(absl::StrCat("has more than ", kMaxTemplateBytes, " bytes"));
  *chat_template = *std::move(text);
  return absl::OkStatus();
}

absl::Status SetTemplateKwargs(const std::string& value, std::string* kwargs) {
  const nlohmann::json object = nlohmann::json::parse(value, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || object.size() > kMaxKwargs)
    return absl::InvalidArgumentError(
        absl::StrCat("is no JSON object of at most ", kMaxKwargs, " variables"));
  for (const char* name :
       {"messages", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt"}) {
    if (object.contains(name)) return absl::InvalidArgumentError(absl::StrCat("must not have ", name));
  }
  *kwargs = value;
  return absl::OkStatus();
}

}  // namespace

FlagGroup AnswerFlags(ChatFlags* c) {
  return {
      "Answers",
      {
          Flag::Text("tool-call-parser", &c->tool_call_parser,
                     "how tool calls are read from the model's text: auto (by the chat template), none, or a "
                     "family's name (docs/tools.md)")
              .Shows("NAME"),
          Flag::Text("reasoning-parser", &c->reasoning_parser,
                     "how reasoning is read from the model's text: auto, none, or a family's name")
              .Shows("NAME"),
          Flag::Switch("enable-auto-tool-choice", &c->auto_tool_choice,
                       "tools may be called with tool_choice \"auto\"; false: only where the request forces "
                       "a call"),
          Flag::Custom(
              "chat-template", "PATH|TEMPLATE", "the model's own",
              [c](const std::string& value) { return SetChatTemplate(value, &c->chat_template); },
              "chat template (Jinja) in place of the model's own, also for requests with tools: a file, or "
              "the "
              "text itself, which has a brace"),
          Flag::Custom(
              "default-chat-template-kwargs", "JSON", "none",
              [c](const std::string& value) { return SetTemplateKwargs(value, &c->default_template_kwargs); },
              "object of variables that the chat template gets where a request does not set them "
              "({\"enable_thinking\": false})"),
          Flag::Bytes("structured-outputs-max-bytes", &c->grammar_cache.max_bytes, kMinBytesFlag,
                      int64_t{1} << 40, "of compiled grammars and schemas that are kept for later requests"),
          Flag::Bytes("structured-outputs-max-compile-bytes", &c->grammar_limits.compile_bytes, kMinBytesFlag,
                      int64_t{1} << 40, "of memory that compiling one grammar takes; above, it is refused"),
          Flag::Time("structured-outputs-compile-timeout", &c->grammar_limits.compile_time, kShortestTimeFlag,
                     kLongestTimeFlag, "of compiling one grammar; above, it is refused"),
          Flag::Time("structured-outputs-wait", &c->grammar_cache.max_wait, kShortestTimeFlag,
                     kLongestTimeFlag, "until a request's grammar is compiled, others before it included"),
          Flag::Bytes("structured-outputs-max-source-bytes", &c->grammar_limits.source_bytes, kMinBytesFlag,
                      int64_t{1} << 30, "of one grammar or schema as the engine gets it"),
          Flag::Int("structured-outputs-max-depth", &c->grammar_limits.depth, 8, 1000,
                    "brackets within each other, of one grammar"),
          Flag::Int("structured-outputs-max-whitespace", &c->grammar_limits.max_whitespace, 0, 1000,
                    "characters of white space in a row that JSON may have; 0: any number"),
          Flag::Int("structured-outputs-max-chain-branches", &c->grammar_limits.max_chain_branches, 0,
                    1 << 24,
                    "branches of the rules that a grammar's counted repetitions become; the masks of further "
                    "ones are slow"),
          Flag::Bytes("structured-outputs-max-sequence-bytes", &c->grammar_limits.matcher_bytes,
                      kMinBytesFlag, int64_t{1} << 40,
                      "of memory that one sequence's place in its grammar takes; above, it ends"),
          Flag::Time("structured-outputs-mask-timeout", &c->grammar_limits.step_time, kShortestTimeFlag,
                     kLongestTimeFlag, "of computing one mask of tokens; above, its request ends"),
      }};
}

FlagGroup SchemaFlags(GateOptions* g) {
  RegexLimits* const r = &g->regex;
  return {
      "Schemas and patterns of structured outputs; those beyond a bound are refused",
      {
          Flag::Bytes("structured-outputs-max-schema-bytes", &g->max_bytes, kMinBytesFlag, kMaxBytesFlag,
                      "of the text of a schema"),
          Flag::Int("structured-outputs-max-schema-depth", &g->max_depth, 8, 1000, "nesting of its JSON"),
          Flag::Int("structured-outputs-max-schema-values", &g->max_values, 100, 1 << 28,
                    "JSON values in it"),
          Flag::Int("structured-outputs-max-schema-keys", &g->max_keys, 16, 1 << 20,
                    "keys of an object in it, and values of an enum"),
          Flag::Int("structured-outputs-max-name-bytes", &g->max_name_bytes, 16, 1 << 16,
                    "of a property's name"),
          Flag::Int("structured-outputs-max-schema-cases", &g->max_cases, 1, 1 << 20,
                    "alternatives of one subschema, once combinations are multiplied out"),
          Flag::Int("structured-outputs-max-schema-definitions", &g->max_definitions, 1, 1 << 24,
                    "different combinations of its subschemas"),
          Flag::Int("structured-outputs-max-schema-steps", &g->max_steps, 1000, int64_t{1} << 40,
                    "units of work on it, a few microseconds at most each"),
          Flag::Bytes("structured-outputs-max-rewritten-bytes", &g->max_output_bytes, kMinBytesFlag,
                      kMaxBytesFlag, "of the schema that is made of it, which the grammar engine enforces"),
          Flag::Int("structured-outputs-max-pattern-bytes", &r->max_bytes, 16, 1 << 24, "bytes of a pattern"),
          Flag::Int("structured-outputs-max-pattern-depth", &r->max_depth, 4, 1000,
                    "groups within each other"),
          Flag::Int("structured-outputs-max-pattern-repeat", &r->max_repeat, 1, 1 << 24, "a count within {}"),
          Flag::Int("structured-outputs-max-pattern-alternatives", &r->max_alternatives, 1, 1 << 16,
                    "branches with anchors of their own"),
          Flag::Int("structured-outputs-max-pattern-terms", &g->max_regex_terms, 1000, 1 << 28,
                    "terms that the patterns of a schema are taken apart to"),
          Flag::Int("structured-outputs-max-pattern-states", &g->max_regex_states, 8, 1 << 20,
                    "states of the automaton of patterns that hold together"),
          Flag::Int("structured-outputs-max-rewritten-pattern-bytes", &g->max_pattern_bytes, 1024, 1 << 28,
                    "bytes of the pattern that is made of them"),
          Flag::Int("structured-outputs-max-choices", &g->max_choices, 1, 1 << 24,
                    "texts of structured_outputs.choice"),
      }};
}

}  // namespace somnus
