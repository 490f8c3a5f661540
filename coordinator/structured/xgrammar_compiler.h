#pragma once
// The engine that stands behind GrammarCompiler: xgrammar (docs/dependencies.md). Every exception of xgrammar
// becomes a Status, a WorkMeter bounds every call, and a keyword that xgrammar says it ignores is refused.

#include <memory>

#include "absl/status/statusor.h"
#include "coordinator/structured/grammar.h"
#include "coordinator/structured/grammar_limits.h"
#include "coordinator/structured/grammar_vocabulary.h"

namespace somnus {

struct XgrammarOptions {
  GrammarLimits limits;
  // For masks that grammars with equal rules share.
  int64_t shared_bytes = int64_t{128} << 20;
};

// Sorts the vocabulary, which takes about 100 ms. InvalidArgument: `vocabulary` is not consistent.
absl::StatusOr<std::unique_ptr<GrammarCompiler>> NewXgrammarCompiler(const GrammarVocabulary& vocabulary,
                                                                     const XgrammarOptions& options);

}  // namespace somnus
