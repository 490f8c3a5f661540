#include "tools/cli/raw_terminal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace somnus::cli {
namespace {

std::atomic<bool> end_asked{false};

void OnEnd(int) { end_asked.store(true); }
void OnResize(int) {}  // it ends the wait, and the next picture has the new size

// xterm's: another screen, and no cursor.
constexpr char kEnter[] = "\033[?1049h\033[?25l", kLeave[] = "\033[?25h\033[?1049l";
constexpr char kEscapeByte = '\033';
// How long the rest of a sequence may take.
constexpr int kSequenceMs = 50;

constexpr std::pair<absl::string_view, Key> kSequences[] = {
    {"\033[A", Key::kUp},      {"\033OA", Key::kUp},   {"\033[B", Key::kDown},      {"\033OB", Key::kDown},
    {"\033[5~", Key::kPageUp}, {"\033[H", Key::kHome}, {"\033[6~", Key::kPageDown}, {"\033OH", Key::kHome},
    {"\033[1~", Key::kHome},   {"\033[F", Key::kEnd},  {"\033OF", Key::kEnd},       {"\033[4~", Key::kEnd},
};

// The bytes of the sequence that `text` begins with; 0: the rest has not come yet.
size_t SequenceLength(absl::string_view text) {
  if (text.size() < 2) return 0;
  if (text[1] == 'O') return text.size() < 3 ? 0 : 3;
  if (text[1] != '[') return 1;
  for (size_t i = 2; i < text.size(); ++i) {
    if (text[i] >= 0x40 && text[i] <= 0x7e) return i + 1;
  }
  return 0;
}

void SetAction(int signal, void (*handler)(int), struct sigaction* before) {
  struct sigaction action {};
  action.sa_handler = handler;  // without SA_RESTART: a wait ends
  sigaction(signal, &action, before);
}

bool WriteAll(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

std::vector<KeyPress> KeyReader::Read(absl::string_view bytes, bool is_all) {
  absl::StrAppend(&pending_, bytes);
  std::vector<KeyPress> keys;
  size_t at = 0;
  while (at < pending_.size()) {
    const absl::string_view rest = absl::string_view(pending_).substr(at);
    const auto byte = static_cast<unsigned char>(rest[0]);
    if (rest[0] == kEscapeByte) {
      size_t length = SequenceLength(rest);
      if (length == 0 && !is_all) break;
      if (length <= 1) {
        keys.push_back({Key::kEscape});
        length = length == 0 ? rest.size() : 1;
      } else {
        const auto known = std::find_if(std::begin(kSequences), std::end(kSequences),
                                        [&](const auto& one) { return one.first == rest.substr(0, length); });
        if (known != std::end(kSequences)) keys.push_back({known->second});
      }
      at += length;
      continue;
    }
    ++at;
    if (byte == '\r' || byte == '\n') keys.push_back({Key::kEnter});
    if (byte == '\t') keys.push_back({Key::kTab});
    if (byte == 0x7f || byte == 0x08) keys.push_back({Key::kErase});
    if (byte >= 0x20 && byte < 0x7f) keys.push_back({Key::kCharacter, rest[0]});
  }
  pending_.erase(0, at);
  return keys;
}

RawTerminal::RawTerminal() {
  end_asked.store(false);
  tcgetattr(STDIN_FILENO, &before_);
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | IEXTEN);
  raw.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL);
  raw.c_cc[VMIN] = 1;
  raw.c_cc[VTIME] = 0;
  // A program that is stopped, or ended by Ctrl-\ at once, would leave the terminal as it is.
  raw.c_cc[VSUSP] = raw.c_cc[VQUIT] = _POSIX_VDISABLE;
  tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  SetAction(SIGTERM, OnEnd, &term_);
  SetAction(SIGHUP, OnEnd, &hangup_);
  SetAction(SIGWINCH, OnResize, &resized_);
  WriteAll(kEnter);
}

RawTerminal::~RawTerminal() {
  WriteAll(kLeave);
  tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  sigaction(SIGTERM, &term_, nullptr);
  sigaction(SIGHUP, &hangup_, nullptr);
  sigaction(SIGWINCH, &resized_, nullptr);
}

bool RawTerminal::told_to_end() { return end_asked.load(); }

RawTerminal::Size RawTerminal::size() const {
  winsize window = {};
  Size size;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0) return size;
  if (window.ws_row > 0) size.rows = window.ws_row;
  if (window.ws_col > 0) size.columns = window.ws_col;
  return size;
}

std::vector<KeyPress> RawTerminal::Wait(int wakes, int timeout_ms, bool* gone) {
  pollfd entries[] = {{STDIN_FILENO, POLLIN, 0}, {wakes, POLLIN, 0}};
  if (poll(entries, 2, timeout_ms) <= 0 || entries[0].revents == 0) return {};
  std::vector<KeyPress> keys;
  char buffer[256];
  bool more = true;
  while (more) {
    const ssize_t n = read(STDIN_FILENO, buffer, sizeof(buffer));
    if (n <= 0) {
      *gone = !(n < 0 && errno == EINTR);
      return keys;
    }
    // A sequence may come in pieces.
    const absl::string_view end = absl::string_view(buffer, n).substr(n < 3 ? 0 : n - 3);
    pollfd next{STDIN_FILENO, POLLIN, 0};
    more = poll(&next, 1, absl::StrContains(end, kEscapeByte) ? kSequenceMs : 0) > 0;
    for (const KeyPress& key : keys_.Read({buffer, static_cast<size_t>(n)}, !more)) keys.push_back(key);
  }
  return keys;
}

bool RawTerminal::Draw(const std::vector<std::string>& lines) {
  std::string text = "\033[H";
  for (size_t i = 0; i < lines.size(); ++i) absl::StrAppend(&text, i > 0 ? "\r\n" : "", lines[i], "\033[K");
  absl::StrAppend(&text, "\033[J");
  return WriteAll(text);
}

}  // namespace somnus::cli
