#pragma once
// Grammars over a small vocabulary, and the tokens that their matchers allow.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/structured/grammar.h"
#include "coordinator/structured/xgrammar_compiler.h"
#include "tests/structured/small_vocabulary.h"

namespace somnus {

class Grammars : public ::testing::Test {
 protected:
  explicit Grammars(GrammarVocabulary vocabulary = SmallVocabulary())
      : vocabulary_(std::move(vocabulary)), compiler_(*NewXgrammarCompiler(vocabulary_, {})) {}

  std::shared_ptr<const CompiledGrammar> Compile(const GrammarSource& source) {
    auto grammar = compiler_->Compile(source);
    EXPECT_TRUE(grammar.ok()) << grammar.status() << " " << source.text;
    return grammar.ok() ? *grammar : nullptr;
  }
  std::shared_ptr<const CompiledGrammar> Compile(GrammarKind kind, const std::string& text) {
    return Compile(SourceOf(kind, text));
  }
  absl::Status ErrorOf(GrammarKind kind, const std::string& text) {
    return compiler_->Compile(SourceOf(kind, text)).status();
  }

  std::set<int32_t> Allowed(GrammarMatcher* matcher) {
    std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(vocabulary_.rows)));
    const absl::Status status = matcher->FillMask(absl::MakeSpan(mask));
    EXPECT_TRUE(status.ok()) << status;
    std::set<int32_t> allowed;
    for (int32_t token = 0; token < static_cast<int32_t>(mask.size() * 32); ++token) {
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0) allowed.insert(token);
    }
    return allowed;
  }

  // The tokens that are in one set alone.
  std::string Difference(const std::set<int32_t>& mask, const std::set<int32_t>& walk) {
    std::string difference;
    for (int32_t token = 0; token < vocabulary_.rows; ++token) {
      if (mask.contains(token) == walk.contains(token)) continue;
      absl::StrAppend(&difference, mask.contains(token) ? " only the mask has " : " the mask lacks ", token,
                      " '", absl::CEscape(vocabulary_.token_bytes[static_cast<size_t>(token)]), "'");
    }
    return difference;
  }

  const GrammarVocabulary vocabulary_;
  const std::unique_ptr<GrammarCompiler> compiler_;
};

}  // namespace somnus
