#pragma once
// A GrammarCompiler that is made by its first Compile, so that a server's start does not wait for the sorting
// of its vocabulary. Thread safe: further calls wait until the compiler is made.

#include <functional>
#include <memory>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/status/statusor.h"
#include "coordinator/structured/grammar.h"

namespace somnus {

class LazyCompiler : public GrammarCompiler {
 public:
  using Make = std::function<absl::StatusOr<std::unique_ptr<GrammarCompiler>>()>;

  // `make` runs at most once, on the thread of a Compile, and is destroyed after that with all captured
  // objects.
  explicit LazyCompiler(Make make) : make_(std::move(make)) {}

  // Errors: the error of `make`, at each call, or the errors of the compiler.
  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSource& source) override;

 private:
  absl::once_flag once_;
  Make make_;
  absl::StatusOr<std::unique_ptr<GrammarCompiler>> made_ = nullptr;
};

}  // namespace somnus
