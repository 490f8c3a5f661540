#pragma once
// The characters that texts of a grammar's expressions begin with, and the characters that may follow an
// expression. A set has every character that may come, and perhaps more. A token that goes beyond the end of
// a rule's text is wrong for certain where the token's next characters are not in the set that follows the
// rule.

#include <xgrammar/xgrammar.h>

#include <bitset>
#include <cstdint>
#include <vector>

namespace somnus {

// The first two characters of texts.
struct Beginning {
  // A bit for each ASCII character; the last bit stands for all other characters.
  using Characters = std::bitset<129>;

  Characters first, second;
  bool may_be_empty = false;
  bool may_be_one = false;  // a text of a single character

  static Beginning Any();
  bool operator==(const Beginning& other) const = default;

  void Add(const Beginning& other);  // texts of either
  // The beginning of concatenations: a text of this expression, then a text of `rest`.
  Beginning With(const Beginning& rest) const;
};

// Not thread safe. Takes a time in proportion to the grammar.
class FollowAnalysis {
 public:
  explicit FollowAnalysis(const xgrammar::Grammar& grammar);

  // The characters that may follow any repetition of `rule` in the grammar.
  const Beginning& BehindRepetitionsOf(int32_t rule) const { return behind_[static_cast<size_t>(rule)]; }

 private:
  Beginning OfExpression(int32_t expression) const;
  Beginning OfRepetition(const Beginning& once, int32_t min, int32_t max) const;
  void ReadBeginnings();
  void ReadFollowers();
  void Follow(int32_t rule);
  void FollowSequence(int32_t sequence, const Beginning& behind);

  const xgrammar::Grammar grammar_;
  std::vector<Beginning> beginnings_, followers_, behind_;  // by rule
  bool is_certain_ = true;                                  // false: the passes have not sufficed
};

}  // namespace somnus
