#pragma once
// Gives one input to the parser of turns, and must return for any bytes. The libFuzzer target and
// mutation_test use it.

#include "absl/strings/string_view.h"

namespace somnus {

// The first byte chooses a format, the second how the rest is cut in pieces and how the turn ends. Aborts
// when the pieces give other events than the whole, when calls do not nest, or when text comes out that did
// not go in.
void FuzzTurnParser(absl::string_view bytes);

}  // namespace somnus
