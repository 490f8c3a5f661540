#pragma once
// What a command writes. Colours and progress only where a person looks: a terminal, and no NO_COLOR.

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
inline constexpr int kInterrupted = 130;  // by Ctrl-C, as shells have it

bool IsTerminal(int fd);
bool UseColour(int fd);

// `text` in bold / dim / ... where `fd` shows colours, else as it is.
enum class Style { kBold, kDim, kGreen, kRed, kYellow };
std::string Styled(int fd, Style style, absl::string_view text);

// Model output to stdout, at once. On a terminal control characters other than newline and tab are left out,
// so that text cannot move the cursor or change the window.
void WriteModelText(absl::string_view text);

// "error: ..." on stderr; returns the exit code for the status.
int Fail(const absl::Status& status);
int ExitCode(const absl::StatusOr<int>& code);

// Ends what Ctrl-C stopped: "interrupted" on stderr; returns kInterrupted.
int FailInterrupted();

// While one lives, Ctrl-C sets flag() instead of ending the process. They may nest; the flag is one for all,
// and the making of a scope clears it.
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
