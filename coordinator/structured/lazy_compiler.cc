#include "coordinator/structured/lazy_compiler.h"

#include "base/status_macros.h"

namespace somnus {

absl::StatusOr<std::shared_ptr<const CompiledGrammar>> LazyCompiler::Compile(const GrammarSource& source) {
  absl::call_once(once_, [this] {
    made_ = make_();
    make_ = nullptr;
  });
  RETURN_IF_ERROR(made_.status());
  return (*made_)->Compile(source);
}

}  // namespace somnus
