#pragma once
// Lines from a terminal, with editing and a history that outlives the process. Not thread safe; one at a
// time.

#include <memory>
#include <string>

namespace somnus::cli {

// Where the history is: $XDG_STATE_HOME/somnus/history, else ~/.local/state/somnus/history; empty without a
// home.
std::string HistoryPath();

class LineEditor {
 public:
  enum class Result { kLine, kInterrupted, kEnd };

  // Reads from stdin and writes to stdout, both terminals. The history is kept in `history_path`, which only
  // its owner may read; empty or not writable: only as long as this lives.
  LineEditor(std::string prompt, std::string history_path);
  ~LineEditor();

  // kInterrupted: Ctrl-C, noticed through InterruptScope, which must live; what was typed is gone. kEnd:
  // Ctrl-D on an empty line, or the terminal has gone.
  Result Read(std::string* line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace somnus::cli
