#pragma once
// Reads lines from a terminal, with editing and a history that outlives the process. Not thread safe; only
// one editor may exist at a time.

#include <memory>
#include <string>

namespace somnus::cli {

// The path of the history file: $XDG_STATE_HOME/somnus/history, else ~/.local/state/somnus/history; empty
// where HOME is not set either.
std::string HistoryPath();

class LineEditor {
 public:
  enum class Result { kLine, kInterrupted, kEnd };

  // Reads from stdin and writes to stdout, which must be terminals. Where the terminal brackets pastes, a
  // pasted text stays a single line, with its line breaks. The history is kept in `history_path`, which only
  // the owner may read. Where the path is empty or cannot be written, the history is lost with the editor.
  LineEditor(std::string prompt, std::string history_path);
  ~LineEditor();

  // kInterrupted: Ctrl-C, noticed through an InterruptScope, which must exist; the typed text is gone. kEnd:
  // Ctrl-D on an empty line, or the terminal is gone. `continues`: the line continues the lines before, and
  // the prompt shows that.
  Result Read(std::string* line, bool continues = false);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace somnus::cli
