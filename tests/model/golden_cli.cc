// golden_cli FOLDER...: runs checkpoints that are not in the repository (random_checkpoints.py makes them) as
// golden_test runs the checkpoints of the repository: on one to four ranks in fp32. A folder with an
// error.txt has to be refused, with that text in the message. Exits with the number of folders that are
// wrong, 100 at most.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "tests/model/golden.h"

namespace somnus {
namespace {

bool Check(const std::string& folder) {
  std::ifstream file(folder + "/error.txt");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const absl::string_view expected = absl::StripSuffix(text, "\n");
  bool ok = true;
  for (int world_size = 1; world_size <= 4; ++world_size) {
    const auto result = RunGolden(folder, world_size, DataType::kF32);
    const std::string message = result.ok() ? result->mismatch : result.status().ToString();
    const bool good = expected.empty() ? message.empty() && result->worst < 1e-3
                                       : !result.ok() && absl::StrContains(message, expected);
    std::printf("%s %s on %d: %.2g %s\n", good ? "ok  " : "FAIL", folder.c_str(), world_size,
                result.ok() ? result->worst : 0.0, message.c_str());
    ok = ok && good;
    if (!result.ok()) break;  // no load on more ranks either
  }
  return ok;
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  int wrong = 0;
  for (int i = 1; i < argc; ++i) wrong += !somnus::Check(argv[i]);
  std::printf("%d of %d are wrong\n", wrong, argc - 1);
  return std::min(wrong, 100);
}
