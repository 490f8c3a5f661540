#include "tools/cli/line_editor.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/utf8.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

constexpr int kHistoryLines = 1000;
// libedit treats text between two such characters as an escape sequence, which has no width on the line.
constexpr char kEscapeMark = '\1';

constexpr char kContinues[] = ". ";
// xterm's control sequences: pastes come between two marks, the first of which is bound to InsertPaste.
constexpr char kBracketPastes[] = "\033[?2004h", kNoBracketPastes[] = "\033[?2004l",
               kPasteEnd[] = "\033[201~";
constexpr size_t kMaxPasteBytes = size_t{128} << 10;  // libedit draws the whole line

// Terminals send UTF-8, also where no locale is set, as in most containers.
void UseUtf8() {
  setlocale(LC_CTYPE, "");
  if (std::string_view(nl_langinfo(CODESET)) != "UTF-8") setlocale(LC_CTYPE, "C.UTF-8");
}

// Reads the next byte of stdin. Returns 1; 0 at the end of input; -1 with errno, which is EINTR after Ctrl-C.
// poll waits in slices of time, because a signal may arrive just before poll.
int ReadByte(char* byte) {
  while (!InterruptScope::flag()->load()) {
    pollfd entry{STDIN_FILENO, POLLIN, 0};
    const int n = poll(&entry, 1, 100);
    if (n > 0) return static_cast<int>(read(STDIN_FILENO, byte, 1));
    if (n < 0 && errno != EINTR) return -1;
  }
  errno = EINTR;
  return -1;
}

// Reads one character for libedit (EL_GETCFN).
int ReadCharacter(EditLine*, wchar_t* character) {
  std::string bytes(1, '\0');
  if (const int n = ReadByte(bytes.data()); n != 1) return n;
  const size_t length = Utf8Length(static_cast<unsigned char>(bytes[0]));
  while (bytes.size() < length) {
    char next;
    if (const int n = ReadByte(&next); n != 1) return n;
    bytes += next;
  }
  *character = static_cast<wchar_t>(DecodeUtf8(bytes, 0).code);
  return 1;
}

// The part of a paste that goes into the line: text with newlines and tabs.
std::string CleanPaste(const std::string& bytes) {
  std::string text;
  for (const char c : absl::StrReplaceAll(bytes, {{"\r\n", "\n"}, {"\r", "\n"}})) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 ? byte != 0x7f : (c == '\n' || c == '\t')) text += c;
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return ReplaceInvalidUtf8(text);
}

// Reads to the end of the paste that has begun, and inserts the pasted text at the cursor.
unsigned char InsertPaste(EditLine* editor, int) {
  std::string bytes;
  bool too_long = false;
  while (!absl::EndsWith(bytes, kPasteEnd)) {
    char byte;
    if (ReadByte(&byte) != 1) return CC_EOF;
    bytes += byte;
    if (bytes.size() < kMaxPasteBytes + sizeof(kPasteEnd)) continue;
    too_long = true;
    bytes.erase(0, kMaxPasteBytes);
  }
  bytes.resize(bytes.size() - absl::string_view(kPasteEnd).size());
  if (too_long) {
    fputs("\n(more than 128 KiB were pasted, and left out; a file can be piped in: somnus chat < FILE)\n",
          stdout);
    return CC_REDISPLAY;
  }
  const std::string text = CleanPaste(bytes);
  return text.empty() || el_insertstr(editor, text.c_str()) != 0 ? CC_ERROR : CC_REFRESH;
}

// Makes the file, and missing folders above the file. Only this user may read the file and open its folder.
bool MakePrivateFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (std::filesystem::create_directories(folder, error)) {
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  }
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const bool is_private = fchmod(fd, 0600) == 0;
  close(fd);
  return is_private;
}

}  // namespace

struct LineEditor::Impl {
  std::string prompt, continues;
  bool is_continued = false;
  bool brackets_pastes = false;
  std::string history_path;
  EditLine* editor = nullptr;
  History* history = nullptr;

  static char* Prompt(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    Impl* impl = static_cast<Impl*>(self);
    return impl->is_continued ? impl->continues.data() : impl->prompt.data();
  }

  void Remember(const std::string& line) {
    HistEvent event;
    ::history(history, &event, H_ENTER, line.c_str());
    if (!history_path.empty()) ::history(history, &event, H_SAVE, history_path.c_str());
  }
};

std::string HistoryPath() {
  const char* state = getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return absl::StrCat(state, "/somnus/history");
  const char* home = getenv("HOME");
  return home == nullptr || *home == '\0' ? "" : absl::StrCat(home, "/.local/state/somnus/history");
}

namespace {

// The prompt in green, but for the last character: libedit drops an escape sequence at the end of a prompt,
// and the terminal would stay green.
std::string GreenPrompt(const std::string& text) {
  if (!UseColour(STDOUT_FILENO)) return text;
  const size_t last = text.size() - 1;
  return absl::StrCat("\1\033[32m\1", text.substr(0, last), "\1\033[0m\1", text.substr(last));
}

// In vi's mode the byte that begins a paste begins the command mode.
bool EditsLikeVi(EditLine* editor) {
  const char* mode = nullptr;
  return el_get(editor, EL_EDITOR, &mode) != 0 || mode == nullptr || absl::string_view(mode) != "emacs";
}

}  // namespace

LineEditor::LineEditor(std::string prompt, std::string history_path) : impl_(std::make_unique<Impl>()) {
  UseUtf8();
  impl_->prompt = GreenPrompt(prompt);
  impl_->continues = GreenPrompt(kContinues);
  HistEvent event;
  impl_->history = history_init();
  history(impl_->history, &event, H_SETSIZE, kHistoryLines);
  history(impl_->history, &event, H_SETUNIQUE, 1);
  if (!history_path.empty() && MakePrivateFile(history_path)) {
    impl_->history_path = std::move(history_path);
    history(impl_->history, &event, H_LOAD, impl_->history_path.c_str());
  }
  impl_->editor = el_init("somnus", stdin, stdout, stderr);
  el_set(impl_->editor, EL_CLIENTDATA, impl_.get());
  el_set(impl_->editor, EL_PROMPT_ESC, &Impl::Prompt, kEscapeMark);
  el_set(impl_->editor, EL_EDITOR, "emacs");
  el_set(impl_->editor, EL_HIST, history, impl_->history);
  el_set(impl_->editor, EL_GETCFN, &ReadCharacter);
  el_set(impl_->editor, EL_BIND, "\\e[3~", "ed-delete-next-char", nullptr);
  el_set(impl_->editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_set(impl_->editor, EL_ADDFN, "somnus-paste", "Insert what is pasted", &InsertPaste);
  el_set(impl_->editor, EL_BIND, "\\e[200~", "somnus-paste", nullptr);
  el_source(impl_->editor, nullptr);  // the user's ~/.editrc
  impl_->brackets_pastes = UnderstandsEscapes(STDOUT_FILENO) && !EditsLikeVi(impl_->editor);
}

LineEditor::~LineEditor() {
  el_end(impl_->editor);
  history_end(impl_->history);
}

LineEditor::Result LineEditor::Read(std::string* line, bool continues) {
  int count = 0;
  errno = 0;
  impl_->is_continued = continues;
  if (impl_->brackets_pastes) fputs(kBracketPastes, stdout);
  const char* read = el_gets(impl_->editor, &count);
  if (impl_->brackets_pastes) {
    fputs(kNoBracketPastes, stdout);
    fflush(stdout);
  }
  if (InterruptScope::flag()->load()) return Result::kInterrupted;
  if (read == nullptr || count <= 0) return Result::kEnd;
  line->assign(read, static_cast<size_t>(count));
  while (!line->empty() && (line->back() == '\n' || line->back() == '\r')) line->pop_back();
  if (!line->empty()) impl_->Remember(*line);
  return Result::kLine;
}

}  // namespace somnus::cli
