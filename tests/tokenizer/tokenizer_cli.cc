// tokenizer_cli FOLDER...: reads the tokenizers of checkpoints (random_tokenizers.py makes some) and compares
// their results with golden.jsonl of the same folder. A folder with an error.txt must be refused, with that
// text in the message. Exits with the number of folders that are wrong, 100 at most.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "text/tokenizer/tokenizer.h"

namespace somnus {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& folder) {
  ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(folder));
  ASSIGN_OR_RETURN(TokenizerData data, checkpoint->ReadTokenizer());
  return Tokenizer::Create(std::move(data));
}

// Returns the first line of golden.jsonl that the tokenizer does not reproduce; empty: there is none.
std::string Compare(const Tokenizer& tokenizer, const std::string& golden) {
  std::ifstream file(golden);
  if (!file) return "no golden.jsonl";
  for (std::string line; std::getline(file, line);) {
    const auto expected = nlohmann::json::parse(line);
    const auto ids = expected["ids"].get<std::vector<int32_t>>();
    const std::vector<int32_t> got = tokenizer.Encode(expected["text"].get<std::string>(), true);
    if (got != ids)
      return absl::StrCat(expected["text"].dump(), " gives ", absl::StrJoin(got, " "), ", not ",
                          absl::StrJoin(ids, " "));
    const std::string text = tokenizer.Decode(ids, true);
    if (text != expected["decoded"].get<std::string>()) {
      return absl::StrCat(absl::StrJoin(ids, " "), " decodes to \"", text, "\", not ",
                          expected["decoded"].dump());
    }
  }
  return "";
}

bool Check(const std::string& folder) {
  std::ifstream file(folder + "/error.txt");
  const std::string error{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto tokenizer = Load(folder);
  const std::string result =
      tokenizer.ok() ? Compare(**tokenizer, folder + "/golden.jsonl") : tokenizer.status().ToString();
  const bool good = error.empty() ? result.empty() : !tokenizer.ok() && absl::StrContains(result, error);
  std::printf("%s %s %s\n", good ? "ok  " : "FAIL", folder.c_str(), result.c_str());
  return good;
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  int wrong = 0;
  for (int i = 1; i < argc; ++i) wrong += !somnus::Check(argv[i]);
  std::printf("%d of %d are wrong\n", wrong, argc - 1);
  return std::min(wrong, 100);
}
