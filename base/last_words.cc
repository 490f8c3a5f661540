#include "base/last_words.h"

#include <stdlib.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace somnus {
namespace {

constexpr absl::string_view kCpuIsa = "cpu_isa=", kError = "error=", kRecurs = "recurs=";
constexpr size_t kMaxErrorBytes = 2048;  // a pipe takes up to 4096 at once or not at all
constexpr size_t kMaxBytes = 8192;

void Tell(absl::string_view kind, absl::string_view text) {
  const char* const value = getenv(std::string(kLastWordsVariable).c_str());
  int fd = -1;
  if (value == nullptr || !absl::SimpleAtoi(value, &fd) || fd != kLastWordsFd) return;
  const std::string line =
      absl::StrCat(kind, absl::StrReplaceAll(text.substr(0, kMaxErrorBytes), {{"\n", " "}}), "\n");
  (void)!write(fd, line.data(), line.size());
}

}  // namespace

void TellCpuIsa(absl::string_view name) { Tell(kCpuIsa, name); }

void TellError(const absl::Status& status) {
  const bool recurs =
      absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) || absl::IsUnimplemented(status);
  Tell(recurs ? kRecurs : kError, status.message());
}

LastWords ReadLastWords(int fd) {
  std::string text(kMaxBytes, '\0');
  const ssize_t bytes = read(fd, text.data(), text.size());
  text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  LastWords words;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, kCpuIsa)) {
      words.cpu_isa = std::string(line);
    } else if (absl::ConsumePrefix(&line, kError)) {
      words.error = std::string(line);
    } else if (absl::ConsumePrefix(&line, kRecurs)) {
      words.error = std::string(line);
      words.recurs = true;
    }
  }
  return words;
}

}  // namespace somnus
