#include "coordinator/structured/xgrammar_repetitions.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "coordinator/structured/xgrammar_log.h"
// A header of xgrammar; xgrammar_log.h has to come first, in the place of a header that this one includes.
#include "cpp/grammar_functor.h"

namespace somnus {
namespace {

constexpr int32_t kNoLimit = -1;
constexpr int32_t kLongestChain = 1024;
// The longest repetition of a character class that xgrammar unrolls, in one rule.
constexpr int32_t kLongestUnrolled = 128;

class RepetitionChains : public xgrammar::GrammarMutator {
 public:
  explicit RepetitionChains(int64_t max_branches) : max_branches_(max_branches) {}

 private:
  // The repeated rule's content, and how often it must and may come from a link of a chain on.
  using Link = std::tuple<std::vector<int32_t>, int32_t, int32_t>;

  int32_t VisitRepeat(const GrammarExpr& repeat) override {
    const int32_t rule = repeat[0], min = repeat[1], max = repeat[2];
    const int32_t links = max == kNoLimit ? min : max;
    std::vector<int32_t> content;
    if (links < std::max(min, 1) || links > kLongestChain || !ContentOf(rule, links, &content))
      return VisitElement(repeat);
    if (const auto known = ids_.find(Link(content, min, max)); known != ids_.end())
      return builder_->AddRuleRef(known->second);
    const int64_t branches = base_grammar_->GetGrammarExpr(base_grammar_->GetRule(rule).body_expr_id).size();
    if (num_branches_ + links * branches > max_branches_) return VisitElement(repeat);
    const size_t num_known = ids_.size();
    const int32_t first = Chain(rule, content, min, max);
    num_branches_ += static_cast<int64_t>(ids_.size() - num_known) * branches;
    return builder_->AddRuleRef(first);
  }

  // The first rule of a chain. Rules in front come first: masks are made ahead in this order.
  int32_t Chain(int32_t rule, const std::vector<int32_t>& content, int32_t min, int32_t max) {
    auto [first, is_new] = IdOf(content, min, max);
    for (int32_t id = first; is_new;) {
      std::vector<int32_t> choices;
      if (min == 0) choices.push_back(builder_->AddEmptyStr());
      std::vector<int32_t> sequence = {builder_->AddRuleRef(rule)};
      min = std::max(min - 1, 0);
      if (max != kNoLimit) --max;
      int32_t next = id;
      is_new = false;
      if (max != 0) {
        std::tie(next, is_new) = IdOf(content, min, max);
        sequence.push_back(builder_->AddRuleRef(next));
      }
      choices.push_back(builder_->AddSequence(sequence));
      builder_->UpdateRuleBody(id, builder_->AddChoices(choices));
      id = next;
    }
    return first;
  }

  // The rule of a link, and whether the rule has no body yet.
  std::pair<int32_t, bool> IdOf(const std::vector<int32_t>& content, int32_t min, int32_t max) {
    const auto [at, is_new] = ids_.try_emplace(Link(content, min, max), 0);
    if (is_new) at->second = builder_->AddEmptyRuleWithHint(cur_rule_name_ + "_chain");
    return {at->second, is_new};
  }

  // Whether a chain is better than what xgrammar makes of as many repetitions: the rule is a choice that
  // refers to no rule and is never empty. Sets `content` to all that the rule says.
  bool ContentOf(int32_t rule_id, int32_t links, std::vector<int32_t>* content) const {
    const Rule& rule = base_grammar_->GetRule(rule_id);
    const bool has_more = rule.max_tokens >= 0 || rule.max_chars >= 0 || !rule.capture_name.empty() ||
                          rule.is_lazy || rule.temperature.has_value() || rule.lookahead_assertion_id >= 0 ||
                          base_grammar_->GetSuffixStopInfo(rule_id) != nullptr;
    const GrammarExpr choices = base_grammar_->GetGrammarExpr(rule.body_expr_id);
    if (has_more || choices.type != GrammarExprType::kChoices) return false;
    for (const int32_t choice : choices) {
      const GrammarExpr sequence = base_grammar_->GetGrammarExpr(choice);
      if (sequence.type != GrammarExprType::kSequence || !AddPlain(sequence, content)) return false;
    }
    return !IsClass(choices) || links > kLongestUnrolled;
  }

  // Appends a sequence of strings and classes; false for others, and where the sequence may be empty.
  bool AddPlain(const GrammarExpr& sequence, std::vector<int32_t>* content) const {
    bool is_never_empty = false;
    content->push_back(-sequence.size());
    for (const int32_t id : sequence) {
      const GrammarExpr element = base_grammar_->GetGrammarExpr(id);
      const bool is_text = element.type == GrammarExprType::kByteString && element.size() > 0;
      const bool is_class = element.type == GrammarExprType::kCharacterClass;
      if (!is_text && !is_class && element.type != GrammarExprType::kCharacterClassStar) return false;
      is_never_empty |= is_text || is_class;
      content->push_back(static_cast<int32_t>(element.type));
      content->push_back(element.size());
      content->insert(content->end(), element.begin(), element.end());
    }
    return is_never_empty;
  }

  // Whether the choices are a single class of characters.
  bool IsClass(const GrammarExpr& choices) const {
    const GrammarExpr sequence = base_grammar_->GetGrammarExpr(choices[0]);
    return choices.size() == 1 && sequence.size() == 1 &&
           base_grammar_->GetGrammarExpr(sequence[0]).type == GrammarExprType::kCharacterClass;
  }

  const int64_t max_branches_;
  std::map<Link, int32_t> ids_;
  int64_t num_branches_ = 0;
};

}  // namespace

xgrammar::Grammar ChainRepetitions(const xgrammar::Grammar& grammar, int64_t max_branches) {
  return RepetitionChains(max_branches).Apply(grammar);
}

}  // namespace somnus
