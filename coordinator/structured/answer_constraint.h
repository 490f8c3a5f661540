#pragma once
// The constraint of an answer: reasoning that is free up to a budget of tokens, then a text that follows a
// grammar. Either part may be missing.
//
// A model that may think begins with the marker of reasoning or with its answer. While it thinks, every token
// may come, until the text holds the marker that ends reasoning; at the budget the tokens of that marker are
// forced. Bytes of a token behind the end marker are not part of the answer, and must be white space.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/request/token_constraint.h"
#include "coordinator/structured/forced_tokens.h"
#include "coordinator/structured/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace somnus {

// The reasoning that goes before the answer of a model that reasons.
struct ReasoningBounds {
  bool is_open = false;               // the prompt ends inside of reasoning
  std::vector<int32_t> begin;         // the marker's tokens
  std::string end;                    // the marker's text, not empty
  std::vector<int32_t> forced_end;    // tokens of a text that ends reasoning, and holds `end`
  std::optional<int64_t> max_tokens;  // that reasoning may have; nullopt: any number
};

// `grammar` null: every text. `reasoning` nullopt: the answer begins at once. `forced` null: the grammar
// forces no tokens ahead. `num_mask_words`: as TokenConstraint says.
std::shared_ptr<const TokenConstraint> MakeAnswerConstraint(std::shared_ptr<const CompiledGrammar> grammar,
                                                            std::optional<ReasoningBounds> reasoning,
                                                            std::shared_ptr<const Tokenizer> tokenizer,
                                                            std::shared_ptr<const ForcedTokenizer> forced,
                                                            int32_t num_mask_words);

}  // namespace somnus
