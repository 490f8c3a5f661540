#pragma once
// The lookaheads of a compiled grammar, the texts that may follow a rule, where xgrammar reads them wrongly.

#include <xgrammar/xgrammar.h>

namespace somnus {

// Takes the lookahead away from the rules of a compiled grammar whose lookahead has a class of characters
// that xgrammar 0.2.9 reads wrongly: within a lookahead it compares an ASCII character with the lowest bytes
// of a class's code points, so that U+E000 to U+10FFFF takes all of ASCII. Masks then have tokens that go
// wrong behind the end of the rule, or lack right ones. Without a lookahead such tokens are looked at for
// each mask. To be called before the first mask is made; a second call changes nothing.
void DropWrongLookaheads(xgrammar::CompiledGrammar* compiled);

}  // namespace somnus
