// grammar_bench: what structured output costs the coordinator, on one core.
//
//   grammar_bench [--json] [--cases] --model=DIRECTORY
//
// For each grammar: how long its first use takes (the gate, the compile and the first mask), and how long a
// mask takes, for the first sequence and for a second one that finds all masks made. The texts are tokenized
// by the model's tokenizer. Each grammar has a compiler of its own, so that none finds the masks of another.
// --cases prints the grammars and the tokens instead, for tools/bench/peers/grammar_peers.py.

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
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
  bool cases = false;
};

FlagTable Table(BenchFlags* f) {
  FlagTable table;
  table.program = "grammar_bench";
  table.usage = "grammar_bench [flags]";
  table.about = "Times the compiles of grammars, and masks of tokens.";
  table.groups = {
      {"Flags",
       {Flag::Text("model", &f->model, "directory with config.json and the tokenizer; weights are not read"),
        Flag::Switch("json", &f->json, "print one JSON object"),
        Flag::Switch(
            "cases", &f->cases,
            "measure nothing; print the grammars as clients send them, and the tokens of their texts, "
            "as JSON")}}};
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
  return {{"calls", times.size()},
          {"average_us", sum / static_cast<double>(times.size())},
          {"p50_us", times[times.size() / 2]},
          {"p99_us", times[times.size() * 99 / 100]},
          {"max_us", times.back()}};
}

struct WalkTimes {
  std::vector<double> masks, accepts;
};

// Adds the time of the mask before each of `tokens`, and of going on with the token.
absl::Status Walk(const CompiledGrammar& grammar, const std::vector<int32_t>& tokens, int64_t rows,
                  WalkTimes* times) {
  ASSIGN_OR_RETURN(const auto matcher, grammar.NewMatcher());
  std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(rows)));
  for (const int32_t token : tokens) {
    const double start = CpuMicroseconds();
    RETURN_IF_ERROR(matcher->FillMask(absl::MakeSpan(mask)));
    const double filled = CpuMicroseconds();
    RETURN_IF_ERROR(matcher->Accept(token));
    times->masks.push_back(filled - start);
    times->accepts.push_back(CpuMicroseconds() - filled);
  }
  if (!matcher->IsComplete())
    return absl::InternalError("the text of the benchmark does not fit its grammar");
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> MeasureCase(const GrammarCase& one, const GrammarVocabulary& vocabulary,
                                           const std::vector<int32_t>& tokens) {
  const double start = CpuMicroseconds();
  ASSIGN_OR_RETURN(const auto compiler, NewXgrammarCompiler(vocabulary, {}));
  const double begin = CpuMicroseconds();
  const GrammarSource source = Gated(one);
  const double gated = CpuMicroseconds();
  ASSIGN_OR_RETURN(const auto grammar, compiler->Compile(source));
  const double compiled = CpuMicroseconds();
  WalkTimes first, prepared;
  RETURN_IF_ERROR(Walk(*grammar, tokens, vocabulary.rows, &first));
  const double made = CpuMicroseconds();
  grammar->MakeMasks();
  const double ahead = CpuMicroseconds() - made;
  for (int i = 0; i < kSequences; ++i) RETURN_IF_ERROR(Walk(*grammar, tokens, vocabulary.rows, &prepared));
  return nlohmann::json({{"name", one.name},
                         {"source_bytes", one.asked.size()},
                         {"sort_vocabulary_us", begin - start},
                         {"gate_us", gated - begin},
                         {"compile_us", compiled - gated},
                         {"first_use_us", compiled - begin + first.masks.front()},
                         {"masks_ahead_us", ahead},
                         {"bytes", grammar->bytes()},
                         {"first", ToJson(first.masks)},
                         {"prepared", ToJson(prepared.masks)},
                         {"accept", ToJson(prepared.accepts)}});
}

absl::StatusOr<nlohmann::json> Measure(const GrammarVocabulary& vocabulary, const Tokenizer& tokenizer) {
  nlohmann::json report = {{"vocabulary", vocabulary.rows}};
  for (const GrammarCase& one : GrammarCases()) {
    const std::vector<int32_t> tokens = tokenizer.Encode(one.text, /*add_special_tokens=*/false);
    ASSIGN_OR_RETURN(report["grammars"].emplace_back(), MeasureCase(one, vocabulary, tokens));
  }
  return report;
}

absl::string_view NameOf(GrammarKind kind) {
  if (kind == GrammarKind::kJsonSchema) return "json_schema";
  return kind == GrammarKind::kRegex ? "regex" : "json_object";
}

nlohmann::json CasesToJson(const GrammarVocabulary& vocabulary, const Tokenizer& tokenizer) {
  nlohmann::json report = {{"vocabulary", vocabulary.rows}, {"end_tokens", vocabulary.end_tokens}};
  for (const GrammarCase& one : GrammarCases()) {
    report["cases"].push_back({{"name", one.name},
                               {"kind", NameOf(one.kind)},
                               {"asked", one.asked},
                               {"text", one.text},
                               {"tokens", tokenizer.Encode(one.text, /*add_special_tokens=*/false)}});
  }
  return report;
}

void Print(const nlohmann::json& report) {
  std::printf("%ld rows of logits, sorted in %.0f ms\n", report["vocabulary"].get<long>(),
              report["grammars"][0]["sort_vocabulary_us"].get<double>() / 1000);
  std::printf("%-20s %10s %10s %10s | %-32s | %-32s | %s\n", "", "first use", "all masks", "memory",
              "first masks: average, p99, max us", "masks made ahead", "accept");
  for (const nlohmann::json& one : report["grammars"]) {
    std::printf("%-20s %7.1f ms %7.1f ms %6.1f MiB |", one["name"].get<std::string>().c_str(),
                one["first_use_us"].get<double>() / 1000, one["masks_ahead_us"].get<double>() / 1000,
                one["bytes"].get<double>() / (1 << 20));
    for (const char* which : {"first", "prepared", "accept"}) {
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
  const GrammarVocabulary vocabulary = VocabularyOf(*tokenizer, ends, rows);
  if (flags.cases) {
    std::printf("%s\n", CasesToJson(vocabulary, *tokenizer).dump().c_str());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const nlohmann::json report, Measure(vocabulary, *tokenizer));
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
