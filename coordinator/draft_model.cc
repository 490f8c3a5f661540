#include "coordinator/draft_model.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "checkpoint/family.h"
#include "proto/status.h"

namespace somnus {
namespace {

// Every token by its id, added tokens included; empty: the id is not used, or the token is not known.
std::vector<std::string> TokensById(const TokenizerData& data, int32_t vocab_size) {
  std::vector<std::string> tokens = data.tokens;
  tokens.resize(static_cast<size_t>(vocab_size));
  for (const AddedToken& added : data.added_tokens) {
    if (added.id >= 0 && added.id < vocab_size) tokens[added.id] = added.content;
  }
  return tokens;
}

absl::Status CheckTokens(const Checkpoint& draft, const Checkpoint& model, const std::string& log_name) {
  const absl::StatusOr<TokenizerData> own = draft.ReadTokenizer(), wanted = model.ReadTokenizer();
  if (!own.ok() || !wanted.ok()) {
    LogWarning("{}--draft-model: its tokenizer is not compared with the model's: {}", log_name,
               std::string((own.ok() ? wanted : own).status().message()));
    return absl::OkStatus();
  }
  const int32_t vocab_size = model.config().vocab_size;
  const std::vector<std::string> guessed = TokensById(*own, vocab_size);
  const std::vector<std::string> tokens = TokensById(*wanted, vocab_size);
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (guessed[id].empty() || tokens[id].empty() || guessed[id] == tokens[id]) continue;
    return absl::InvalidArgumentError(absl::StrCat("its tokenizer is not the model's: token ", id, " is '",
                                                   absl::Utf8SafeCEscape(guessed[id]), "', the model's '",
                                                   absl::Utf8SafeCEscape(tokens[id]), "'"));
  }
  return absl::OkStatus();
}

absl::Status CheckFits(const Checkpoint& draft, const Checkpoint& model, int32_t max_model_len,
                       const std::string& log_name) {
  const ModelConfig& config = draft.config();
  if (config.vocab_size != model.config().vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("it has a vocabulary of ", config.vocab_size,
                                                   " tokens, the model one of ", model.config().vocab_size));
  }
  if (config.family->learned_positions && config.max_position_embeddings < max_model_len) {
    return absl::InvalidArgumentError(absl::StrCat("it has ", config.max_position_embeddings,
                                                   " positions, and the model is served with ", max_model_len,
                                                   "; a smaller --max-model-len fits"));
  }
  return CheckTokens(draft, model, log_name);
}

}  // namespace

absl::StatusOr<ModelConfig> CheckDraftModel(const std::string& path, LoadFormat format,
                                            const Checkpoint& model, int32_t max_model_len,
                                            const std::string& log_name) {
  const std::string context = absl::StrCat("--draft-model: ", path);
  const absl::StatusOr<std::unique_ptr<Checkpoint>> draft = Checkpoint::Open(path, format);
  if (!draft.ok()) return Annotate(draft.status(), context);
  const absl::Status status = CheckFits(**draft, model, max_model_len, log_name);
  if (!status.ok()) return Annotate(status, context);
  return (*draft)->config();
}

}  // namespace somnus
