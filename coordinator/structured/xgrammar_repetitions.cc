#include "coordinator/structured/xgrammar_repetitions.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "coordinator/structured/xgrammar_follow.h"
#include "coordinator/structured/xgrammar_log.h"
// A header of xgrammar; xgrammar_log.h has to come first, in the place of a header that this one includes.
#include "cpp/compiled_grammar_impl.h"
#include "cpp/grammar_functor.h"
#include "cpp/support/encoding.h"

namespace somnus {
namespace {

constexpr int32_t kNoLimit = -1;
// The gate divides larger counts (schema_regex_text.cc); a client's own grammar may have any count.
constexpr int32_t kMostRepetitions = 1 << 16;
constexpr int32_t kLongestChain = 1024;
// The longest repetition of a character class that xgrammar unrolls, in one rule.
constexpr int32_t kLongestUnrolled = 128;
// Copies in one automaton (xgrammar's limit is 128), and how far a text goes before the next automaton
// begins. With more copies masks are quicker, but a compile takes a time in proportion to their square: 5 ms
// for 64.
constexpr int32_t kMostCopies = 64, kStep = 32;
// Begins the names of the automata of far steps. No rule of a client's grammar has such a name.
constexpr absl::string_view kFarName = "#far";

// A rule that is repeated: choices of sequences of strings and classes.
struct Unit {
  std::vector<int32_t> content;  // all that the rule says, for comparisons
  std::string regex;             // the rule as a group; empty where an automaton would accept too much
  int64_t branches = 0;
};

std::string CountText(int32_t min, int32_t max) {
  return max == kNoLimit ? absl::StrCat("{", min, ",}") : absl::StrCat("{", min, ",", max, "}");
}

class Repetitions : public xgrammar::GrammarMutator {
 public:
  Repetitions(int64_t max_branches, int32_t longest_token)
      : max_branches_(max_branches), longest_token_(longest_token) {}

 private:
  // A link of a chain: the repeated rule's content, and how often the rule must and may come from there on.
  using Link = std::tuple<std::vector<int32_t>, int32_t, int32_t>;
  // A repetition by automata: the repeated rule as a regular expression, its least and its largest count.
  using Counted = std::tuple<std::string, int32_t, int32_t>;

  int32_t VisitRepeat(const GrammarExpr& repeat) override {
    const int32_t rule = repeat[0], min = repeat[1], max = repeat[2];
    const int32_t links = max == kNoLimit ? min : max;
    Unit unit;
    if (links < std::max(min, 1) || links > kMostRepetitions || !UnitOf(rule, links, &unit))
      return VisitElement(repeat);
    if (unit.regex.empty()) return VisitChained(repeat, rule, unit);
    if (const auto known = counted_.find(Counted(unit.regex, min, max)); known != counted_.end())
      return builder_->AddRuleRef(known->second);
    const int64_t copies = links <= kMostCopies ? links : kMostCopies + 2 * kStep;
    if (num_branches_ + copies * unit.branches + 3 * (links / kStep) > max_branches_)
      return VisitElement(repeat);
    return builder_->AddRuleRef(RuleOf(unit, min, max));
  }

  // The rule of a repetition, after which all rules that it refers to exist.
  int32_t RuleOf(const Unit& unit, int32_t min, int32_t max) {
    auto [first, is_new] = CountedId(unit, min, max);
    for (int32_t id = first; is_new;) {
      if ((max == kNoLimit ? min : max) <= kMostCopies) {
        AddAutomaton(id, unit, min, max, /*is_step=*/false);
        break;
      }
      std::vector<int32_t> choices;
      if (min <= kMostCopies) {
        choices.push_back(builder_->AddSequence({builder_->AddRuleRef(RuleOf(unit, min, kMostCopies))}));
      }
      min = std::max(min - kStep, 0);
      if (max != kNoLimit) max -= kStep;
      const auto [step, is_first] = steps_.try_emplace(unit.regex, 0);
      if (is_first) {
        step->second = builder_->AddEmptyRuleWithHint(cur_rule_name_ + "_step");
        AddAutomaton(step->second, unit, kStep, kStep, /*is_step=*/true);
      }
      const bool is_far = max == kNoLimit || max >= longest_token_;
      const int32_t far = is_far ? builder_->AddRuleRef(FarStep(unit)) : 0;
      int32_t next;
      std::tie(next, is_new) = CountedId(unit, min, max);
      choices.push_back(
          builder_->AddSequence({builder_->AddRuleRef(step->second), builder_->AddRuleRef(next)}));
      if (is_far) choices.push_back(builder_->AddSequence({far, builder_->AddRuleRef(next)}));
      builder_->UpdateRuleBody(id, builder_->AddChoices(choices));
      num_branches_ += static_cast<int64_t>(choices.size());
      id = next;
    }
    return first;
  }

  // Gives the rule its body: an automaton that is told what may follow. `is_step`: more repetitions may.
  // xgrammar takes what it is told for exact, unless the automaton is the last element of another rule.
  void AddAutomaton(int32_t id, const Unit& unit, int32_t min, int32_t max, bool is_step) {
    const int32_t automaton = AddRegexRule(unit.regex + CountText(min, max));
    num_branches_ += std::max(min, max) * unit.branches;
    const int32_t only = builder_->AddSequence({builder_->AddRuleRef(automaton)});
    builder_->UpdateRuleBody(id, builder_->AddChoices({only}));
    const Beginning& behind = Behind(unit);
    if (behind.first.none() || behind.first.all()) return;
    std::vector<int32_t> lookahead;
    if (is_step) lookahead.push_back(builder_->AddRuleRef(AddRegexRule(unit.regex + "*")));
    lookahead.push_back(AddClassOf(behind.first));
    if (behind.second.any()) lookahead.push_back(AddClassOf(behind.second));
    builder_->UpdateLookaheadAssertion(automaton, builder_->AddSequence(lookahead));
  }

  // The rule of a step behind which any number of repetitions may come, up to the end of a token. Tokens with
  // other text behind the step are not among its masks; the ordinary step has these.
  int32_t FarStep(const Unit& unit) {
    const auto [far, is_new] = far_steps_.try_emplace(unit.regex, 0);
    if (!is_new) return far->second;
    const int32_t automaton = AddRegexRule(unit.regex + CountText(kStep, kStep), std::string(kFarName));
    num_branches_ += kStep * unit.branches;
    // The byte stands in no text, so the lookahead never ends, and no token is left uncertain for what comes
    // behind it.
    const int32_t more = builder_->AddRuleRef(AddRegexRule(unit.regex + "*"));
    const int32_t never = builder_->AddByteString(std::string("\xFF"));
    builder_->UpdateLookaheadAssertion(automaton, builder_->AddSequence({more, never}));
    const int32_t only = builder_->AddSequence({builder_->AddRuleRef(automaton)});
    far->second = builder_->AddRuleWithHint(cur_rule_name_ + "_step", builder_->AddChoices({only}));
    return far->second;
  }

  int32_t AddRegexRule(const std::string& regex) {
    return AddRegexRule(regex, cur_rule_name_ + "_automaton");
  }

  int32_t AddRegexRule(const std::string& regex, const std::string& name) {
    const int32_t id = builder_->AddEmptyRuleWithHint(name);
    builder_->UpdateRuleBody(id, builder_->AddRegex(regex));
    return id;
  }

  int32_t AddClassOf(const Beginning::Characters& characters) {
    std::vector<xgrammar::GrammarBuilder::CharacterClassElement> elements;
    for (int32_t code = 0; code < 128; ++code) {
      if (characters[static_cast<size_t>(code)]) elements.push_back({code, code});
    }
    if (characters[128]) elements.push_back({128, 0x10FFFF});
    return builder_->AddCharacterClass(elements);
  }

  // The characters that may follow the repetitions of rules that are equal to the unit, in the whole grammar.
  const Beginning& Behind(const Unit& unit) {
    if (behind_.empty()) {
      const FollowAnalysis follow(base_grammar_);
      for (int32_t rule = 0; rule < static_cast<int32_t>(base_grammar_->NumRules()); ++rule) {
        Unit other;
        if (UnitOf(rule, kLongestUnrolled + 1, &other))
          behind_[other.regex].Add(follow.BehindRepetitionsOf(rule));
      }
    }
    return behind_[unit.regex];
  }

  // The rule's number, and whether the rule has no body yet.
  std::pair<int32_t, bool> CountedId(const Unit& unit, int32_t min, int32_t max) {
    const auto [at, is_new] = counted_.try_emplace(Counted(unit.regex, min, max), 0);
    if (is_new) at->second = builder_->AddEmptyRuleWithHint(cur_rule_name_ + "_repeated");
    return {at->second, is_new};
  }

  int32_t VisitChained(const GrammarExpr& repeat, int32_t rule, const Unit& unit) {
    const int32_t min = repeat[1], max = repeat[2], links = max == kNoLimit ? min : max;
    if (links > kLongestChain) return VisitElement(repeat);
    if (const auto known = links_.find(Link(unit.content, min, max)); known != links_.end())
      return builder_->AddRuleRef(known->second);
    if (num_branches_ + links * unit.branches > max_branches_) return VisitElement(repeat);
    const size_t num_known = links_.size();
    const int32_t first = Chain(rule, unit.content, min, max);
    num_branches_ += static_cast<int64_t>(links_.size() - num_known) * unit.branches;
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
    const auto [at, is_new] = links_.try_emplace(Link(content, min, max), 0);
    if (is_new) at->second = builder_->AddEmptyRuleWithHint(cur_rule_name_ + "_chain");
    return {at->second, is_new};
  }

  // Whether other rules are better than what xgrammar makes of as many repetitions: the rule is a choice that
  // refers to no rule and is never empty.
  bool UnitOf(int32_t rule_id, int32_t links, Unit* unit) const {
    const Rule& rule = base_grammar_->GetRule(rule_id);
    const bool has_more = rule.max_tokens >= 0 || rule.max_chars >= 0 || !rule.capture_name.empty() ||
                          rule.is_lazy || rule.temperature.has_value() || rule.lookahead_assertion_id >= 0 ||
                          base_grammar_->GetSuffixStopInfo(rule_id) != nullptr;
    const GrammarExpr choices = base_grammar_->GetGrammarExpr(rule.body_expr_id);
    if (has_more || choices.type != GrammarExprType::kChoices) return false;
    unit->branches = choices.size();
    bool is_automaton = true;
    for (const int32_t choice : choices) {
      const GrammarExpr sequence = base_grammar_->GetGrammarExpr(choice);
      unit->regex += unit->regex.empty() ? "(?:" : "|";
      if (sequence.type != GrammarExprType::kSequence || !AddPlain(sequence, unit, &is_automaton))
        return false;
    }
    unit->regex += ")";
    if (!is_automaton) unit->regex.clear();
    return !IsClass(choices) || links > kLongestUnrolled;
  }

  // Appends a sequence of strings and classes; false for others, and where the sequence may be empty.
  bool AddPlain(const GrammarExpr& sequence, Unit* unit, bool* is_automaton) const {
    bool is_never_empty = false;
    unit->content.push_back(-sequence.size());
    for (const int32_t id : sequence) {
      const GrammarExpr element = base_grammar_->GetGrammarExpr(id);
      const bool is_text = element.type == GrammarExprType::kByteString && element.size() > 0;
      const bool is_class = element.type == GrammarExprType::kCharacterClass;
      if (!is_text && !is_class && element.type != GrammarExprType::kCharacterClassStar) return false;
      is_never_empty |= is_text || is_class;
      unit->content.push_back(static_cast<int32_t>(element.type));
      unit->content.push_back(element.size());
      unit->content.insert(unit->content.end(), element.begin(), element.end());
      *is_automaton &= is_text ? AddText(element, &unit->regex) : is_class;
      if (is_class) AddClass(element, &unit->regex);
    }
    return is_never_empty;
  }

  // False for bytes that are no UTF-8.
  static bool AddText(const GrammarExpr& element, std::string* regex) {
    const std::string bytes(element.begin(), element.end());
    const char* separator = "";
    for (const std::string& part : std::vector<std::string>(absl::StrSplit(bytes, '\0'))) {
      absl::StrAppend(regex, std::exchange(separator, "\\u{0}"));
      for (const xgrammar::TCodepoint code_point : xgrammar::ParseUTF8(part.c_str())) {
        if (code_point < 0) return false;
        absl::StrAppendFormat(regex, "\\u{%x}", code_point);
      }
    }
    return true;
  }

  static void AddClass(const GrammarExpr& element, std::string* regex) {
    absl::StrAppend(regex, element[0] != 0 ? "[^" : "[");
    for (int i = 1; i < element.size(); i += 2) {
      absl::StrAppendFormat(regex, "\\u{%x}-\\u{%x}", element[i], element[i + 1]);
    }
    absl::StrAppend(regex, "]");
  }

  // Whether the choices are a single class of characters.
  bool IsClass(const GrammarExpr& choices) const {
    const GrammarExpr sequence = base_grammar_->GetGrammarExpr(choices[0]);
    return choices.size() == 1 && sequence.size() == 1 &&
           base_grammar_->GetGrammarExpr(sequence[0]).type == GrammarExprType::kCharacterClass;
  }

  const int64_t max_branches_;
  const int32_t longest_token_;
  std::map<Counted, int32_t> counted_;
  // Steps of kStep copies, by the unit's regular expression.
  std::map<std::string, int32_t> steps_, far_steps_;
  std::map<std::string, Beginning> behind_;  // by the unit's regular expression
  std::map<Link, int32_t> links_;
  int64_t num_branches_ = 0;
};

}  // namespace

xgrammar::Grammar UnrollRepetitions(const xgrammar::Grammar& grammar, int64_t max_branches,
                                    int32_t longest_token) {
  return Repetitions(max_branches, longest_token).Apply(grammar);
}

void TrustFarSteps(xgrammar::CompiledGrammar* compiled) {
  xgrammar::Grammar& grammar = (*compiled)->grammar;
  for (int32_t id = 0; id < static_cast<int32_t>(grammar->NumRules()); ++id) {
    auto& rule = grammar->GetRule(id);
    const bool is_far = absl::StartsWith(rule.name, kFarName) && rule.lookahead_assertion_id >= 0;
    if (is_far && !rule.is_exact_lookahead) rule.is_exact_lookahead = true;
  }
}

}  // namespace somnus
