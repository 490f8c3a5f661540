#include "coordinator/structured/xgrammar_follow.h"

#include <algorithm>
#include <string>

#include "coordinator/structured/xgrammar_log.h"
// xgrammar's own header. xgrammar_log.h replaces a header that grammar_impl.h includes, and has to come
// first.
#include "cpp/grammar_impl.h"

namespace somnus {
namespace {

using ExpressionType = xgrammar::Grammar::Impl::GrammarExprType;
using Expression = xgrammar::Grammar::Impl::GrammarExpr;

constexpr size_t kOthers = 128;  // the bit of all characters that are not ASCII
// Most rules refer to neighbours in one direction, so that a few passes, in both directions by turns,
// suffice.
constexpr int kMostPasses = 24;

Beginning OfBytes(const Expression& bytes) {
  std::vector<size_t> characters;
  for (const int32_t byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    if ((value & 0xC0) != 0x80) characters.push_back(std::min<size_t>(value, kOthers));
    if (characters.size() == 2) break;
  }
  if (characters.empty() && bytes.size() > 0) characters.push_back(kOthers);  // the rest of a character
  Beginning beginning;
  beginning.may_be_empty = characters.empty();
  beginning.may_be_one = characters.size() == 1;
  if (!characters.empty()) beginning.first.set(characters[0]);
  if (characters.size() > 1) beginning.second.set(characters[1]);
  return beginning;
}

Beginning OfClass(const Expression& elements) {
  Beginning::Characters inside;
  bool has_all_others = false;
  for (int i = 1; i < elements.size(); i += 2) {
    for (int32_t code = elements[i]; code <= std::min(elements[i + 1], 127); ++code)
      inside.set(static_cast<size_t>(code));
    if (elements[i + 1] >= 128) inside.set(kOthers);
    has_all_others |= elements[i] <= 128 && elements[i + 1] >= 0x10FFFF;
  }
  Beginning beginning;
  beginning.first = inside;
  if (elements[0] != 0) {
    beginning.first = ~inside;
    beginning.first.set(kOthers, !has_all_others);
  }
  beginning.may_be_one = true;
  return beginning;
}

}  // namespace

Beginning Beginning::Any() {
  Beginning any;
  any.first.set();
  any.second.set();
  any.may_be_empty = any.may_be_one = true;
  return any;
}

void Beginning::Add(const Beginning& other) {
  first |= other.first;
  second |= other.second;
  may_be_empty |= other.may_be_empty;
  may_be_one |= other.may_be_one;
}

Beginning Beginning::With(const Beginning& rest) const {
  Beginning whole = *this;
  if (may_be_one) whole.second |= rest.first;
  if (may_be_empty) {
    whole.first |= rest.first;
    whole.second |= rest.second;
  }
  whole.may_be_empty = may_be_empty && rest.may_be_empty;
  whole.may_be_one = (may_be_one && rest.may_be_empty) || (may_be_empty && rest.may_be_one);
  return whole;
}

FollowAnalysis::FollowAnalysis(const xgrammar::Grammar& grammar)
    : grammar_(grammar),
      beginnings_(static_cast<size_t>(grammar->NumRules())),
      followers_(beginnings_.size()),
      behind_(beginnings_.size()) {
  ReadBeginnings();
  ReadFollowers();
  if (!is_certain_) std::fill(behind_.begin(), behind_.end(), Beginning::Any());
}

Beginning FollowAnalysis::OfRepetition(const Beginning& once, int32_t min, int32_t max) const {
  Beginning all;
  all.may_be_empty = min == 0;
  if (max == 0) return all;
  all.Add(once);
  if (max != 1 && (once.may_be_one || once.may_be_empty)) all.second |= once.first;
  return all;
}

Beginning FollowAnalysis::OfExpression(int32_t id) const {
  const Expression expression = grammar_->GetGrammarExpr(id);
  switch (expression.type) {
    case ExpressionType::kByteString:
      return OfBytes(expression);
    case ExpressionType::kCharacterClass:
      return OfClass(expression);
    case ExpressionType::kCharacterClassStar:
      return OfRepetition(OfClass(expression), 0, -1);
    case ExpressionType::kEmptyStr: {
      Beginning empty;
      empty.may_be_empty = true;
      return empty;
    }
    case ExpressionType::kRuleRef:
      return beginnings_[static_cast<size_t>(expression[0])];
    case ExpressionType::kRepeat:
      return OfRepetition(beginnings_[static_cast<size_t>(expression[0])], expression[1], expression[2]);
    case ExpressionType::kSequence: {
      Beginning whole;
      whole.may_be_empty = true;
      for (const int32_t element : expression) whole = whole.With(OfExpression(element));
      return whole;
    }
    case ExpressionType::kChoices: {
      Beginning either;
      for (const int32_t choice : expression) either.Add(OfExpression(choice));
      return either;
    }
    default:
      return Beginning::Any();
  }
}

void FollowAnalysis::ReadBeginnings() {
  const auto num_rules = static_cast<int32_t>(beginnings_.size());
  bool changed = true;
  for (int pass = 0; changed && pass < kMostPasses; ++pass) {
    changed = false;
    for (int32_t i = 0; i < num_rules; ++i) {
      const int32_t rule = pass % 2 == 0 ? num_rules - 1 - i : i;
      Beginning beginning = OfExpression(grammar_->GetRule(rule).body_expr_id);
      Beginning& known = beginnings_[static_cast<size_t>(rule)];
      changed |= !(beginning == known);
      known = beginning;
    }
  }
  is_certain_ &= !changed;
}

void FollowAnalysis::ReadFollowers() {
  const auto num_rules = static_cast<int32_t>(followers_.size());
  Beginning end;
  end.may_be_empty = true;
  followers_[static_cast<size_t>(grammar_->GetRootRuleId())] = end;
  std::vector<Beginning> known;
  for (int pass = 0; is_certain_ && known != followers_; ++pass) {
    is_certain_ = pass < kMostPasses;
    known = followers_;
    for (int32_t i = 0; i < num_rules; ++i) Follow(pass % 2 == 0 ? i : num_rules - 1 - i);
  }
}

// Adds to followers_ and behind_ of the rules that `rule` refers to.
void FollowAnalysis::Follow(int32_t rule) {
  const Expression body = grammar_->GetGrammarExpr(grammar_->GetRule(rule).body_expr_id);
  const Beginning behind = followers_[static_cast<size_t>(rule)];
  if (body.type == ExpressionType::kTagDispatch) {
    for (const auto& [trigger, tag] : grammar_->GetTagDispatch(body).tag_rule_pairs)
      followers_[static_cast<size_t>(tag)] = Beginning::Any();
  } else if (body.type == ExpressionType::kTokenTagDispatch) {
    for (const auto& [trigger, tag] : grammar_->GetTokenTagDispatch(body).trigger_rule_pairs)
      followers_[static_cast<size_t>(tag)] = Beginning::Any();
  } else if (body.type == ExpressionType::kChoices) {
    for (const int32_t choice : body) FollowSequence(choice, behind);
  } else {
    FollowSequence(grammar_->GetRule(rule).body_expr_id, behind);
  }
}

void FollowAnalysis::FollowSequence(int32_t id, const Beginning& behind) {
  const Expression sequence = grammar_->GetGrammarExpr(id);
  std::vector<int32_t> elements = {id};
  if (sequence.type == ExpressionType::kSequence) elements.assign(sequence.begin(), sequence.end());
  std::reverse(elements.begin(), elements.end());
  Beginning rest = behind;
  for (const int32_t element : elements) {
    const Expression expression = grammar_->GetGrammarExpr(element);
    if (expression.type == ExpressionType::kRuleRef) {
      followers_[static_cast<size_t>(expression[0])].Add(rest);
    } else if (expression.type == ExpressionType::kRepeat) {
      const auto rule = static_cast<size_t>(expression[0]);
      behind_[rule].Add(rest);
      Beginning again = OfExpression(element);
      again.may_be_empty = true;
      followers_[rule].Add(again.With(rest));
    }
    rest = OfExpression(element).With(rest);
  }
}

}  // namespace somnus
