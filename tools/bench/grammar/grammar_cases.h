#pragma once
// The cases of grammar_bench: grammars as clients send them, each with a text that fits.

#include <string>
#include <vector>

#include "coordinator/structured/grammar.h"

namespace somnus {

struct GrammarCase {
  std::string name;
  GrammarKind kind;
  std::string asked;  // the client's schema or pattern; empty for a kind that has none
  std::string text;
};

std::vector<GrammarCase> GrammarCases();

// The source that a server compiles: what the gate makes of the client's schema or pattern.
GrammarSource Gated(const GrammarCase& one);

}  // namespace somnus
