#pragma once
// The cases of grammar_bench: grammars as clients send them, each with a text that fits.

#include <string>
#include <vector>

#include "coordinator/structured/grammar.h"

namespace somnus {

struct GrammarCase {
  std::string name;
  GrammarSource source;
  std::string text;
};

std::vector<GrammarCase> GrammarCases();

}  // namespace somnus
