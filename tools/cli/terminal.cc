#include "tools/cli/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace somnus::cli {
namespace {

std::atomic<bool> interrupted{false};

void OnInterrupt(int) { interrupted.store(true); }

const char* Code(Style style) {
  switch (style) {
    case Style::kBold:
      return "\033[1m";
    case Style::kDim:
      return "\033[2m";
    case Style::kGreen:
      return "\033[32m";
    case Style::kRed:
      return "\033[31m";
    case Style::kYellow:
      return "\033[33m";
  }
  return "";
}

// The characters of C0 and C1, separators of lines, characters that turn the direction of writing, and
// characters that nobody sees: the mark of the byte order, and tags.
bool IsControl(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x2028 && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069) || code == 0x200e || code == 0x200f || code == 0x061c ||
         code == 0xfeff || (code >= 0xe0001 && code <= 0xe007f);
}

std::string PrintableBut(absl::string_view kept, absl::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = DecodeUtf8(text, at);
    const absl::string_view character = text.substr(at, step.length);
    at += step.length;
    if (!step.valid) {
      AppendUtf8(0xFFFD, &out);
    } else if (!IsControl(step.code) || absl::StrContains(kept, character)) {
      absl::StrAppend(&out, character);
    } else if (step.code < 0x80) {
      absl::StrAppend(&out, "\\x", absl::Hex(static_cast<uint32_t>(step.code), absl::kZeroPad2));
    } else {
      absl::StrAppend(&out, "\\u", absl::Hex(static_cast<uint32_t>(step.code), absl::kZeroPad4));
    }
  }
  return out;
}

}  // namespace

bool IsTerminal(int fd) { return isatty(fd) == 1; }

bool UnderstandsEscapes(int fd) {
  const char* term = getenv("TERM");
  return IsTerminal(fd) && term != nullptr && absl::string_view(term) != "dumb";
}

bool UseColour(int fd) {
  const char* no_colour = getenv("NO_COLOR");
  return UnderstandsEscapes(fd) && (no_colour == nullptr || *no_colour == '\0');
}

int Columns(int fd, int otherwise) {
  winsize size = {};
  const bool known = IsTerminal(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : otherwise;
}

std::string Styled(int fd, Style style, absl::string_view text) {
  return UseColour(fd) ? absl::StrCat(Code(style), text, "\033[0m") : std::string(text);
}

std::string Printable(absl::string_view text) { return PrintableBut("", text); }

std::string PrintableLines(absl::string_view text) { return PrintableBut("\n\t", text); }

void WriteModelText(absl::string_view text) {
  const std::string shown = IsTerminal(STDOUT_FILENO) ? PrintableLines(text) : std::string(text);
  fwrite(shown.data(), 1, shown.size(), stdout);
  fflush(stdout);
}

int Fail(const absl::Status& status) {
  const std::string message =
      IsTerminal(STDERR_FILENO) ? PrintableLines(status.message()) : std::string(status.message());
  const std::string line = absl::StrCat(Styled(STDERR_FILENO, Style::kRed, "error"), ": ", message, "\n");
  fputs(line.c_str(), stderr);
  if (absl::IsInvalidArgument(status)) return kUsage;
  return absl::IsUnavailable(status) ? kCannotConnect : kServerError;
}

int ExitCode(const absl::StatusOr<int>& code) { return code.ok() ? *code : Fail(code.status()); }

int FailInterrupted() {
  fputs("interrupted\n", stderr);
  return kInterrupted;
}

InterruptScope::InterruptScope() {
  Clear();
  struct sigaction action {};
  action.sa_handler = OnInterrupt;  // without SA_RESTART: a read that waits ends
  sigaction(SIGINT, &action, &previous_);
}

InterruptScope::~InterruptScope() { sigaction(SIGINT, &previous_, nullptr); }

const std::atomic<bool>* InterruptScope::flag() { return &interrupted; }

void InterruptScope::Clear() { interrupted.store(false); }

}  // namespace somnus::cli
