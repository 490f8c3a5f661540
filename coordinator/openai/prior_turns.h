#pragma once
// Earlier turns of the assistant that a chat request sends with their token ids, so that the prompt has
// exactly the tokens that the model has computed. Text that is tokenized again may give other tokens, and a
// template may write a turn otherwise than the model did: both would make log-probabilities of a conversation
// wrong, and lose its cached prefix. Internal to coordinator/openai.
//
// A message of role assistant has `token_ids`, those of its response's choice, and may have
// `prompt_token_ids`, those of the same response, in place of everything before the turn. The template
// renders a mark in place of such a turn; the text around marks is tokenized, and the ids come where the
// marks are.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/openai/field_reader.h"
#include "coordinator/openai/served_model.h"

namespace somnus {

class PriorTurns {
 public:
  // Takes the ids of the request's field `messages`, and puts marks into `messages`, its valid copy. A
  // problem is left in `fields`.
  PriorTurns(FieldReader* fields, const ServedModel& model, nlohmann::ordered_json* messages);

  bool empty() const { return turns_.empty(); }
  // The last message is such a turn.
  bool has_last() const { return has_last_; }

  // The ids of a text that the template has rendered. An end token that a turn has already is not written
  // again behind the turn. `special`: the tokenizer's special tokens go before. FailedPrecondition: the
  // template has left a turn out, or changed it.
  absl::StatusOr<std::vector<int32_t>> Join(absl::string_view text, bool special) const;

 private:
  struct Turn {
    std::string mark;
    std::vector<int32_t> prompt_ids;  // empty: as the template says
    std::vector<int32_t> ids;
  };

  void Take(FieldReader* fields, size_t index, const nlohmann::json& message, nlohmann::ordered_json* copy);
  // Moves `at` behind the end token that `turn` has.
  void SkipEnd(const Turn& turn, absl::string_view text, size_t* at) const;

  const ServedModel& model_;
  std::vector<Turn> turns_;
  bool has_last_ = false;
};

}  // namespace somnus
