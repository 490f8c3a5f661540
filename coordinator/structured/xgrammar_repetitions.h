#pragma once
// Counted repetitions, in the form for which xgrammar knows most tokens ahead. xgrammar 0.2.9 puts the
// choices of a rule into the rules that begin with it before it unrolls repetitions, and never afterwards. So
// each copy of "a character or an escape" stays a rule of its own, which ends behind one character: no token
// of several characters is known ahead, and a mask walks the whole vocabulary.

#include <xgrammar/xgrammar.h>

#include <cstdint>

namespace somnus {

// Returns an equal grammar. A repetition of a rule without references becomes rules in place of the count:
//
//   up to 64 times                  one automaton, which is unrolled
//   more often, R(min, max)         automaton(min, 64) | automaton(32, 32) R(min - 32, max - 32)
//
// where the first choice is there if min is at most 64. A text goes on in both choices, and the first choice
// covers the place where the automaton of the second choice ends: a token of up to 32 characters lies within
// one automaton, unless more than 64 repetitions are still needed. All repetitions of a rule share its
// automata and their masks. Where R(min - 32, max - 32) takes more repetitions than a token can have, a third
// choice says the same as the second one:
//
//   far step(32, 32) R(min - 32, max - 32)
//
// Its masks are made for texts that go on with repetitions alone, and have all tokens of repetitions alone,
// also those that go beyond the step. The masks of the other choices then need not be certain of such tokens.
// TrustFarSteps() has to follow the compile. xgrammar's automata of rules with starred classes accept too
// much, so repetitions of such rules become chains of rules, with counts up to 1024. Repetitions of rules
// with references stay as they are, as do repetitions of a single class of characters with a count up to 128,
// which xgrammar handles well, counts above 65536, and all that would bring the branches of the copies above
// `max_branches`; a shared automaton counts once. `longest_token`: no token of the vocabulary begins more
// characters. Throws what xgrammar throws.
xgrammar::Grammar UnrollRepetitions(const xgrammar::Grammar& grammar, int64_t max_branches,
                                    int32_t longest_token);

// Tells xgrammar that the lookaheads of far steps are exact: a token that they take is right. Call it before
// the first mask.
void TrustFarSteps(xgrammar::CompiledGrammar* compiled);

}  // namespace somnus
