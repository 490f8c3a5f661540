#include "coordinator/structured/xgrammar_lookaheads.h"

#include <algorithm>
#include <cstdint>

#include "coordinator/structured/xgrammar_log.h"
// The next header is xgrammar's. xgrammar_log.h has to come first, in the place of a header that xgrammar's
// includes.
#include "cpp/compiled_grammar_impl.h"

namespace somnus {
namespace {

using Expr = xgrammar::Grammar::Impl::GrammarExpr;
using ExprType = xgrammar::Grammar::Impl::GrammarExprType;

constexpr int32_t kLastAscii = 0x7F;

// Whether the lowest bytes of a range's ends give other ASCII characters than the range has.
bool IsReadWrongly(int32_t first, int32_t last) {
  const int32_t low = first & 0xFF, high = std::min(last & 0xFF, kLastAscii);
  const bool takes_any = low <= high, has_any = first <= kLastAscii;
  return takes_any != has_any || (has_any && high != std::min(last, kLastAscii));
}

bool IsReadWrongly(const Expr& element) {
  if (element.type != ExprType::kCharacterClass && element.type != ExprType::kCharacterClassStar)
    return false;
  for (int i = 1; i + 1 < element.size(); i += 2) {
    if (IsReadWrongly(element[i], element[i + 1])) return true;
  }
  return false;
}

}  // namespace

void DropWrongLookaheads(xgrammar::CompiledGrammar* compiled) {
  xgrammar::Grammar& grammar = (*compiled)->grammar;
  for (int32_t id = 0; id < static_cast<int32_t>(grammar->NumRules()); ++id) {
    auto& rule = grammar->GetRule(id);
    if (rule.lookahead_assertion_id < 0) continue;
    const Expr lookahead = grammar->GetGrammarExpr(rule.lookahead_assertion_id);
    const bool is_wrong = std::any_of(lookahead.begin(), lookahead.end(), [&](int32_t element) {
      return IsReadWrongly(grammar->GetGrammarExpr(element));
    });
    if (is_wrong) rule.lookahead_assertion_id = -1;
  }
}

}  // namespace somnus
