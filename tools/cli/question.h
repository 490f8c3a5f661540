#pragma once
// A question of a conversation on the terminal, which may have several lines.

#include <string>

#include "tools/cli/line_editor.h"

namespace somnus::cli {

// Reads one: what was pasted is one question with its line breaks, a line that ends with a backslash goes on
// with the next one, and what begins with """ goes on to the next """. Ctrl-D on an empty line ends what has
// begun. Results are the editor's, and only kLine changes `question`, which has no blanks at its end.
LineEditor::Result ReadQuestion(LineEditor* editor, std::string* question);

}  // namespace somnus::cli
