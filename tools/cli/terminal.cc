#include "tools/cli/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

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

// Whether a terminal only shows the character: no cursor moves, and no window changes.
bool IsHarmless(char c) {
  const unsigned char byte = static_cast<unsigned char>(c);
  return byte >= 0x20 ? byte != 0x7f : (c == '\n' || c == '\t');
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

void WriteModelText(absl::string_view text) {
  if (!IsTerminal(STDOUT_FILENO)) {
    fwrite(text.data(), 1, text.size(), stdout);
  } else {
    for (const char c : text) {
      if (IsHarmless(c)) fputc(c, stdout);
    }
  }
  fflush(stdout);
}

int Fail(const absl::Status& status) {
  std::string message(status.message());
  if (IsTerminal(STDERR_FILENO)) std::erase_if(message, [](char c) { return !IsHarmless(c); });
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
