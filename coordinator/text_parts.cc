#include "coordinator/text_parts.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "coordinator/structured/forced_tokens.h"
#include "coordinator/structured/grammar_cache.h"
#include "coordinator/structured/lazy_compiler.h"
#include "coordinator/structured/xgrammar_compiler.h"
#include "proto/status.h"

namespace somnus {
namespace {

void CompileInto(const std::string& source, std::shared_ptr<const ChatTemplate>* to, std::string* problem) {
  if (source.empty()) return;
  absl::StatusOr<std::unique_ptr<ChatTemplate>> compiled = ChatTemplate::Compile(source);
  if (compiled.ok()) {
    *to = *std::move(compiled);
    return;
  }
  *problem = absl::StrCat("it does not compile: ", compiled.status().message());
}

// --chat-template: one template for all requests.
void ReplaceTemplates(const std::string& source, TokenizerData* data) {
  data->chat_template = source;
  data->tool_template.clear();
  data->chat_template_problem.clear();
}

ModelTemplates CompileTemplates(const TokenizerData& data, const std::string& log_name) {
  ModelTemplates templates;
  templates.chat_problem = data.chat_template_problem;
  CompileInto(data.chat_template, &templates.chat, &templates.chat_problem);
  CompileInto(data.tool_template, &templates.tools, &templates.tools_problem);
  for (const std::string* problem : {&templates.chat_problem, &templates.tools_problem}) {
    if (problem->empty()) continue;
    LogWarning("{}the chat template{} cannot be used, {} will be refused: {}", log_name,
               problem == &templates.chat_problem ? "" : " for tools",
               problem == &templates.chat_problem ? "chat requests" : "requests with tools", *problem);
  }
  return templates;
}

// The end tokens of a model whose files name no end token.
std::vector<int32_t> UnnamedEnds(const ModelConfig& config, const TokenizerData& data,
                                 const std::string& log_name) {
  std::vector<int32_t> ids = data.end_markers;
  std::erase_if(ids, [&config](int32_t id) { return id >= config.vocab_size; });
  if (ids.empty()) {
    LogWarning("{}the model's files name no end token: answers end at max_tokens or at a stop string",
               log_name);
  } else {
    LogWarning(
        "{}the model's files name no end token: answers end at the markers of its vocabulary, tokens {}",
        log_name, absl::StrJoin(ids, ", "));
  }
  return ids;
}

std::vector<int32_t> EndTokens(const ModelConfig& config, const TokenizerData& data,
                               const std::string& log_name) {
  std::vector<int32_t> ids, outside;
  for (const std::vector<int32_t>* named : {&config.eos_token_ids, &data.end_token_ids}) {
    for (const int32_t id : *named) {
      std::vector<int32_t>* const to = id < config.vocab_size ? &ids : &outside;
      if (!absl::c_linear_search(*to, id)) to->push_back(id);
    }
  }
  for (const int32_t id : outside) {
    LogWarning("{}eos_token_id: {} is outside the vocabulary of {} tokens, and ends nothing", log_name, id,
               config.vocab_size);
  }
  if (ids.empty()) ids = UnnamedEnds(config, data, log_name);
  return ids;
}

absl::Status ChooseTurnFormat(const TokenizerData& data, const ChatFlags& chat, TextParts* parts) {
  const std::string& source = data.tool_template.empty() ? data.chat_template : data.tool_template;
  ASSIGN_OR_RETURN(parts->turn_format.tools, ChooseToolFormat(chat.tool_call_parser, source));
  ASSIGN_OR_RETURN(parts->turn_format.reasoning,
                   ChooseReasoningFormat(chat.reasoning_parser, data.chat_template));
  const std::shared_ptr<const ChatTemplate>& used =
      parts->templates.tools == nullptr ? parts->templates.chat : parts->templates.tools;
  if (used != nullptr) parts->arguments_form = ArgumentsFormOf(*used);
  return absl::OkStatus();
}

void LogTurnFormat(const TurnFormat& format, const std::string& log_name) {
  if (format.tools != nullptr)
    LogInfo("{}tool calls are read as --tool-call-parser={} says", log_name, std::string(format.tools->name));
  if (format.reasoning != nullptr)
    LogInfo("{}reasoning is read as --reasoning-parser={} says", log_name,
            std::string(format.reasoning->name));
}

// Sorting the vocabulary is left to the thread that compiles the first grammar: no start waits for it.
absl::Status StartGrammars(const ModelConfig& config, const ChatFlags& chat, TextParts* parts) {
  XgrammarOptions options;
  options.limits = chat.grammar_limits;
  GrammarVocabulary vocabulary = VocabularyOf(*parts->tokenizer, parts->eos_token_ids, config.vocab_size);
  RETURN_IF_ERROR(vocabulary.Check());
  const auto forced = std::make_shared<const ForcedTokenizer>(parts->tokenizer);
  auto compiler = std::make_unique<LazyCompiler>([vocabulary = std::move(vocabulary), options, forced] {
    forced->Prepare();
    return NewXgrammarCompiler(vocabulary, options);
  });
  ASSIGN_OR_RETURN(parts->grammars, GrammarCache::Start(std::move(compiler), chat.grammar_cache));
  parts->forced_tokenizer = forced;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TextParts> ReadTextParts(const Checkpoint& checkpoint, const std::string& path,
                                        const ChatFlags& chat, const std::string& log_name) {
  absl::StatusOr<TokenizerData> data = checkpoint.ReadTokenizer();
  if (!data.ok()) return Annotate(data.status(), path);
  for (const std::string& warning : data->warnings) LogWarning("{}{}: {}", log_name, path, warning);
  if (!chat.chat_template.empty()) ReplaceTemplates(chat.chat_template, &*data);
  TextParts parts;
  if (!chat.default_template_kwargs.empty())
    parts.default_template_kwargs = std::make_shared<const nlohmann::ordered_json>(
        nlohmann::ordered_json::parse(chat.default_template_kwargs));
  parts.templates = CompileTemplates(*data, log_name);
  if (!chat.chat_template.empty() && parts.templates.chat == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("--chat-template: ", parts.templates.chat_problem));
  RETURN_IF_ERROR(ChooseTurnFormat(*data, chat, &parts));
  LogTurnFormat(parts.turn_format, log_name);
  parts.eos_token_ids = EndTokens(checkpoint.config(), *data, log_name);
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(*std::move(data));
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), absl::StrCat(path, ": tokenizer"));
  parts.tokenizer = *std::move(tokenizer);
  if (const absl::Status status = StartGrammars(checkpoint.config(), chat, &parts); !status.ok()) {
    LogWarning("{}structured outputs will be refused: {}", log_name, std::string(status.message()));
    parts.grammar_problem = std::string(status.message());
  }
  return parts;
}

}  // namespace somnus
