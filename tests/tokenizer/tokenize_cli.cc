// Serves tools/compare_tokenizers.py: reads one JSON request per line from stdin, and writes one reply per
// line to stdout.
//   {"encode": TEXT, "special": BOOL}   -> {"ids": [..]}
//   {"decode": [IDS], "skip": BOOL}     -> {"text": TEXT, "streamed": TEXT}
// The first line that it writes is {"startup_ms": N}: the time that building the tables took.

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/tokenizer/load_tokenizer.h"
#include "text/tokenizer/tokenizer.h"

namespace somnus {
namespace {

nlohmann::json Answer(const Tokenizer& tokenizer, const nlohmann::json& request) {
  if (request.contains("encode")) {
    return {{"ids", tokenizer.Encode(request["encode"].get<std::string>(), request.value("special", false))}};
  }
  const auto ids = request["decode"].get<std::vector<int32_t>>();
  const bool skip = request.value("skip", false);
  IncrementalDetokenizer detokenizer(&tokenizer, skip);
  std::string streamed;
  for (const int32_t id : ids) streamed += detokenizer.Append(id);
  streamed += detokenizer.Flush();
  return {{"text", tokenizer.Decode(ids, skip)}, {"streamed", streamed}};
}

int Run(const std::string& directory) {
  absl::StatusOr<TokenizerData> data = LoadTokenizerData(directory);
  if (!data.ok()) {
    std::cerr << data.status() << "\n";
    return 1;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = Tokenizer::Create(*std::move(data));
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  std::cout << nlohmann::json({{"startup_ms", took.count()}}).dump() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Answer(**tokenizer, nlohmann::json::parse(line)).dump() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenize_cli DIRECTORY < requests.jsonl\n";
    return 2;
  }
  return somnus::Run(argv[1]);
}
