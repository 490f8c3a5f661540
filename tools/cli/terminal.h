#pragma once
// Shared by all commands: exit codes, output, and Ctrl-C. Colours are used on a terminal only, and not where
// NO_COLOR is set.

#include <signal.h>

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus::cli {

// Exit codes, the same for every command (and in `somnus --help`).
inline constexpr int kOk = 0;
inline constexpr int kServerError = 1;
inline constexpr int kUsage = 2;
inline constexpr int kCannotConnect = 3;
inline constexpr int kInterrupted = 130;  // by Ctrl-C, as in shells

bool IsTerminal(int fd);
bool UnderstandsEscapes(int fd);  // a terminal that is not dumb
bool UseColour(int fd);
// The columns of the terminal; `otherwise` where `fd` is no terminal, or the terminal does not know.
int Columns(int fd, int otherwise);

// Returns `text` in this style where `fd` shows colours, else unchanged.
enum class Style { kBold, kDim, kGreen, kRed, kYellow };
std::string Styled(int fd, Style style, absl::string_view text);

// Text of a server, of a client or of a file, which cannot move the cursor, change the window or end the
// line: control characters become escapes ("\x1b"), also those beyond ASCII and those that turn the direction
// of writing ("\u202e"), and invalid UTF-8 becomes U+FFFD. All other characters stay.
std::string Printable(absl::string_view text);
// As Printable, but newlines and tabs stay.
std::string PrintableLines(absl::string_view text);

// Writes the output of a model, or words of its files, to stdout, at once; on a terminal as PrintableLines.
void WriteModelText(absl::string_view text);

// Writes "error: ..." to stderr, on a terminal as PrintableLines, since servers' words may be in the message;
// returns the exit code for the status.
int Fail(const absl::Status& status);
int ExitCode(const absl::StatusOr<int>& code);

// For the end after Ctrl-C: writes "interrupted" to stderr and returns kInterrupted.
int FailInterrupted();

// While a scope exists, Ctrl-C sets flag() instead of ending the process. Scopes may nest; they share the
// flag, and making a scope clears it.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  static const std::atomic<bool>* flag();
  static void Clear();

 private:
  struct sigaction previous_;
};

}  // namespace somnus::cli
