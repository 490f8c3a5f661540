// grammar_bench: what structured output costs the coordinator, on one core.
//
//   grammar_bench [--json] --model=DIRECTORY
//
// For each grammar: how long its first use takes (the compile and the first mask), and how long a mask takes,
// for the first sequence and for a second one that finds all masks made. The texts are tokenized by the
// model's tokenizer.

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "coordinator/structured/grammar_vocabulary.h"
#include "coordinator/structured/xgrammar_compiler.h"
#include "text/tokenizer/tokenizer.h"
#include "tools/bench/grammar/grammar_cases.h"

namespace somnus {
namespace {

// That are measured with all masks made.
constexpr int kSequences = 10;

struct BenchFlags {
  std::string model;
  bool json = false;
};

FlagTable Table(BenchFlags* f) {
  FlagTable table;
  table.program = "grammar_bench";
  table.usage = "grammar_bench [flags]";
  table.about = "Times the compiles of grammars, and masks of tokens.";
  table.groups = {
      {"Flags",
       {Flag::Text("model", &f->model, "directory with config.json and the tokenizer; weights are not read"),
        Flag::Switch("json", &f->json, "print one JSON object")}}};
  return table;
}

// Of the CPU for this thread, so that other work on the machine does not count.
double CpuMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

nlohmann::json ToJson(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const double sum = std::accumulate(times.begin(), times.end(), 0.0);
  return {{"masks", times.size()},
          {"average_us", sum / static_cast<double>(times.size())},
          {"p50_us", times[times.size() / 2]},
          {"p99_us", times[times.size() * 99 / 100]},
          {"max_us", times.back()}};
}

// Times the mask before each of `tokens`.
absl::StatusOr<std::vector<double>> TimeMasks(const CompiledGrammar& grammar,
                                              const std::vector<int32_t>& tokens, int64_t rows) {
  ASSIGN_OR_RETURN(const auto matcher, grammar.NewMatcher());
  std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(rows)));
  std::vector<double> times;
  for (const int32_t token : tokens) {
    const double start = CpuMicroseconds();
    RETURN_IF_ERROR(matcher->FillMask(absl::MakeSpan(mask)));
    times.push_back(CpuMicroseconds() - start);
    RETURN_IF_ERROR(matcher->Accept(token));
  }
  if (!matcher->IsComplete())
    return absl::InternalError("the text of the benchmark does not fit its grammar");
  return times;
}

absl::StatusOr<nlohmann::json> Measure(const GrammarVocabulary& vocabulary, const Tokenizer& tokenizer) {
  const double start = CpuMicroseconds();
  ASSIGN_OR_RETURN(const auto compiler, NewXgrammarCompiler(vocabulary, {}));
  nlohmann::json report = {{"vocabulary", vocabulary.rows},
                           {"sort_vocabulary_us", CpuMicroseconds() - start}};
  for (const GrammarCase& one : GrammarCases()) {
    const std::vector<int32_t> tokens = tokenizer.Encode(one.text, /*add_special_tokens=*/false);
    const double begin = CpuMicroseconds();
    ASSIGN_OR_RETURN(const auto grammar, compiler->Compile(one.source));
    const double compile = CpuMicroseconds() - begin;
    ASSIGN_OR_RETURN(const std::vector<double> first, TimeMasks(*grammar, tokens, vocabulary.rows));
    const double made = CpuMicroseconds();
    grammar->MakeMasks();
    const double ahead = CpuMicroseconds() - made;
    std::vector<double> prepared;
    for (int i = 0; i < kSequences; ++i) {
      ASSIGN_OR_RETURN(const std::vector<double> times, TimeMasks(*grammar, tokens, vocabulary.rows));
      prepared.insert(prepared.end(), times.begin(), times.end());
    }
    report["grammars"].push_back({{"name", one.name},
                                  {"source_bytes", one.source.bytes()},
                                  {"compile_us", compile},
                                  {"first_use_us", compile + first.front()},
                                  {"masks_ahead_us", ahead},
                                  {"bytes", grammar->bytes()},
                                  {"first", ToJson(first)},
                                  {"prepared", ToJson(prepared)}});
  }
  return report;
}

void Print(const nlohmann::json& report) {
  std::printf("%ld rows of logits, sorted in %.0f ms\n", report["vocabulary"].get<long>(),
              report["sort_vocabulary_us"].get<double>() / 1000);
  std::printf("%-20s %10s %10s %10s | %-32s | %s\n", "", "first use", "all masks", "memory",
              "first masks: average, p99, max us", "masks made ahead");
  for (const nlohmann::json& one : report["grammars"]) {
    std::printf("%-20s %7.1f ms %7.1f ms %6.1f MiB |", one["name"].get<std::string>().c_str(),
                one["first_use_us"].get<double>() / 1000, one["masks_ahead_us"].get<double>() / 1000,
                one["bytes"].get<double>() / (1 << 20));
    for (const char* which : {"first", "prepared"}) {
      const nlohmann::json& times = one[which];
      std::printf(" %10.1f %10.1f %10.1f |", times["average_us"].get<double>(), times["p99_us"].get<double>(),
                  times["max_us"].get<double>());
    }
    std::printf("\n");
  }
}

absl::Status Run(const BenchFlags& flags) {
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(flags.model, LoadFormat::kDummy));
  ASSIGN_OR_RETURN(TokenizerData data, checkpoint->ReadTokenizer());
  ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Create(std::move(data)));
  const int64_t rows = std::max<int64_t>(checkpoint->config().vocab_size, tokenizer->vocab_size());
  const std::vector<int32_t>& ends = checkpoint->config().eos_token_ids;
  ASSIGN_OR_RETURN(const nlohmann::json report, Measure(VocabularyOf(*tokenizer, ends, rows), *tokenizer));
  if (flags.json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    Print(report);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  somnus::BenchFlags flags;
  if (const auto code = somnus::ParseCommandLine(somnus::Table(&flags), argc, argv); code.has_value())
    return *code;
  const absl::Status status = somnus::Run(flags);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
