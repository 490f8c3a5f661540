#include "tools/cli/question.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace somnus::cli {
namespace {

using Result = LineEditor::Result;

constexpr absl::string_view kQuotes = "\"\"\"";

// Whether the text is complete. Removes the mark of the end (three quotes) or of a next line (a backslash).
bool IsWhole(bool quoted, std::string* text) {
  absl::string_view rest = absl::StripTrailingAsciiWhitespace(*text);
  if (!quoted) {
    if (!absl::ConsumeSuffix(&rest, "\\")) return true;
    *text = std::string(rest);
    return false;
  }
  if (!absl::ConsumeSuffix(&rest, kQuotes)) return false;
  *text = std::string(rest);
  return true;
}

}  // namespace

Result ReadQuestion(LineEditor* editor, std::string* question) {
  std::string text;
  if (const Result result = editor->Read(&text); result != Result::kLine) return result;
  absl::string_view begin = absl::StripLeadingAsciiWhitespace(text);
  const bool quoted = absl::ConsumePrefix(&begin, kQuotes);
  if (quoted) text = std::string(begin);
  while (!IsWhole(quoted, &text)) {
    std::string line;
    const Result result = editor->Read(&line, /*continues=*/true);
    if (result == Result::kInterrupted) return result;
    if (result == Result::kEnd) break;
    absl::StrAppend(&text, "\n", line);
  }
  if (quoted) absl::ConsumePrefix(&(begin = text), "\n");
  *question = std::string(absl::StripTrailingAsciiWhitespace(quoted ? begin : absl::string_view(text)));
  return Result::kLine;
}

}  // namespace somnus::cli
