#pragma once
// Counted repetitions, in the form for which xgrammar knows most tokens ahead. xgrammar 0.2.9 puts the
// choices of a rule into the rules that begin with it before it unrolls repetitions, and never afterwards. So
// each copy of "a character or an escape" stays a rule of its own, which ends behind one character: no token
// of several characters is known ahead, and a mask walks the whole vocabulary.

#include <xgrammar/xgrammar.h>

#include <cstdint>

namespace somnus {

// Returns an equal grammar. Repetitions of rules without references, with counts up to 1024, are chains of
// rules there: each begins with the repeated rule and goes on with the next rule of the chain. Equal
// repetitions share their chain, and shorter ones the end of it. Others stay as they are, as do short
// repetitions of a single class of characters, which xgrammar handles well, and whatever would bring the
// branches of all chains' rules above `max_branches`; a shared rule counts once. Throws what xgrammar throws.
xgrammar::Grammar ChainRepetitions(const xgrammar::Grammar& grammar, int64_t max_branches);

}  // namespace somnus
