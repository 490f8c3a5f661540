#pragma once
// The tokenizer, chat templates, grammars and end tokens of a served model, from its checkpoint: while its
// workers load, or before the workers that an earlier coordinator has left are adopted.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "coordinator/flags/chat_flags.h"
#include "coordinator/openai/served_model.h"
#include "text/jinja/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace somnus {

struct TextParts {
  std::shared_ptr<const Tokenizer> tokenizer;
  ModelTemplates templates;
  TurnFormat turn_format;
  ArgumentsForm arguments_form = ArgumentsForm::kObject;
  std::shared_ptr<const nlohmann::ordered_json> default_template_kwargs;  // null: none
  std::shared_ptr<GrammarCache> grammars;                                 // null: grammar_problem says why
  std::shared_ptr<const ForcedTokenizer> forced_tokenizer;                // null as well
  std::string grammar_problem;
  // The tokens that end an answer, all of the vocabulary: from the model's configuration, and from its
  // tokenizer.
  std::vector<int32_t> eos_token_ids;
};

// Reads the tokenizer and compiles the chat templates; logs corrections to the files. A template that
// cannot be compiled is no error: chat requests are answered with the reason. `path` begins each error, and
// `log_name` each line of the log. InvalidArgument also for a parser that does not exist.
absl::StatusOr<TextParts> ReadTextParts(const Checkpoint& checkpoint, const std::string& path,
                                        const ChatFlags& chat = {}, const std::string& log_name = "");

}  // namespace somnus
