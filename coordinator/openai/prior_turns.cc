#include "coordinator/openai/prior_turns.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/openai/request_fields.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

// Nullopt: the message has none, or a problem is in `fields`.
std::optional<std::vector<int32_t>> IdsOf(FieldReader* fields, size_t index, const Json& message,
                                          const char* name, int32_t vocab_size) {
  FieldReader own(message);
  std::optional<std::vector<int32_t>> ids =
      own.TokenIds(name, vocab_size, std::numeric_limits<size_t>::max());
  if (ids.has_value() && ids->empty()) own.Fail(name, absl::StrCat(name, " must not be empty"));
  if (own.ok()) return ids;
  fields->Fail("messages", absl::StrCat("messages[", index, "] ", own.error().message));
  return std::nullopt;
}

}  // namespace

PriorTurns::PriorTurns(FieldReader* fields, const ServedModel& model, nlohmann::ordered_json* messages)
    : model_(model) {
  const Json* given = fields->Find("messages");
  if (!fields->ok() || given == nullptr) return;
  for (size_t i = 0; i < given->size() && fields->ok(); ++i) {
    const size_t before = turns_.size();
    Take(fields, i, (*given)[i], &(*messages)[i]);
    has_last_ = turns_.size() > before;
  }
}

void PriorTurns::Take(FieldReader* fields, size_t index, const Json& message, nlohmann::ordered_json* copy) {
  const int32_t vocab_size = model_.config.vocab_size;
  std::optional<std::vector<int32_t>> ids = IdsOf(fields, index, message, "token_ids", vocab_size);
  std::optional<std::vector<int32_t>> prompt = IdsOf(fields, index, message, "prompt_token_ids", vocab_size);
  if (!fields->ok() || (!ids.has_value() && !prompt.has_value())) return;
  if (!ids.has_value() || message["role"] != "assistant") {
    return fields->Fail("messages",
                        absl::StrCat("messages[", index,
                                     "] may have prompt_token_ids beside token_ids alone, and both only of "
                                     "the role assistant"));
  }
  // No client can guess the mark, so that no text has it by chance.
  Turn turn{absl::StrCat("turn", NewResponseId(""), "x", turns_.size(), "end"), {}, *std::move(ids)};
  if (prompt.has_value()) turn.prompt_ids = *std::move(prompt);
  *copy = {{"role", "assistant"}, {"content", turn.mark}};
  turns_.push_back(std::move(turn));
}

void PriorTurns::SkipEnd(const Turn& turn, absl::string_view text, size_t* at) const {
  const int32_t last = turn.ids.back();
  const std::vector<int32_t>& ends = model_.config.eos_token_ids;
  if (std::find(ends.begin(), ends.end(), last) == ends.end()) return;
  const std::string& end = model_.tokenizer->TokenBytes(last);
  if (absl::StartsWith(text.substr(*at), end)) *at += end.size();
}

absl::StatusOr<std::vector<int32_t>> PriorTurns::Join(absl::string_view text, bool special) const {
  // Nothing before the last turn with a prompt of its own counts.
  size_t first = turns_.size();
  while (first > 0 && turns_[--first].prompt_ids.empty()) {
  }
  std::vector<int32_t> ids;
  const auto append = [&ids](const std::vector<int32_t>& more) {
    ids.insert(ids.end(), more.begin(), more.end());
  };
  size_t at = 0;
  for (size_t i = first; i < turns_.size(); ++i) {
    const Turn& turn = turns_[i];
    const size_t mark = text.find(turn.mark, at);
    if (mark == absl::string_view::npos || text.find(turn.mark, mark + 1) != absl::string_view::npos)
      return absl::FailedPreconditionError(
          "the chat template does not write each earlier turn of the assistant once, as token_ids need");
    append(turn.prompt_ids.empty() ? model_.tokenizer->Encode(text.substr(at, mark - at), special && at == 0)
                                   : turn.prompt_ids);
    append(turn.ids);
    at = mark + turn.mark.size();
    SkipEnd(turn, text, &at);
  }
  if (at < text.size()) append(model_.tokenizer->Encode(text.substr(at), false));
  return ids;
}

}  // namespace somnus
