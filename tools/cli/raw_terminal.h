#pragma once
// A terminal for a program that draws the whole screen: keys arrive at once and are not shown, and the screen
// that was there before comes back in the end. For one thread; at most one object exists at a time.

#include <signal.h>
#include <termios.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace somnus::cli {

enum class Key { kCharacter, kUp, kDown, kPageUp, kPageDown, kHome, kEnd, kEnter, kTab, kEscape, kErase };

struct KeyPress {
  Key key = Key::kCharacter;
  char character = 0;  // of kCharacter: printable ASCII
};

// Turns the bytes of a terminal into keys. A sequence may be split over calls; `is_all` says that nothing
// follows for now, so that a lone escape byte is the key itself. Bytes that are no key are left out.
class KeyReader {
 public:
  std::vector<KeyPress> Read(absl::string_view bytes, bool is_all);

 private:
  std::string pending_;
};

class RawTerminal {
 public:
  // stdin and stdout must be a terminal.
  RawTerminal();
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

  struct Size {
    int rows = 24, columns = 80;
  };
  Size size() const;
  // SIGTERM or SIGHUP has come.
  static bool told_to_end();

  // Waits for keys, for `wakes` to be readable, for a signal, or for so long. Returns the keys; sets `*gone`
  // where the terminal is gone.
  std::vector<KeyPress> Wait(int wakes, int timeout_ms, bool* gone);
  // Lines without line breaks, from the top; the rest of the screen is emptied.
  static bool Draw(const std::vector<std::string>& lines);

 private:
  termios before_ = {};
  struct sigaction term_ = {}, hangup_ = {}, resized_ = {};
  KeyReader keys_;
};

}  // namespace somnus::cli
