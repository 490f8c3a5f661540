#pragma once
// Grammars that a stranger may send to keep the server busy or to fill its memory.

#include <string>
#include <vector>

#include "coordinator/structured/grammar.h"

namespace somnus {

struct HostileGrammar {
  std::string name;
  GrammarSource source;
  // A text that a client may make the model write under the grammar, as far as the grammar goes.
  std::string text;
};

std::vector<HostileGrammar> HostileGrammars();

}  // namespace somnus
