// A stranger's grammar has a bounded cost. Every compile and every call of a matcher ends, in a grammar or in
// a Status, within the limits of memory; the process and other grammars go on.

#include <fstream>
#include <string>

#include "coordinator/structured/compile_thread.h"
#include "coordinator/structured/work_meter.h"
#include "gtest/gtest.h"
#include "tests/structured/hostile_grammars.h"
#include "tests/structured/small_vocabulary.h"

namespace somnus {
namespace {

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

bool IsBounded(const absl::Status& status) {
  return status.ok() || absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) ||
         absl::IsDeadlineExceeded(status) || absl::IsFailedPrecondition(status);
}

// Writes as much of `text` as the grammar allows, with a mask before each byte.
void Write(const CompiledGrammar& grammar, const std::string& text) {
  auto matcher = grammar.NewMatcher();
  ASSERT_TRUE(IsBounded(matcher.status())) << matcher.status();
  if (!matcher.ok()) return;
  std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(SmallVocabulary().rows)));
  for (const char byte : text) {
    const absl::Status masked = (*matcher)->FillMask(absl::MakeSpan(mask));
    ASSERT_TRUE(IsBounded(masked)) << masked;
    const absl::Status accepted = (*matcher)->Accept(static_cast<unsigned char>(byte));
    ASSERT_TRUE(IsBounded(accepted)) << accepted;
    if (!masked.ok() || !accepted.ok()) return;
  }
}

class GrammarAttacks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kWorkMetersThrow)
      GTEST_SKIP() << "sanitizers keep their own operator new, and nothing ends an attack";
  }
};

TEST_F(GrammarAttacks, EachEndsWithinTheLimits) {
  GrammarLimits limits;
  limits.compile_bytes = int64_t{128} << 20;
  limits.compile_time = absl::Milliseconds(500);
  limits.step_time = absl::Milliseconds(100);
  const auto compiler = SmallCompiler(limits);
  for (const HostileGrammar& hostile : HostileGrammars()) {
    SCOPED_TRACE(hostile.name);
    auto thread = CompileThread::Start([&] {
      const auto grammar = compiler->Compile(hostile.source);
      EXPECT_TRUE(IsBounded(grammar.status())) << grammar.status();
      if (grammar.ok()) Write(**grammar, hostile.text);
    });
    ASSERT_TRUE(thread.ok()) << thread.status();
  }
  EXPECT_LT(ResidentBytes(), int64_t{1} << 30);
  const auto grammar = compiler->Compile(SourceOf(GrammarKind::kRegex, "[a-c]+"));
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_TRUE(Matches(**grammar, "abc"));
}

// A compile may run out of memory at each allocation. No such failure ends the process, and the compiler is
// as good as before.
TEST_F(GrammarAttacks, MemoryMayEndAnywhere) {
  const GrammarSource sources[] = {
      SourceOf(
          GrammarKind::kJsonSchema,
          R"({"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"$ref": "#/$defs/x"}},
                   "required": ["a"], "$defs": {"x": {"anyOf": [{"type": "null"}, {"enum": ["u", "v"]}]}}})"),
      SourceOf(GrammarKind::kJsonSchema, R"({"type": "string", "pattern": "^(ab|[c-e]{2,3})*$"})"),
      SourceOf(GrammarKind::kJsonSchema, R"({"type": "integer", "minimum": 3, "maximum": 1})"),
      SourceOf(GrammarKind::kRegex, "(ab)*c?[0-9]{2,4}("),
      SourceOf(GrammarKind::kEbnf, "root ::= [0-9]+ | \"-\" root | missing"),
      SourceOf(GrammarKind::kEbnf, "root ::= [0-9]+ | \"-\" root"),
      SourceOf(GrammarKind::kStructuralTag,
               R"({"type": "structural_tag", "format": {"type": "tag", "begin": "ab", "content":
          {"type": "json_schema", "json_schema": {"type": "boolean"}}, "end": "ba"}})"),
  };
  for (const GrammarSource& source : sources) {
    SCOPED_TRACE(source.text);
    const absl::Status without_limit = SmallCompiler()->Compile(source).status();
    int refused = 0;
    for (int64_t bytes = 100; bytes < 4 << 20; bytes += bytes < 100'000 ? 397 : 16'111) {
      const auto compiler = SmallCompiler({.compile_bytes = bytes, .compile_time = absl::Seconds(100)});
      const absl::Status status = compiler->Compile(source).status();
      if (absl::IsResourceExhausted(status)) {
        ++refused;
        continue;
      }
      ASSERT_EQ(status.code(), without_limit.code()) << bytes << " " << status;
    }
    EXPECT_GT(refused, 0);
  }
}

// Each step adds little: the sum is what counts.
TEST_F(GrammarAttacks, AMatcherMayRunOutOfMemory) {
  const auto grammar = SmallCompiler({.matcher_bytes = 1 << 20})
                           ->Compile(SourceOf(GrammarKind::kEbnf, "root ::= root root | \"a\" | \"\""));
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  auto matcher = (*grammar)->NewMatcher();
  ASSERT_TRUE(matcher.ok()) << matcher.status();
  absl::Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) status = (*matcher)->Accept('a');
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  // From then on the matcher says so.
  EXPECT_EQ((*matcher)->Accept('a'), status);
  EXPECT_EQ((*matcher)->Rollback(1), status);
  EXPECT_EQ((*matcher)->Fork().status(), status);
  EXPECT_FALSE((*matcher)->IsComplete());
}

}  // namespace
}  // namespace somnus
